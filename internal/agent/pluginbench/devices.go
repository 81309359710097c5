// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pluginbench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/devicemanager"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/plugins"
)

// pods are the pods of a bench.
type pods struct {
	b *bench

	mu  sync.Mutex
	all map[types.UID]bool
}

// Known returns the pods.
func (p *pods) Known() (map[types.UID]bool, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.all), true
}

// Wake signals that a pod should look again.
func (p *pods) Wake(types.UID) { p.b.notify() }

// WakeEach signals that pods should look again.
func (p *pods) WakeEach([]types.UID) { p.b.notify() }

func (p *pods) set(uid types.UID, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if delete(p.all, uid); known {
		p.all[uid] = true
	}
}

// deviceBench drives a device plug-in.
type deviceBench struct {
	*bench
	pods     *pods
	manager  *devicemanager.Manager
	managers *containermanager.Manager
	door     *door
	kubelet  *kubelet
	resource corev1.ResourceName
	healthy  int64       // devices that it had at first
	holder   *corev1.Pod // has a device from the first allocation on
}

func deviceSteps(b *bench) ([]step, func(), error) {
	d := &deviceBench{bench: b, pods: &pods{b: b, all: map[types.UID]bool{}}, resource: corev1.ResourceName(b.Name)}
	if err := d.start(false); err != nil {
		return nil, nil, err
	}
	return []step{
		{"registers", true, d.registers},
		{"lists its devices", true, d.lists},
		{"allocates a device", true, d.allocates},
		{"gives what a runtime takes", false, d.gives},
		{"allocates all devices", false, d.allocatesAll},
		{"allocates a device again", false, d.allocatesAgain},
		{"prefers devices that it may give", false, prober{d}.prefers},
		{"refuses a device that it does not have", false, prober{d}.refuses},
		{"survives a call that kubelet gives up", false, prober{d}.survives},
		{"lists its devices to a second watcher", false, prober{d}.listsTwice},
		{"reports a changed health", false, d.health},
		{"serves after it hung in a call", false, prober{d}.hung},
		{"comes back after it is killed", false, d.killed},
		{"comes back after kubelet restarts", true, d.kubeletRestarts},
		{"comes back after kubelet refuses it", false, d.kubeletRefuses},
	}, func() { d.kubelet.stop() }, nil
}

// start starts kubelet's side: the socket of device plug-ins, and the plug-in directory. refuse: it refuses the first registration there.
func (d *deviceBench) start(refuse bool) error {
	var err error
	if d.manager, err = devicemanager.New(devicemanager.Options{
		Dir: d.socketDir(), Pods: d.pods, Changed: d.notify, NUMANodes: hardware.NUMANodes(), Interval: time.Millisecond,
		Ledger: d.ledger, Logger: d.said.logger(),
	}); err != nil {
		return err
	}
	d.managers = containermanager.New(nil, d.manager.Row())
	d.door = newDoor(d.bench, d.manager.Plugins(), refuse)
	d.kubelet = startKubelet(d.manager.Run, func(ctx context.Context) error {
		return plugins.Run(ctx, d.registry(devicemanager.Type, d.door))
	})
	return nil
}

func (d *deviceBench) socketDir() string { return filepath.Join(d.Dir, "device-plugins") }

// counts returns how many devices there are, and how many are healthy. known: a plug-in has registered the resource.
func (d *deviceBench) counts() (all, healthy int64, known bool) {
	capacity, allocatable := d.managers.Capacity()
	if d.resource == "" {
		if names := slices.Sorted(maps.Keys(capacity)); len(names) > 0 {
			d.resource = names[0]
			d.report.Name = string(d.resource)
		}
	}
	a, known := capacity[d.resource]
	h := allocatable[d.resource]
	return a.Value(), h.Value(), known
}

// usable reports whether the plug-in has healthy devices.
func (d *deviceBench) usable() bool {
	_, healthy, _ := d.counts()
	return healthy > 0
}

// socket returns where the plug-in serves.
func (d *deviceBench) socket() string {
	for _, e := range d.ledger.Snapshot() {
		if e.Point == extension.DevicePlugin && e.Name == string(d.resource) {
			return e.Where
		}
	}
	return ""
}

// asking returns a pod that wants so many devices.
func (d *deviceBench) asking(name string, count int64) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{d.resource: *apiresource.NewQuantity(count, apiresource.DecimalSI)},
		}}}},
	}
}

// admit admits a pod as the node does, and returns how long that took.
func (d *deviceBench) admit(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	d.pods.set(pod.UID, true)
	begun := time.Now()
	err := d.managers.Admit(ctx, pod)
	return time.Since(begun), err
}

func (d *deviceBench) release(ctx context.Context, pod *corev1.Pod) error {
	defer d.pods.set(pod.UID, false)
	return d.managers.Release(ctx, pod.UID)
}

