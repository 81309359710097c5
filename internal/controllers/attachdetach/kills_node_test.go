// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	agentcsi "github.com/mortise-dev/mortise/internal/agent/csi"
	"github.com/mortise-dev/mortise/internal/agent/volumes"
	volumescsi "github.com/mortise-dev/mortise/internal/agent/volumes/csi"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

const (
	killedDriver = "d.example.com"
	nodeHolds    = "example.com/node" // the finalizer of pods that their node has not torn down yet
)

// simulatedNode is a machine. Its directory, its kernel's mounts and its running containers outlive the processes on it.
type simulatedNode struct {
	w     *controllertest.World
	name  string
	dir   string // with a directory for each life, of which only one exists
	array *array

	heard, pods chan struct{} // have a value when the Node has changed, and when pods have

	mu      sync.Mutex
	lives   int
	life    *life // nil: no agent runs
	ended   bool
	off     bool // without power
	mounts  map[string]bool
	running map[string]bool // pods whose containers run
	driver  driverProcess
	fuse    int // the steps until the agent is killed; 0: it is not
}

// root is the node's directory. The caller has locked the node.
func (n *simulatedNode) root() string { return filepath.Join(n.dir, fmt.Sprint("life-", n.lives)) }

// life is the agent between two kills: the node's volume manager, its view of attachments, and a worker for each pod.
type life struct {
	n       *simulatedNode
	root    string
	ended   context.Context
	end     context.CancelFunc
	manager *volumes.Manager
	csi     *agentcsi.Manager

	resync chan struct{} // has a value when the Node's status shall be written

	mu      sync.Mutex
	workers map[types.UID]chan struct{} // has a value when the pod shall be looked at
	telling bool                        // of the driver
}

// step lets time pass in a goroutine of the agent, during which the agent may die. It ends the goroutine of a dead one.
func (l *life) step(what string) {
	l.n.w.Pause(what, 300*time.Millisecond)
	l.n.mu.Lock()
	if l.n.life == l && l.n.fuse > 0 {
		if l.n.fuse--; l.n.fuse == 0 {
			l.n.killLocked()
		}
	}
	dead := l.n.life != l
	l.n.mu.Unlock()
	if dead {
		runtime.Goexit()
	}
}

func (l *life) relative(path string) string {
	short, ok := strings.CutPrefix(path, l.root+"/")
	if !ok {
		panic(path + " is not below " + l.root)
	}
	return short
}

// killLocked ends the agent at once: what its goroutines still do has no effect, not even on the disk, whose name changes.
func (n *simulatedNode) killLocked() {
	if n.life == nil {
		return
	}
	n.life.end()
	n.life, n.fuse = nil, 0
	before := n.root()
	n.lives++
	if err := os.Rename(before, n.root()); err != nil {
		panic(err)
	}
	later(n.w, "restart of "+n.name, time.Minute, n.restart)
}

// killDriver ends the driver; it is back after a while. The caller has locked the node.
func (n *simulatedNode) killDriver() {
	n.driver.up, n.driver.fuse = false, 0
	n.driver.epoch++
	later(n.w, "driver of "+n.name, 40*time.Second, n.startDriver)
}

func (n *simulatedNode) startDriver() {
	n.mu.Lock()
	if n.driver.up || n.off || n.ended {
		n.mu.Unlock()
		return
	}
	n.driver.up, n.driver.pending = true, map[string]bool{}
	l := n.life
	n.mu.Unlock()
	if l != nil {
		l.tell(0)
	}
}

// powerOff ends all processes and forgets all mounts.
func (n *simulatedNode) powerOff() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.off = true
	n.killLocked()
	n.driver.up = false
	n.driver.epoch++
	clear(n.mounts)
	clear(n.running)
	n.array.powerOff(n.name)
}

// powerOn starts the machine.
func (n *simulatedNode) powerOn() {
	n.mu.Lock()
	n.off = false
	n.mu.Unlock()
	n.restart()
	n.startDriver()
}

