// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podkiller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
)

// fixture is a runtime and the hooks around a killer. It writes down what it is asked for, and what fails it fails by that text.
type fixture struct {
	internalapi.RuntimeService
	*Killer

	mu     sync.Mutex
	did    []string
	fails  map[string]error
	takes  map[string]time.Duration // that the call lasts
	events *record.FakeRecorder
}

func (f *fixture) call(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	time.Sleep(f.takes[text])
	f.mu.Lock()
	defer f.mu.Unlock()
	f.did = append(f.did, text)
	return f.fails[text]
}

func (f *fixture) StopContainer(_ context.Context, id string, timeout int64) error {
	return f.call("stop %s %d", id, timeout)
}
func (f *fixture) RemoveContainer(_ context.Context, id string) error { return f.call("remove %s", id) }
func (f *fixture) StopPodSandbox(_ context.Context, id string) error {
	return f.call("stop sandbox %s", id)
}
func (f *fixture) RemovePodSandbox(_ context.Context, id string) error {
	return f.call("remove sandbox %s", id)
}
func (f *fixture) PreStop(_ context.Context, _ *corev1.Pod, c *corev1.Container, id string, limit time.Duration) {
	_ = f.call("preStop %s %s %v", c.Name, id, limit)
}

func newFixture() *fixture {
	f := &fixture{fails: map[string]error{}, takes: map[string]time.Duration{}, events: record.NewFakeRecorder(100)}
	f.events.IncludeObject = true
	f.Killer = New(Config{Runtime: &cri.Client{Runtime: f}, Hooks: f, Events: f.events, Clock: clock.RealClock{}})
	return f
}

// said are the events so far.
func (f *fixture) said() (out []string) {
	for len(f.events.Events) > 0 {
		out = append(out, <-f.events.Events)
	}
	slices.Sort(out)
	return out
}

var (
	gone     = status.Error(codes.NotFound, "gone")
	errStuck = errors.New("stuck")
)

func hooked(name string) corev1.Container {
	return corev1.Container{Name: name, Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{}}}
}

func sidecar(name string) corev1.Container {
	return corev1.Container{Name: name, RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}
}

func thePod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(30)),
			InitContainers:                []corev1.Container{{Name: "init"}, sidecar("s1"), sidecar("s2")},
			Containers:                    []corev1.Container{{Name: "a"}, hooked("b")},
		},
	}
}

