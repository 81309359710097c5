// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/mortise-dev/mortise/internal/agent/plugins"
)

// plainDriver is a driver that knows what it has prepared, and tells at each call that there is one.
type plainDriver struct {
	drapb.UnimplementedDRAPluginServer
	name    string
	at      func() // before and after each change
	calls   sync.WaitGroup
	mu      sync.Mutex
	has     map[string]bool // by the claim's UID
	settled map[string]bool // claims of which the node knows that they are prepared
	wrong   []string
}

func (d *plainDriver) NodePrepareResources(
	_ context.Context, r *drapb.NodePrepareResourcesRequest,
) (*drapb.NodePrepareResourcesResponse, error) {
	d.calls.Add(1)
	defer d.calls.Done()
	out := &drapb.NodePrepareResourcesResponse{Claims: map[string]*drapb.NodePrepareResourceResponse{}}
	for _, c := range r.Claims {
		d.at()
		d.mu.Lock()
		if d.settled[c.Uid] {
			d.wrong = append(d.wrong, c.Name+" is prepared again")
		}
		d.has[c.Uid] = true
		d.mu.Unlock()
		d.at()
		out.Claims[c.Uid] = &drapb.NodePrepareResourceResponse{Devices: []*drapb.Device{
			{PoolName: "pool", DeviceName: c.Name, CdiDeviceIds: []string{d.name + "/class=" + c.Name}},
		}}
	}
	return out, nil
}

func (d *plainDriver) NodeUnprepareResources(
	_ context.Context, r *drapb.NodeUnprepareResourcesRequest,
) (*drapb.NodeUnprepareResourcesResponse, error) {
	d.calls.Add(1)
	defer d.calls.Done()
	out := &drapb.NodeUnprepareResourcesResponse{Claims: map[string]*drapb.NodeUnprepareResourceResponse{}}
	for _, c := range r.Claims {
		d.at()
		d.mu.Lock()
		delete(d.has, c.Uid)
		delete(d.settled, c.Uid)
		d.mu.Unlock()
		d.at()
		out.Claims[c.Uid] = &drapb.NodeUnprepareResourceResponse{}
	}
	return out, nil
}

// serve serves the driver until stop is called.
func (d *plainDriver) serve(t *testing.T, path string) (stop func()) {
	_ = os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	drapb.RegisterDRAPluginServer(s, d)
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(l) })
	return func() {
		s.Stop()
		running.Wait()
	}
}

// life is a node whose process is killed again and again. What a killed process would still have written is lost: the next one starts from
// a copy of the directory as it was at that moment.
type life struct {
	*world
	t       *testing.T
	random  *rand.Rand
	drivers []*plainDriver
	stops   []func()
	pods    []*corev1.Pod
	claims  map[string][]string // of pods

	m      *Manager
	ctx    context.Context
	cancel func()

	lock    sync.Mutex
	dead    bool
	left    int // calls of drivers until the process is killed; 0: it is not
	next    string
	kills   int
	running map[string]bool
	ending  map[string]bool
}

// at is called at each step of a driver.
func (l *life) at() {
	l.lock.Lock()
	defer l.lock.Unlock()
	if l.left > 0 {
		if l.left--; l.left == 0 {
			l.kill()
		}
	}
}

// kill kills the process. The lock is held.
func (l *life) kill() {
	if l.dead {
		return
	}
	l.dead = true
	l.kills++
	l.next = filepath.Join(l.dir, fmt.Sprint("life", l.kills))
	if err := os.MkdirAll(l.next, 0o755); err != nil {
		l.t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(l.m.Dir, checkpointName)); err == nil {
		if err := os.WriteFile(filepath.Join(l.next, checkpointName), text, 0o600); err != nil {
			l.t.Error(err)
		}
	}
	l.cancel()
}

func (l *life) endpoint(d *plainDriver) string { return filepath.Join(l.dir, d.name+".sock") }

// start starts a process.
func (l *life) start() {
	o := l.options()
	o.Dir = l.next
	m, err := New(o)
	if err != nil {
		l.t.Fatal(err)
	}
	l.m, l.dead = m, false
	l.ctx, l.cancel = context.WithCancel(context.Background())
	for _, d := range l.drivers {
		l.register(d)
	}
}

func (l *life) register(d *plainDriver) {
	err := l.m.Handler().Register(l.ctx, plugins.Plugin{Type: PluginType, Name: d.name, Endpoint: l.endpoint(d), Versions: services})
	if err != nil {
		l.t.Fatal(err)
	}
}

