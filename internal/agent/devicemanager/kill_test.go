// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/devicemanager/checkpoint"
)

// crash returns a copy of the directory as a process that is killed now leaves it: the checkpoint as it is on the disk, and nothing else.
func crash(t *testing.T, dir string) string {
	t.Helper()
	next, err := os.MkdirTemp(filepath.Dir(dir), "")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, checkpoint.File))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(next, checkpoint.File), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return next
}

// The node, the plug-in or both are killed at random moments while pods come and go. No pod fails, no device has two pods, none is lost.
func TestKills(t *testing.T) {
	const kills, all = 100, 8
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	ids := make([]string, all)
	for i := range ids {
		ids[i] = fmt.Sprintf("d%d", i)
	}
	top, err := os.MkdirTemp("", "kills") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	dir := filepath.Join(top, "0")
	p := newPods()
	n, d := start(t, dir, p, nil), newDriver(ids...)
	n.plug(t, d, "0.sock")
	var live []*corev1.Pod // what the API server has
	want := map[types.UID][]string{}
	created := map[types.UID]bool{} // pods whose container has been created: it keeps its devices. The others may get others.
	made := 0
	// settle admits each pod of the API server that is not admitted, as the workers of a node do after a start, and creates the containers
	// of some.
	settle := func() {
		for _, pod := range live {
			if err := n.admit(pod); err != nil {
				t.Fatalf("pod %s fails: %v", pod.UID, err)
			}
			got := n.given(pod.UID, "a")
			if had := want[pod.UID]; created[pod.UID] && !slices.Equal(had, got) {
				t.Errorf("pod %s had %v, and has %v", pod.UID, had, got)
			}
			want[pod.UID] = got
			if random.IntN(2) == 0 {
				if err := n.AddOptions(t.Context(), pod, &pod.Spec.Containers[0], &containermanager.Options{}); err != nil {
					t.Fatalf("pod %s fails: %v", pod.UID, err)
				}
				created[pod.UID] = true
			}
		}
		owner := map[string]types.UID{}
		for _, pod := range live {
			for _, id := range want[pod.UID] {
				if other, taken := owner[id]; taken {
					t.Errorf("%s is handed out to %s and %s", id, other, pod.UID)
				}
				owner[id] = pod.UID
			}
		}
		if got := n.Allocated()[name]; got != int64(len(owner)) {
			t.Errorf("%d devices are allocated, pods have %d", got, len(owner))
		}
	}
	for i := range kills {
		for range random.IntN(4) {
			if free := all - len(slices.Concat(values(want)...)); free > 0 && random.IntN(2) == 0 {
				made++
				live = append(live, asking(types.UID(fmt.Sprintf("p%d", made)), 1+random.Int64N(int64(min(free, 3)))))
				settle()
			} else if len(live) > 0 {
				j := random.IntN(len(live))
				n.release(t, live[j])
				delete(want, live[j].UID)
				live = slices.Delete(live, j, j+1)
			}
		}
		socket := fmt.Sprintf("%d.sock", i+1)
		switch random.IntN(3) {
		case 0: // the plug-in
			d.server.Stop()
			n.until(t, func() bool { return n.counts() == [2]int64{all, 0} })
		case 1: // the node: the plug-in registers again
			dir = crash(t, dir)
			n.stop()
			// A pod may go meanwhile.
			if len(live) > 0 && random.IntN(2) == 0 {
				p.set(live[0].UID, false)
				delete(want, live[0].UID)
				live = live[1:]
			}
			n = start(t, dir, p, nil)
		case 2: // both
			dir = crash(t, dir)
			d.server.Stop()
			n.stop()
			n = start(t, dir, p, nil)
		}
		// Pods that are looked at before the plug-in is back are held, not failed.
		for _, pod := range live {
			if err := n.admit(pod); !held(err) {
				t.Fatalf("pod %s without its plug-in: %v", pod.UID, err)
			}
		}
		d = newDriver(ids...)
		n.plug(t, d, socket)
		n.forgetGone()
		settle()
	}
	for _, pod := range live {
		n.release(t, pod)
	}
	if len(n.Allocated()) != 0 {
		t.Errorf("leaked %v", n.Allocated())
	}
}