// refusal returns kubelet's status of a pod that the node does not admit. kubelet also fails the pods that Mortise holds.
func (d *deviceBench) refusal(err error) string {
	if hold := (*containermanager.Hold)(nil); errors.As(err, &hold) {
		return fmt.Sprintf("UnexpectedAdmissionError: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices %s, "+
			"which is unexpected", d.resource)
	}
	if reject := (*containermanager.Rejection)(nil); errors.As(err, &reject) {
		return reject.Reason + ": " + reject.Message
	}
	return err.Error()
}

func (d *deviceBench) registers(ctx context.Context) finding {
	begun := time.Now()
	if err := d.launch(); err != nil {
		return fail("%v", err)
	}
	restarts, err := d.until(ctx, func() bool { _, _, known := d.counts(); return known })
	if err != nil {
		return fail("no registration at %s or in %s: %v", filepath.Join(d.socketDir(), "kubelet.sock"), d.registry("", nil).Dir, err)
	}
	f := ok("%s at %s, version %s", d.resource, d.socket(), pluginapi.Version)
	f.took = time.Since(begun)
	return restarted(f, restarts, "before it was registered")
}

func (d *deviceBench) lists(ctx context.Context) finding {
	if _, err := d.until(ctx, d.usable); err != nil {
		all, _, _ := d.counts()
		return fail("%d devices, none healthy: %v", all, err).kubeletSays(d.refusal(&containermanager.Hold{}))
	}
	all, healthy, _ := d.counts()
	d.healthy = healthy
	if text := d.said.text(); text != "" {
		return warn("%d devices, %d healthy: %s", all, healthy, text)
	}
	return ok("%d devices, %d healthy", all, healthy)
}

func (d *deviceBench) allocates(ctx context.Context) finding {
	d.holder = d.asking("holder", 1)
	took, err := d.admit(ctx, d.holder)
	if err != nil {
		return fail("%v", err).kubeletSays(d.refusal(err))
	}
	return d.slow(ok("1 device"), took)
}

func (d *deviceBench) gives(ctx context.Context) finding {
	begun := time.Now()
	given, err := d.managers.Options(ctx, d.holder, &d.holder.Spec.Containers[0])
	if err != nil {
		return fail("PreStartContainer: %v", err).kubeletSays("PreStartHook failed: " + err.Error())
	}
	return d.slow(examine(given, d.CDIDirs), time.Since(begun))
}

func (d *deviceBench) allocatesAll(ctx context.Context) finding {
	if d.healthy < 2 {
		return skip("it has 1 device")
	}
	pod := d.asking("all", d.healthy-1)
	took, err := d.admit(ctx, pod)
	if err != nil {
		return fail("%d devices: %v", d.healthy-1, err).kubeletSays(d.refusal(err))
	}
	_, err = d.admit(ctx, d.asking("more", 1))
	if f := ok("%d devices in %d calls", d.healthy, 2); err != nil {
		return d.slow(f.kubeletSays("of one pod more: "+d.refusal(err)), took)
	}
	return fail("one device more than there are was allocated")
}

func (d *deviceBench) allocatesAgain(ctx context.Context) finding {
	pod := d.asking("all", 1)
	if err := d.release(ctx, pod); err != nil {
		return fail("%v", err)
	}
	pod = d.asking("again", max(d.healthy-1, 1))
	if d.healthy < 2 {
		if err := d.release(ctx, d.holder); err != nil {
			return fail("%v", err)
		}
		pod = d.holder
	}
	took, err := d.admit(ctx, pod)
	if err != nil {
		return fail("devices that a pod had before: %v", err).kubeletSays(d.refusal(err))
	}
	if pod != d.holder {
		if err := d.release(ctx, pod); err != nil {
			return fail("%v", err)
		}
	}
	return d.slow(ok("devices that a pod had before"), took)
}

func (d *deviceBench) health(ctx context.Context) finding {
	if len(d.Change) == 0 {
		return skip("no command was given that changes the health of a device")
	}
	_, before, _ := d.counts()
	begun := time.Now()
	if err := d.change(ctx); err != nil {
		return fail("the command that changes the health: %v", err)
	}
	if _, err := d.until(ctx, func() bool { _, healthy, _ := d.counts(); return healthy != before }); err != nil {
		return fail("ListAndWatch reported no other number of healthy devices: %v", err)
	}
	_, after, _ := d.counts()
	f := ok("%d healthy devices, then %d", before, after)
	for _, s := range d.managers.ResourceStatus(d.holder, "c") {
		for _, r := range s.Resources {
			f.what += fmt.Sprintf("; the pod's device %s is %s", r.ResourceID, r.Health)
		}
	}
	f.took = time.Since(begun)
	return f
}