// restart starts the agent, unless it runs.
func (n *simulatedNode) restart() {
	n.mu.Lock()
	if n.life != nil || n.off || n.ended {
		n.mu.Unlock()
		return
	}
	l := &life{n: n, root: n.root(), resync: make(chan struct{}, 1), workers: map[types.UID]chan struct{}{}}
	l.ended, l.end = context.WithCancel(context.Background())
	n.life = l
	n.mu.Unlock()

	l.csi = agentcsi.New(agentcsi.Options{
		NodeName: n.name, RootDir: l.root, Client: l.client(), Pods: l, Resync: func() { ring(l.resync) }, Clock: clock.RealClock{},
		Logger: slog.New(slog.DiscardHandler),
	})
	l.manager = volumes.NewManager(&volumes.Host{
		Root: l.root, Sources: objectsOf{w: n.w}, Mounter: kernel{l}, Clock: clock.RealClock{}, Drivers: driversOf{l},
		Attachments: l.csi.Attachments(), NodeName: n.name,
	}, []volumes.Factory{volumescsi.New})
	if err := l.manager.Restore(); err != nil {
		n.w.Fail("restore: " + err.Error())
	}
	ring(l.resync)
	go l.report()
	l.tell(0)
	l.look()
}

// look starts a worker for each pod of the node, and for each that has left something on the disk.
func (l *life) look() {
	for _, pod := range controllertest.All[*corev1.PodList](l.n.w, podsResource, "Pod").Items {
		if pod.Spec.NodeName == l.n.name {
			l.wake(pod.UID)
		}
	}
	entries, err := os.ReadDir(filepath.Join(l.root, "pods"))
	if err != nil {
		return // there is none yet
	}
	for _, e := range entries {
		l.wake(types.UID(e.Name()))
	}
}

// listen has the pods looked at when some have changed.
func (n *simulatedNode) listen(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.pods:
		}
		n.w.Pause("pods of "+n.name, time.Second)
		n.mu.Lock()
		l := n.life
		n.mu.Unlock()
		if l != nil {
			l.look()
		}
	}
}

func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// wake has a pod looked at.
func (l *life) wake(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	bell := l.workers[uid]
	if bell == nil {
		bell = make(chan struct{}, 1)
		l.workers[uid] = bell
		go l.work(uid, bell)
		return
	}
	ring(bell)
}

// WakeEach implements [agentcsi.Pods].
func (l *life) WakeEach(pods []types.UID) {
	for _, uid := range pods {
		l.wake(uid)
	}
}

func podOf(w *controllertest.World, uid types.UID) *corev1.Pod {
	all := controllertest.All[*corev1.PodList](w, podsResource, "Pod").Items
	if at := slices.IndexFunc(all, func(p corev1.Pod) bool { return p.UID == uid }); at >= 0 {
		return all[at].DeepCopy()
	}
	return nil
}

// work sets up the volumes of a pod while it is wanted, and then tears them down.
func (l *life) work(uid types.UID, bell chan struct{}) {
	for retry := 500 * time.Millisecond; ; {
		l.step("look at " + string(uid))
		pod := podOf(l.n.w, uid)
		wait := time.Minute
		if pod == nil || pod.DeletionTimestamp != nil {
			l.n.setRunning(uid, false)
			err := l.manager.TearDown(l.ended, uid)
			if err == nil {
				l.step("end " + string(uid))
				l.forget(uid, pod)
				return
			}
			wait, retry = retry, min(2*retry, 20*time.Second)
		} else {
			err := l.manager.SetUp(l.ended, pod, nil)
			if hold := (*containermanager.Hold)(nil); errors.As(err, &hold) {
				wait = hold.Until.Sub(clock.RealClock{}.Now())
			} else if err != nil {
				wait, retry = retry, min(2*retry, 20*time.Second)
			} else {
				l.step("run " + string(uid))
				retry = 500 * time.Millisecond
				l.n.setRunning(uid, true)
			}
		}
		select {
		case <-l.ended.Done():
			return
		case <-bell:
		case <-clock.RealClock{}.After(wait):
		}
	}
}

