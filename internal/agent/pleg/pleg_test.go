// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pleg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// fixture is a runtime, the workers and the node's status around a generator.
type fixture struct {
	internalapi.RuntimeService
	runtimeapi.RuntimeService_GetContainerEventsClient

	mu         sync.Mutex
	sandboxes  []*runtimeapi.PodSandbox
	containers []*runtimeapi.Container
	fails      error // of lists
	lists      int
	deaf       error // of the events
	streams    int
	events     chan *runtimeapi.ContainerEventResponse
	cut        chan struct{} // ends the stream of events

	refused bool // workers cannot be started yet
	ready   bool // the network
	did     []string
	log     bytes.Buffer
}

func (f *fixture) lock(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func (f *fixture) ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	return f.sandboxes, f.fails
}

func (f *fixture) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.containers, nil
}

func (f *fixture) GetContainerEvents(ctx context.Context, out chan *runtimeapi.ContainerEventResponse,
	_ func(runtimeapi.RuntimeService_GetContainerEventsClient)) error {
	f.mu.Lock()
	f.streams++
	err := f.deaf
	f.mu.Unlock()
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.cut:
			return status.Error(codes.Unavailable, "cut")
		case e := <-f.events:
			out <- e
		}
	}
}

func (f *fixture) Wake(pod types.UID) { f.lock(func() { f.did = append(f.did, "wake "+string(pod)) }) }
func (f *fixture) WakeAll()           { f.lock(func() { f.did = append(f.did, "wake all") }) }
func (f *fixture) Resync()            { f.lock(func() { f.did = append(f.did, "resync") }) }
func (f *fixture) Relisted(pod types.UID, _ uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.did = append(f.did, "relisted "+string(pod))
	return !f.refused
}

func (f *fixture) NetworkReady() (bool, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ready, ""
}

// Write is the log's.
func (f *fixture) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log.Write(p)
}

// takes is what was done since the last call, in any order.
func (f *fixture) takes() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	did := f.did
	f.did = nil
	slices.Sort(did)
	return did
}

func (f *fixture) want(t *testing.T, when string, want ...string) {
	t.Helper()
	if got := f.takes(); !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", when, got, want)
	}
}

func (f *fixture) wantLists(t *testing.T, when string, want int) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lists != want {
		t.Errorf("%s: %d lists, want %d", when, f.lists, want)
	}
}

func newFixture() *fixture { return &fixture{ready: true} }