func values(of map[types.UID][]string) [][]string {
	var out [][]string
	for _, v := range of {
		out = append(out, v)
	}
	return out
}

// A plug-in that goes while a pod's devices are allocated fails no pod.
func TestPluginGoesInAllocate(t *testing.T) {
	n := start(t, t.TempDir(), newPods(), nil)
	d := newDriver("d1")
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	d.answer = func([]string) (*pluginapi.ContainerAllocateResponse, error) {
		go d.server.Stop()
		<-over
		return nil, nil
	}
	n.plug(t, d, "d.sock")
	if err := n.admit(asking("p", 1)); !held(err) {
		t.Errorf("%v", err)
	}
}

// Hostile plug-ins have their errors, and hinder no other.
func TestHostilePlugins(t *testing.T) {
	n := start(t, t.TempDir(), newPods(), nil)
	n.plug(t, newDriver("good"), "good.sock")
	join := func(d *driver, resource string) error {
		d.serve(t, n.dir, strings.ReplaceAll(resource, "/", "-"))
		return register(n.dir, &pluginapi.RegisterRequest{
			Version: "v1beta1", Endpoint: strings.ReplaceAll(resource, "/", "-"), ResourceName: resource,
		})
	}
	// A list that is larger than gRPC's limit ends the plug-in.
	huge := newDriver()
	huge.lists = make(chan []*pluginapi.Device, 1)
	huge.lists <- devices(strings.Repeat("x", 8<<20))
	if err := join(huge, "example.com/huge"); err != nil {
		t.Error(err)
	}
	// Absurd IDs are left out.
	absurd := newDriver()
	absurd.lists = make(chan []*pluginapi.Device, 1)
	absurd.lists <- devices("", strings.Repeat("x", maxDeviceID+1), "../../etc", "ok\x00")
	if err := join(absurd, "example.com/absurd"); err != nil {
		t.Error(err)
	}
	// One that reports without end is read at a pace.
	endless := newDriver()
	endless.lists = make(chan []*pluginapi.Device)
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	many := make([]string, 1000)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	go func() {
		for list := devices(many...); ; {
			select {
			case endless.lists <- list:
			case <-stop:
				return
			}
		}
	}()
	if err := join(endless, "example.com/endless"); err != nil {
		t.Error(err)
	}
	n.until(t, func() bool {
		all, _ := n.Capacity()
		huge, absurd, endless := all["example.com/huge"], all["example.com/absurd"], all["example.com/endless"]
		n.mu.Lock()
		gone := len(n.resources["example.com/huge"].plugins) == 0
		n.mu.Unlock()
		return gone && huge.Value() == 0 && absurd.Value() == 2 && endless.Value() == 1000
	})
	if err := n.admit(asking("p", 1)); err != nil {
		t.Error(err)
	}
}

// A plug-in that does not answer delays only the pods that want its devices.
func TestPluginThatHangs(t *testing.T) {
	n := start(t, t.TempDir(), newPods(), nil)
	n.plug(t, newDriver("good"), "good.sock")
	hang := newDriver("d")
	in, stop := make(chan struct{}), make(chan struct{})
	hang.answer = func([]string) (*pluginapi.ContainerAllocateResponse, error) {
		close(in)
		<-stop
		return &pluginapi.ContainerAllocateResponse{}, nil
	}
	hang.serve(t, n.dir, "hang")
	if err := register(n.dir, &pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: "hang", ResourceName: "example.com/hang"}); err != nil {
		t.Fatal(err)
	}
	n.until(t, func() bool { all, _ := n.Capacity(); q := all["example.com/hang"]; return q.Value() == 1 })
	slow := asking("slow")
	slow.Spec.Containers = []corev1.Container{{Name: "a", Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{"example.com/hang": container("", 1).Resources.Limits[name]},
	}}}
	over := make(chan error, 1)
	go func() { over <- n.admit(slow) }()
	<-in
	if err := n.admit(asking("p", 1)); err != nil {
		t.Error(err)
	}
	close(stop)
	if err := <-over; err != nil {
		t.Error(err)
	}
}