// end waits until nothing of a killed process is left.
func (l *life) end() {
	l.cancel()
	l.m.drivers.wait()
	for _, d := range l.drivers {
		d.calls.Wait()
	}
}

// step makes the next step of a pod: it starts, goes on, or ends.
func (l *life) step(p *corev1.Pod, end bool) {
	l.lock.Lock()
	if end && l.running[p.Name] {
		l.ending[p.Name] = true
		delete(l.running, p.Name)
	}
	ending := l.ending[p.Name]
	if ending { // from here on, its claims may be prepared anew for others
		for _, d := range l.drivers {
			d.mu.Lock()
			for _, c := range l.claims[p.Name] {
				delete(d.settled, "uid-"+c)
			}
			d.mu.Unlock()
		}
	}
	l.lock.Unlock()
	var err error
	if ending {
		err = l.m.Release(l.ctx, p.UID)
	} else {
		err = l.m.Prepare(l.ctx, p)
	}
	l.lock.Lock()
	defer l.lock.Unlock()
	switch {
	case l.dead || err != nil:
		if !ending && !l.running[p.Name] { // it may have claims: it is to end before all is over
			l.running[p.Name] = true
		}
	case ending:
		delete(l.ending, p.Name)
	default:
		l.running[p.Name] = true
		for _, d := range l.drivers {
			d.mu.Lock()
			for _, c := range l.claims[p.Name] {
				if d.has["uid-"+c] {
					d.settled["uid-"+c] = true
				}
			}
			d.mu.Unlock()
		}
	}
}

// A hundred times the node is killed while pods come and go and drivers are restarted: no claim stays with a driver, and none is prepared
// again that the node knew to be prepared.
func TestAHundredKills(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	l := &life{
		world: newWorld(t), t: t, random: rand.New(rand.NewPCG(seed, 1)), claims: map[string][]string{}, running: map[string]bool{},
		ending: map[string]bool{},
	}
	l.next = l.dir
	for _, name := range []string{"d.test", "e.test"} {
		d := &plainDriver{name: name, at: l.at, has: map[string]bool{}, settled: map[string]bool{}}
		l.drivers = append(l.drivers, d)
		l.stops = append(l.stops, d.serve(t, l.endpoint(d)))
	}
	for i := range 8 {
		l.pods = append(l.pods, pod(fmt.Sprint("p", i), fmt.Sprint("own", i), fmt.Sprint("shared", i%2)))
		l.claims[fmt.Sprint("p", i)] = []string{fmt.Sprint("own", i), fmt.Sprint("shared", i%2)}
		l.claim(fmt.Sprint("own", i), []string{[]string{"d.test", "e.test"}[i%2] + "/r/dev"}, l.pods...)
	}
	for i := range 2 {
		l.claim(fmt.Sprint("shared", i), []string{"d.test/r/dev", "e.test/r/dev"}, l.pods...)
	}
	l.start()
	for l.kills < 100 {
		l.lock.Lock()
		switch l.random.IntN(6) {
		case 0:
			l.kill()
		case 1, 2, 3:
			l.left = 1 + l.random.IntN(8)
		}
		l.lock.Unlock()
		if i := l.random.IntN(8); i < len(l.drivers) && !l.dead { // the driver is restarted
			d := l.drivers[i]
			l.stops[i]()
			l.m.Handler().Deregister(l.ctx, plugins.Plugin{Name: d.name, Endpoint: l.endpoint(d)})
			l.stops[i] = d.serve(t, l.endpoint(d))
			l.register(d)
		}
		var steps sync.WaitGroup
		for _, i := range l.random.Perm(len(l.pods))[:3] {
			end := l.random.IntN(2) == 0
			steps.Go(func() { l.step(l.pods[i], end) })
		}
		steps.Wait()
		l.lock.Lock()
		dead := l.dead
		l.lock.Unlock()
		if dead {
			l.end()
			l.left = 0
			l.start()
		}
	}
	l.left = 0
	for _, p := range l.pods {
		for try := 0; ; try++ {
			err := l.m.Release(l.ctx, p.UID)
			if err == nil {
				break
			}
			if try == 10 || !strings.Contains(err.Error(), "Unavailable") {
				t.Fatal(err)
			}
		}
	}
	for i, d := range l.drivers {
		if len(d.has) > 0 {
			t.Errorf("%s still has %v", d.name, d.has)
		}
		for _, text := range d.wrong {
			t.Errorf("%s: %s", d.name, text)
		}
		l.stops[i]()
	}
	if n := len(l.m.claims.claims); n > 0 {
		t.Errorf("%d claims are left", n)
	}
	l.end()
}