// forget lets a pod go whose volumes are torn down.
func (l *life) forget(uid types.UID, pod *corev1.Pod) {
	if pod != nil {
		l.n.w.Change(podsResource, pod.Namespace, pod.Name, "", func(o k8sruntime.Object) {
			if p := o.(*corev1.Pod); p.UID == uid {
				p.Finalizers = nil
			}
		})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.workers, uid)
}

// setRunning notes that the containers of a pod run, as long as the node has power.
func (n *simulatedNode) setRunning(uid types.UID, is bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.running[string(uid)] = is; !is || n.off {
		delete(n.running, string(uid))
	}
}

// report writes what the node uses into its status, and hears of its changes.
func (l *life) report() {
	for {
		write := false
		select {
		case <-l.ended.Done():
			return
		case <-l.resync:
			write = true
		case <-l.n.heard:
		}
		l.step("report of " + l.n.name)
		used := l.csi.Attachments().InUse()
		if write {
			l.n.w.Change(nodesResource, "", l.n.name, "status", func(o k8sruntime.Object) {
				node := o.(*corev1.Node)
				node.Status.VolumesInUse = used
				node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			})
			l.step("answer to " + l.n.name)
		}
		if node := nodeOf(l.n.w, l.n.name); node != nil {
			l.csi.Attachments().Saw(node)
		}
	}
}

func nodeOf(w *controllertest.World, name string) *corev1.Node {
	all := controllertest.All[*corev1.NodeList](w, nodesResource, "Node").Items
	if at := slices.IndexFunc(all, func(n corev1.Node) bool { return n.Name == name }); at >= 0 {
		return all[at].DeepCopy()
	}
	return nil
}

// tell tells the volumes' plug-in of the driver after a while, again and again until it is content.
func (l *life) tell(after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.telling {
		return
	}
	l.telling = true
	go func() {
		for wait := after; ; wait = min(max(2*wait, 500*time.Millisecond), time.Minute) {
			select {
			case <-l.ended.Done():
				return
			case <-clock.RealClock{}.After(wait):
			}
			l.step("tell of the driver of " + l.n.name)
			if _, err := (driversOf{l}).Node(killedDriver); err != nil {
				continue
			}
			l.mu.Lock()
			for _, bell := range l.workers {
				ring(bell)
			}
			l.telling = false
			l.mu.Unlock()
			if err := l.manager.DriverRegistered(l.ended, killedDriver); err != nil {
				l.tell(max(2*wait, 500*time.Millisecond))
			}
			return
		}
	}()
}

// client is what a node may ask the API server for.
func (l *life) client() *fake.Clientset {
	client := fake.NewClientset()
	client.PrependReactor("get", "volumeattachments", func(action clienttesting.Action) (bool, k8sruntime.Object, error) {
		name := action.(clienttesting.GetAction).GetName()
		if a := find(l.n.w, name); a != nil {
			return true, a.DeepCopy(), nil
		}
		return true, nil, apierrors.NewNotFound(storagev1.Resource("volumeattachments"), name)
	})
	return client
}

// driversOf implements [volumes.Drivers].
type driversOf struct{ l *life }

func (d driversOf) Node(name string) (csipb.NodeClient, error) {
	d.l.n.mu.Lock()
	defer d.l.n.mu.Unlock()
	if !d.l.n.driver.up {
		return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
	}
	return &driverClient{l: d.l}, nil
}

func (d driversOf) Driver(context.Context, string) (*storagev1.CSIDriver, error) {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: killedDriver}, Spec: storagev1.CSIDriverSpec{
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
	}}, nil
}

func (d driversOf) WakeAtRegistration(string, types.UID) {} // all pods are woken
func (d driversOf) LookAgain(context.Context, string)    { d.l.tell(500 * time.Millisecond) }

// objectsOf are the claims and volumes that a node reads.
type objectsOf struct {
	volumes.Sources
	w *controllertest.World
}

func (s objectsOf) Claim(_ context.Context, _, name string) (*corev1.PersistentVolumeClaim, error) {
	return killedObject[*corev1.PersistentVolumeClaim](name), nil
}

func (s objectsOf) Volume(_ context.Context, name string) (*corev1.PersistentVolume, error) {
	return killedObject[*corev1.PersistentVolume](name), nil
}