// run runs a generator in a bubble until the test has ended, which is called when everything waits.
func run(t *testing.T, f *fixture, period time.Duration, test func()) {
	synctest.Test(t, func(t *testing.T) {
		f.events, f.cut = make(chan *runtimeapi.ContainerEventResponse), make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		g := New(Config{
			Runtime: &cri.Client{Runtime: f}, Workers: f, Status: f, Period: period, Clock: clock.RealClock{},
			Logger: slog.New(slog.NewTextHandler(f, nil)),
		})
		over := make(chan error)
		go func() { over <- g.Run(ctx) }()
		synctest.Wait()
		test()
		cancel()
		if err := <-over; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// TestRunStopsItsTimer checks that no timer is left when Run has ended.
func TestRunStopsItsTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, fake := newFixture(), clocktesting.NewFakeClock(time.Unix(0, 0))
		f.events, f.cut = make(chan *runtimeapi.ContainerEventResponse), make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		g := New(Config{Runtime: &cri.Client{Runtime: f}, Workers: f, Status: f, Clock: fake, Logger: slog.New(slog.DiscardHandler)})
		over := make(chan error)
		go func() { over <- g.Run(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-over; err != nil || fake.HasWaiters() {
			t.Errorf("Run: %v, a timer is left: %t", err, fake.HasWaiters())
		}
	})
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func sandbox(uid, id string, state runtimeapi.PodSandboxState) *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{Id: id, State: state, Labels: map[string]string{podstate.LabelPodUID: uid}}
}

func container(uid, id string, state runtimeapi.ContainerState) *runtimeapi.Container {
	return &runtimeapi.Container{Id: id, State: state, Labels: map[string]string{podstate.LabelPodUID: uid}}
}

const (
	up   = runtimeapi.PodSandboxState_SANDBOX_READY
	down = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
)

// TestChangesWakeTheirPods: what differs between two lists wakes the worker of its pod, and nothing else does.
func TestChangesWakeTheirPods(t *testing.T) {
	f := newFixture()
	f.sandboxes = []*runtimeapi.PodSandbox{sandbox("a", "s1", up), sandbox("b", "s2", up), sandbox("", "other", up)}
	f.containers = []*runtimeapi.Container{container("a", "c1", runtimeapi.ContainerState_CONTAINER_RUNNING),
		container("", "other", runtimeapi.ContainerState_CONTAINER_RUNNING)}
	run(t, f, 0, func() {
		f.want(t, "at first", "relisted a", "relisted b")
		pass(relistAlone)
		f.want(t, "nothing has changed")
		for when, change := range map[string]func(){
			"a sandbox goes down":     func() { f.sandboxes[0] = sandbox("a", "s1", down) },
			"a container ends":        func() { f.containers[0] = container("a", "c1", runtimeapi.ContainerState_CONTAINER_EXITED) },
			"another container":       func() { f.containers[0] = container("a", "c2", runtimeapi.ContainerState_CONTAINER_EXITED) },
			"a container is replaced": func() { f.containers[0] = container("a", "s1", runtimeapi.ContainerState_CONTAINER_EXITED) },
		} {
			f.lock(change)
			pass(relistAlone)
			f.want(t, when, "relisted a")
		}
		f.lock(func() { f.sandboxes = f.sandboxes[:1] })
		pass(relistAlone)
		f.want(t, "a pod is gone", "wake b")
		pass(relistAlone)
		f.want(t, "it stays away")
	})
}

// TestPodsWhoseWorkersCannotStart are looked at again with each list, until they can.
func TestPodsWhoseWorkersCannotStart(t *testing.T) {
	f := newFixture()
	f.refused, f.sandboxes = true, []*runtimeapi.PodSandbox{sandbox("a", "s1", up)}
	run(t, f, 0, func() {
		f.want(t, "at first", "relisted a")
		pass(relistAlone)
		f.want(t, "still", "relisted a")
		f.lock(func() { f.refused = false })
		pass(relistAlone)
		f.want(t, "it can", "relisted a")
		pass(relistAlone)
		f.want(t, "it has")
	})
}

// TestHowOftenEverythingIsListed: each second, or each ten while the runtime has events; a period that is given holds.
func TestHowOftenEverythingIsListed(t *testing.T) {
	event := &runtimeapi.ContainerEventResponse{
		PodSandboxStatus: &runtimeapi.PodSandboxStatus{Metadata: &runtimeapi.PodSandboxMetadata{Uid: "a"}},
	}
	t.Run("without events", func(t *testing.T) {
		f := newFixture()
		f.deaf = status.Error(codes.Unimplemented, "no")
		run(t, f, 0, func() {
			f.wantLists(t, "at first", 1)
			pass(5 * relistAlone)
			f.wantLists(t, "after five seconds", 6)
			f.want(t, "all is well")
			if f.streams != 1 {
				t.Errorf("a runtime without events is asked for them %d times", f.streams)
			}
		})
	})
	t.Run("with events", func(t *testing.T) {
		f := newFixture()
		run(t, f, 0, func() {
			f.events <- event
			synctest.Wait()
			f.want(t, "an event", "wake a")
			f.events <- &runtimeapi.ContainerEventResponse{}
			synctest.Wait()
			f.want(t, "an event of no pod")
			pass(relistAlone)
			f.wantLists(t, "the first wait was for a second", 2)
			pass(relistBeside - 1)
			f.wantLists(t, "the next is not over", 2)
			pass(1)
			f.wantLists(t, "it is", 3)
			f.cut <- struct{}{}
			pass(relistBeside)
			f.wantLists(t, "the events have ended, the wait has not", 4)
			f.want(t, "the runtime answers again", "resync", "wake all")
			if f.streams != 2 {
				t.Errorf("the events are asked for %d times, want again", f.streams)
			}
			pass(relistAlone)
			f.wantLists(t, "without events each second", 5)
			f.events <- event
			synctest.Wait()
			f.want(t, "an event", "wake a")
		})
	})
	t.Run("given", func(t *testing.T) {
		f := newFixture()
		run(t, f, 3*time.Second, func() {
			f.events <- event
			pass(3 * time.Second)
			f.wantLists(t, "with events", 2)
			f.cut <- struct{}{}
			pass(3 * time.Second)
			f.wantLists(t, "without", 3)
		})
	})
}

// TestRuntimeThatIsSilent: a runtime that does not answer is logged once, and when it does again all workers look; the node's status says
// both.
func TestRuntimeThatIsSilent(t *testing.T) {
	f := newFixture()
	f.deaf = status.Error(codes.Unimplemented, "no")
	f.sandboxes = []*runtimeapi.PodSandbox{sandbox("a", "s1", up)}
	run(t, f, 0, func() {
		f.want(t, "at first", "relisted a")
		f.lock(func() { f.fails = errors.New("silence") })
		pass(relistAlone)
		f.want(t, "it is silent", "resync")
		pass(10 * relistAlone)
		f.want(t, "it stays so")
		f.lock(func() { f.fails = nil })
		pass(relistAlone)
		f.want(t, "it answers", "resync", "wake all")
		pass(relistAlone)
		f.want(t, "it goes on")
		if text := f.log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "silence") {
			t.Errorf("log: %s", text)
		}
	})
}

// TestListFailsAsAWhole: a list without its containers is none: their pods would seem to have changed.
func TestListFailsAsAWhole(t *testing.T) {
	for name, c := range map[string]struct {
		sandboxes, containers error
		want                  string
	}{
		"sandboxes":  {errors.New("no"), nil, "list sandboxes: no"},
		"containers": {nil, errors.New("no"), "list containers: no"},
	} {
		g := New(Config{Runtime: &cri.Client{Runtime: halves{sandboxes: c.sandboxes, containers: c.containers}}})
		if sums, err := g.List(t.Context()); sums != nil || err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, %v", name, sums, err)
		}
	}
}