func (d *deviceBench) killed(ctx context.Context) finding {
	if d.process == nil {
		return skip("the bench has not started the plug-in's program")
	}
	broken, err := d.breakOff(ctx, d.socket(), prober{d}.asks)
	if err != nil {
		return fail("%v", err)
	}
	if _, err := d.gone(ctx); err != nil {
		return fail("its devices stay healthy after kill -9: %v", err)
	}
	pod := d.asking("waiting", 1)
	_, err = d.admit(ctx, pod)
	if err == nil {
		return fail("a device was allocated although the plug-in is gone")
	}
	words := "of the call: " + unexpected(broken) + "; meanwhile, of a new pod: " + d.refusal(err)
	begun := time.Now()
	if err := d.launch(); err != nil {
		return fail("%v", err)
	}
	restarts, err := d.until(ctx, d.usable)
	if err != nil {
		return fail("no registration after kill -9 and a start: %v", err).kubeletSays(words)
	}
	took := time.Since(begun)
	if f := d.serves(ctx, pod); f.result != OK {
		return f
	}
	f := ok("registered again, its pod keeps its device, the waiting pod got one")
	f.took, f.kubelet = took, words
	return restarted(f, restarts, "before it was registered")
}

// gone waits until the plug-in that was killed is noticed. The program is not started again meanwhile.
func (d *deviceBench) gone(ctx context.Context) (int, error) {
	d.process = nil
	return d.until(ctx, func() bool { return !d.usable() })
}

// serves admits a new pod and the one that has a device, and starts its container, if there are enough devices.
func (d *deviceBench) serves(ctx context.Context, pod *corev1.Pod) finding {
	if d.healthy > 1 {
		if _, err := d.admit(ctx, pod); err != nil {
			return fail("a new pod: %v", err).kubeletSays(d.refusal(err))
		}
		if err := d.release(ctx, pod); err != nil {
			return fail("%v", err)
		}
	}
	if _, err := d.admit(ctx, d.holder); err != nil {
		return fail("the pod that has a device: %v", err).kubeletSays(d.refusal(err))
	}
	if _, err := d.managers.Options(ctx, d.holder, &d.holder.Spec.Containers[0]); err != nil {
		return fail("a container that starts again: %v", err)
	}
	return ok("")
}

func (d *deviceBench) kubeletRestarts(ctx context.Context) finding {
	d.kubelet.stop()
	begun := time.Now()
	if err := d.start(false); err != nil {
		return fail("%v", err)
	}
	restarts, err := d.until(ctx, d.usable)
	if err != nil {
		return fail("no registration at the new %s: a plug-in has to watch for it: %v", filepath.Join(d.socketDir(), "kubelet.sock"), err)
	}
	took := time.Since(begun)
	if f := d.serves(ctx, d.asking("new", 1)); f.result != OK {
		return f
	}
	f := ok("registered again, its pod keeps its device")
	f.took = took
	return restarted(f, restarts, "when kubelet restarted")
}

// kubeletRefuses has the plug-in come back after kubelet refused it.
func (d *deviceBench) kubeletRefuses(ctx context.Context) finding {
	_, inRegistry := d.door.here(string(d.resource))
	d.kubelet.stop()
	if !inRegistry {
		refuser, err := d.refuse()
		if err != nil {
			return fail("%v", err)
		}
		_, err = d.until(ctx, refuser.asked)
		refuser.stop()
		if err != nil {
			return warn("it did not try to register with a kubelet that refuses it: %v", err)
		}
	}
	begun := time.Now()
	if err := d.start(inRegistry); err != nil {
		return fail("%v", err)
	}
	restarts, err := d.until(ctx, d.usable)
	if err != nil {
		return fail("no registration after kubelet refused one: %v", err)
	}
	f := ok("registered once kubelet let it")
	f.took = time.Since(begun)
	return restarted(f, restarts, "when it was refused")
}

// refuser is a kubelet that refuses device plug-ins.
type refuser struct {
	pluginapi.UnimplementedRegistrationServer
	d       *deviceBench
	server  *grpc.Server
	running sync.WaitGroup

	mu   sync.Mutex
	came bool
}

// refuse starts a kubelet that refuses device plug-ins.
func (d *deviceBench) refuse() (*refuser, error) {
	entries, err := os.ReadDir(d.socketDir())
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Type()&os.ModeSocket != 0 {
			_ = os.Remove(filepath.Join(d.socketDir(), e.Name())) // its plug-in may be quicker
		}
	}
	var config net.ListenConfig
	l, err := config.Listen(context.Background(), "unix", filepath.Join(d.socketDir(), "kubelet.sock"))
	if err != nil {
		return nil, fmt.Errorf("listen for device plug-ins: %w", err)
	}
	r := &refuser{d: d, server: grpc.NewServer()}
	pluginapi.RegisterRegistrationServer(r.server, r)
	r.running.Go(func() { _ = r.server.Serve(l) })
	return r, nil
}

// Register refuses.
func (r *refuser) Register(context.Context, *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	r.mu.Lock()
	r.came = true
	r.mu.Unlock()
	r.d.notify()
	return nil, status.Error(codes.Unknown, errRefused.Error())
}

func (r *refuser) asked() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.came
}

func (r *refuser) stop() {
	r.server.GracefulStop() // what was asked is answered
	r.running.Wait()
}