func runs(names ...string) *podstate.Pod {
	state := &podstate.Pod{Sandboxes: []podstate.Sandbox{{ID: "box2", Ready: true}, {ID: "box1"}}}
	for _, name := range names {
		state.Containers = append(state.Containers, podstate.Container{ID: "id-" + name, Name: name, State: podstate.Running})
	}
	return state
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestStopPod: containers end side by side, then sidecars, the last that was started first, then sandboxes, all within one grace.
func TestStopPod(t *testing.T) {
	slow := map[string]time.Duration{"stop id-a 10": 4 * time.Second, "preStop b id-b 10s": 3 * time.Second}
	for name, c := range map[string]struct {
		runs  []string
		grace int64
		fails map[string]error
		takes map[string]time.Duration
		want  []string
		err   string
	}{
		"in order": {
			runs: []string{"s1", "a", "s2", "b"}, grace: 10, takes: slow,
			want: []string{"preStop b id-b 10s", "stop id-a 10", "stop id-b 7", "stop id-s2 6", "stop id-s1 6", "stop sandbox box2",
				"stop sandbox box1"},
		},
		"no grace is left for sidecars": {
			runs: []string{"s1", "a"}, grace: 10, takes: map[string]time.Duration{"stop id-a 10": 20 * time.Second},
			want: []string{"stop id-a 10", "stop id-s1 2", "stop sandbox box2", "stop sandbox box1"},
		},
		"an init container is none that comes last": {
			runs: []string{"init", "s1"}, grace: 9, takes: map[string]time.Duration{"stop id-init 9": time.Second},
			want: []string{"stop id-init 9", "stop id-s1 8", "stop sandbox box2", "stop sandbox box1"},
		},
		"one that the definition does not have": {
			runs: []string{"old"}, grace: 9, want: []string{"stop id-old 9", "stop sandbox box2", "stop sandbox box1"},
		},
		"nothing runs": {want: []string{"stop sandbox box2", "stop sandbox box1"}},
		"what is gone is stopped": {
			runs: []string{"a"}, grace: 5, fails: map[string]error{"stop id-a 5": gone, "stop sandbox box2": gone},
			want: []string{"stop id-a 5", "stop sandbox box2", "stop sandbox box1"},
		},
		"a container that stays keeps its sandbox, and not the sidecars": {
			runs: []string{"a", "s1"}, grace: 5, fails: map[string]error{"stop id-a 5": errStuck},
			want: []string{"stop id-a 5", "stop id-s1 5"}, err: "stop container a: stuck",
		},
		"a sandbox that stays keeps no other": {
			runs: []string{"a"}, grace: 5, fails: map[string]error{"stop sandbox box2": errStuck},
			want: []string{"stop id-a 5", "stop sandbox box2", "stop sandbox box1"}, err: "stop sandbox box2: stuck",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture()
				if f.takes = c.takes; c.fails != nil {
					f.fails = c.fails
				}
				if err := f.StopPod(t.Context(), thePod(), runs(c.runs...), c.grace); text(err) != c.err {
					t.Errorf("%v, want %q", err, c.err)
				}
				if name == "in order" {
					slices.Sort(f.did[:3]) // side by side
				}
				if !slices.Equal(f.did, c.want) {
					t.Errorf("did %q\nwant %q", f.did, c.want)
				}
				var events []string
				for _, name := range c.runs {
					events = append(events, "Normal Killing Stopping container "+name)
				}
				slices.Sort(events)
				said := f.said()
				if len(said) != len(events) {
					t.Fatalf("events %q, want %q", said, events)
				}
				for i := range said {
					if said[i][:len(events[i])] != events[i] {
						t.Errorf("event %q, want %q", said[i], events[i])
					}
				}
			})
		})
	}
}

// TestSidecarIsTheFirstInitContainer: a sidecar stops after the containers even if no init container comes before it.
func TestSidecarIsTheFirstInitContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.takes["stop id-a 10"] = time.Second
		pod := thePod()
		pod.Spec.InitContainers = []corev1.Container{sidecar("s1")}
		if err := f.StopPod(t.Context(), pod, runs("s1", "a"), 10); err != nil {
			t.Error(err)
		}
		if want := []string{"stop id-a 10", "stop id-s1 9", "stop sandbox box2", "stop sandbox box1"}; !slices.Equal(f.did, want) {
			t.Errorf("did %q\nwant %q", f.did, want)
		}
	})
}

// TestStopContainer: the preStop hook takes its time from the grace, of which the runtime gets two seconds at least.
func TestStopContainer(t *testing.T) {
	for name, c := range map[string]struct {
		spec  corev1.Container
		grace int64
		takes time.Duration
		want  []string
	}{
		"no hook":            {corev1.Container{Name: "a"}, 10, 0, []string{"stop id 10"}},
		"another hook":       {corev1.Container{Name: "a", Lifecycle: &corev1.Lifecycle{}}, 10, 0, []string{"stop id 10"}},
		"a quick hook":       {hooked("a"), 10, 0, []string{"preStop a id 10s", "stop id 10"}},
		"a slow hook":        {hooked("a"), 10, 3500 * time.Millisecond, []string{"preStop a id 10s", "stop id 7"}},
		"a hook to the end":  {hooked("a"), 10, 10 * time.Second, []string{"preStop a id 10s", "stop id 2"}},
		"no time for a hook": {hooked("a"), 0, 0, []string{"stop id 2"}},
		"a second":           {hooked("a"), 1, 0, []string{"preStop a id 1s", "stop id 2"}},
		"three":              {corev1.Container{Name: "a"}, 3, 0, []string{"stop id 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture()
				f.takes[fmt.Sprintf("preStop a id %ds", c.grace)] = c.takes
				if err := f.Killer.StopContainer(t.Context(), thePod(), &c.spec, "id", c.grace); err != nil || !slices.Equal(f.did, c.want) {
					t.Errorf("did %q, %v; want %q", f.did, err, c.want)
				}
			})
		})
	}
}