type halves struct {
	internalapi.RuntimeService
	sandboxes, containers error
}

func (h halves) ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	return nil, h.sandboxes
}

func (h halves) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return nil, h.containers
}

// TestNetworkThatIsNotReady is asked for with each list.
func TestNetworkThatIsNotReady(t *testing.T) {
	f := newFixture()
	f.ready = false
	run(t, f, 0, func() {
		f.want(t, "at first", "resync")
		pass(relistAlone)
		f.want(t, "still", "resync")
		f.lock(func() { f.ready = true })
		pass(relistAlone)
		f.want(t, "it is ready")
	})
}

// TestSumIsTheListsSum: a worker that has seen the same of its pod as a list has the same sum, and another if anything differs.
func TestSumIsTheListsSum(t *testing.T) {
	f := newFixture()
	f.sandboxes = []*runtimeapi.PodSandbox{sandbox("a", "s1", down), sandbox("a", "s2", up)}
	f.containers = []*runtimeapi.Container{container("a", "c1", runtimeapi.ContainerState_CONTAINER_EXITED),
		container("a", "c2", runtimeapi.ContainerState_CONTAINER_RUNNING)}
	sums, err := New(Config{Runtime: &cri.Client{Runtime: f}}).List(t.Context())
	if err != nil || len(sums) != 1 {
		t.Fatal(sums, err)
	}
	seen := func() *podstate.Pod {
		return &podstate.Pod{
			Sandboxes:  []podstate.Sandbox{{ID: "s2", Ready: true}, {ID: "s1"}},
			Containers: []podstate.Container{{ID: "c2", State: podstate.Running}, {ID: "c1", State: podstate.Exited}},
		}
	}
	if Sum(seen()) != sums["a"] {
		t.Error("the same has another sum")
	}
	for i, change := range []func(*podstate.Pod){
		func(p *podstate.Pod) { p.Sandboxes = p.Sandboxes[:1] },
		func(p *podstate.Pod) { p.Sandboxes[0].Ready = false },
		func(p *podstate.Pod) { p.Sandboxes[0].ID = "s3" },
		func(p *podstate.Pod) { p.Containers = p.Containers[1:] },
		func(p *podstate.Pod) { p.Containers[0].State = podstate.Exited },
		func(p *podstate.Pod) { p.Containers[1].ID = fmt.Sprint("c", 3) },
	} {
		p := seen()
		change(p)
		if Sum(p) == sums["a"] {
			t.Errorf("change %d has the same sum", i)
		}
	}
}