// TestStopOne: a container that a probe has given up has the probe's grace, if it names one, and else the pod's.
func TestStopOne(t *testing.T) {
	probe := func(grace *int64) *corev1.Probe { return &corev1.Probe{TerminationGracePeriodSeconds: grace} }
	for name, c := range map[string]struct {
		reason            string
		liveness, startup *corev1.Probe
		want              int
	}{
		"liveness":                      {"liveness", probe(new(int64(7))), probe(new(int64(8))), 7},
		"startup":                       {"startup", probe(new(int64(7))), probe(new(int64(8))), 8},
		"liveness without a grace":      {"liveness", probe(nil), probe(new(int64(8))), 30},
		"startup without a grace":       {"startup", probe(new(int64(7))), probe(nil), 30},
		"liveness that is there longer": {"liveness", nil, probe(new(int64(8))), 30},
		"startup that is no longer":     {"startup", probe(new(int64(7))), nil, 30},
		"another reason":                {"", probe(new(int64(7))), probe(new(int64(8))), 30},
	} {
		f := newFixture()
		pod := thePod()
		pod.Spec.Containers[0].LivenessProbe, pod.Spec.Containers[0].StartupProbe = c.liveness, c.startup
		err := f.StopOne(t.Context(), pod, decide.Kill{ID: "id", Name: "a", Message: "it is ill", Reason: c.reason})
		if want := []string{fmt.Sprintf("stop id %d", c.want)}; err != nil || !slices.Equal(f.did, want) {
			t.Errorf("%s: did %q, %v; want %q", name, f.did, err, want)
		}
		if said := f.said(); len(said) != 1 || said[0][:len("Normal Killing it is ill")] != "Normal Killing it is ill" {
			t.Errorf("%s: events %q", name, said)
		}
	}
}

// TestReset: containers are stopped without grace and without their hooks, and forgotten, one after the other, up to the first that cannot
// be.
func TestReset(t *testing.T) {
	all := []string{"stop 1 2", "remove 1", "remove 2", "stop 3 2", "remove 3"}
	list := []decide.Reset{{ID: "1", Name: "b", Kill: true}, {ID: "2", Name: "a"}, {ID: "3", Name: "a", Kill: true}}
	for name, c := range map[string]struct {
		fails  map[string]error
		want   []string
		err    string
		events int
	}{
		"all is well":         {nil, all, "", 2},
		"one is gone":         {map[string]error{"stop 1 2": gone, "remove 1": gone}, all, "", 2},
		"one does not stop":   {map[string]error{"stop 3 2": errStuck}, all[:4], "stop container a: stuck", 2},
		"one cannot be taken": {map[string]error{"remove 1": errStuck}, []string{"stop 1 2", "remove 1"}, "remove container b: stuck", 1},
	} {
		f := newFixture()
		f.fails = c.fails
		if err := f.Reset(t.Context(), thePod(), list); text(err) != c.err || !slices.Equal(f.did, c.want) {
			t.Errorf("%s: did %q, %v; want %q, %q", name, f.did, err, c.want, c.err)
		}
		if said := f.said(); len(said) != c.events {
			t.Errorf("%s: events %q", name, said)
		}
	}
}

// TestRemove takes everything of a pod away: containers, then sandboxes, each stopped once more, then logs.
func TestRemove(t *testing.T) {
	state := runs("a")
	state.Containers[0].State = podstate.Exited
	all := []string{"remove id-a", "stop sandbox box2", "remove sandbox box2", "stop sandbox box1", "remove sandbox box1"}
	for name, c := range map[string]struct {
		fails  map[string]error
		want   []string
		err    string
		remain bool
	}{
		"all is well": {nil, all, "", false},
		"what is gone is removed": {
			map[string]error{"remove id-a": gone, "stop sandbox box2": gone, "remove sandbox box2": gone}, all, "", false,
		},
		"a container stays":       {map[string]error{"remove id-a": errStuck}, all[:1], "remove container a: stuck", true},
		"a sandbox does not stop": {map[string]error{"stop sandbox box2": errStuck}, all[:2], "stop sandbox box2: stuck", true},
		"a sandbox stays":         {map[string]error{"remove sandbox box1": errStuck}, all, "remove sandbox box1: stuck", true},
	} {
		f := newFixture()
		f.fails, f.Logs = c.fails, runconfig.Node{LogDir: t.TempDir()}
		dir := f.Logs.PodLogDir(thePod())
		if err := os.MkdirAll(filepath.Join(dir, "a"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := f.Remove(t.Context(), thePod(), state); text(err) != c.err || !slices.Equal(f.did, c.want) {
			t.Errorf("%s: did %q, %v; want %q, %q", name, f.did, err, c.want, c.err)
		}
		if _, err := os.Stat(dir); (err == nil) != c.remain {
			t.Errorf("%s: the logs: %v", name, err)
		}
		if _, err := os.Stat(f.Logs.LogDir); err != nil {
			t.Errorf("%s: others' logs: %v", name, err)
		}
	}
}

// TestRemoveOfAPodWithoutAName leaves logs alone: without the name it is not known which are the pod's.
func TestRemoveOfAPodWithoutAName(t *testing.T) {
	f := newFixture()
	f.Logs = runconfig.Node{LogDir: t.TempDir()}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	dir := f.Logs.PodLogDir(pod)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := f.Remove(t.Context(), pod, &podstate.Pod{}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}

// TestPrune: of each container the newest dead instance stays, and so do sandboxes that are new, up, or have containers.
func TestPrune(t *testing.T) {
	of := func(id, name, sandbox string, s podstate.State) podstate.Container {
		return podstate.Container{ID: id, Name: name, SandboxID: sandbox, State: s}
	}
	for name, c := range map[string]struct {
		state podstate.Pod
		fails map[string]error
		want  []string
		err   string
	}{
		"instances": {state: podstate.Pod{Containers: []podstate.Container{
			of("a3", "a", "x", podstate.Running), of("a2", "a", "x", podstate.Exited), of("a1", "a", "x", podstate.Exited),
			of("b2", "b", "x", podstate.Exited), of("b1", "b", "x", podstate.Created), of("c2", "c", "x", podstate.Unknown),
			of("c1", "c", "x", podstate.Unknown),
		}}, want: []string{"remove a1", "remove b1"}},
		"sandboxes": {
			state: podstate.Pod{
				Sandboxes: []podstate.Sandbox{{ID: "new"}, {ID: "up", Ready: true}, {ID: "runs"}, {ID: "unknown"}, {ID: "last"}, {ID: "old"}},
				Containers: []podstate.Container{of("a2", "a", "runs", podstate.Running), of("b2", "b", "unknown", podstate.Unknown),
					of("a1", "a", "last", podstate.Exited), of("a0", "a", "old", podstate.Exited)},
			},
			want: []string{"remove a0", "remove sandbox old"},
		},
		"what is gone": {
			state: podstate.Pod{Sandboxes: []podstate.Sandbox{{ID: "new"}, {ID: "old"}, {ID: "older"}},
				Containers: []podstate.Container{of("a2", "a", "new", podstate.Exited), of("a1", "a", "old", podstate.Exited)}},
			fails: map[string]error{"remove a1": gone, "remove sandbox old": gone},
			want:  []string{"remove a1", "remove sandbox old", "remove sandbox older"},
		},
		"a container that stays": {
			state: podstate.Pod{Sandboxes: []podstate.Sandbox{{ID: "new"}, {ID: "old"}},
				Containers: []podstate.Container{of("a2", "a", "new", podstate.Exited), of("a1", "a", "old", podstate.Exited)}},
			fails: map[string]error{"remove a1": errStuck}, want: []string{"remove a1"}, err: "remove container a: stuck",
		},
		"a sandbox that stays": {
			state: podstate.Pod{Sandboxes: []podstate.Sandbox{{ID: "new"}, {ID: "old"}, {ID: "older"}}},
			fails: map[string]error{"remove sandbox old": errStuck}, want: []string{"remove sandbox old"}, err: "remove sandbox old: stuck",
		},
	} {
		f := newFixture()
		f.fails = c.fails
		if err := f.Prune(t.Context(), &c.state); text(err) != c.err || !slices.Equal(f.did, c.want) {
			t.Errorf("%s: did %q, %v; want %q, %q", name, f.did, err, c.want, c.err)
		}
	}
}
