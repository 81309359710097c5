// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/devicemanager/checkpoint"
	"github.com/mortise-dev/mortise/internal/agent/plugins"
)

// A container gets its devices, and all that the plug-in answers; the Node shows them; at the pod's end they are free again.
func TestDevices(t *testing.T) {
	ledger := extension.NewLedger(clock.RealClock{})
	n := start(t, t.TempDir(), newPods(), func(o *Options) { o.Ledger = ledger })
	d := newDriver("d1", "d2", "d3")
	d.options.PreStartRequired = true
	d.answer = func(ids []string) (*pluginapi.ContainerAllocateResponse, error) {
		return &pluginapi.ContainerAllocateResponse{
			Envs:        map[string]string{"DEVICES": strings.Join(ids, ",")},
			Annotations: map[string]string{"example.com/devices": strings.Join(ids, ",")},
			Devices:     []*pluginapi.DeviceSpec{{ContainerPath: "/dev/x", HostPath: "/dev/null", Permissions: "rw"}},
			Mounts:      []*pluginapi.Mount{{ContainerPath: "/lib/x", HostPath: "/opt/x", ReadOnly: true}},
			CdiDevices:  []*pluginapi.CDIDevice{{Name: "example.com/dev=x"}},
		}, nil
	}
	n.plug(t, d, "d.sock")
	if got := n.counts(); got != [2]int64{3, 3} {
		t.Errorf("capacity and allocatable %v", got)
	}
	pod := asking("p", 2)
	if err := n.admit(pod); err != nil {
		t.Fatal(err)
	}
	if err := n.admit(pod); err != nil || len(d.allocated) != 1 {
		t.Errorf("admitted again: %v, allocated %v", err, d.allocated)
	}
	if got := n.given("p", "a"); !slices.Equal(got, []string{"d1", "d2"}) || n.Allocated()[name] != 2 {
		t.Errorf("given %v, allocated %v", got, n.Allocated())
	}
	given, err := containermanager.New(nil, n.Row()).Options(t.Context(), pod, &pod.Spec.Containers[0])
	if err != nil {
		t.Fatal(err)
	}
	config := &runtimeapi.ContainerConfig{Annotations: map[string]string{"own": "1"}}
	given.Apply(config)
	if given.Envs["DEVICES"] != "d1,d2" || config.Annotations["example.com/devices"] != "d1,d2" || config.Annotations["own"] != "1" ||
		config.Devices[0].HostPath != "/dev/null" || config.Mounts[0].HostPath != "/opt/x" || !config.Mounts[0].Readonly ||
		config.CDIDevices[0].Name != "example.com/dev=x" {
		t.Errorf("given %+v, configured %v", given, config)
	}
	if len(d.preStarted) != 1 || !slices.Equal(d.preStarted[0], []string{"d1", "d2"}) {
		t.Errorf("prepared %v", d.preStarted)
	}
	const want = "Allocate failed due to requested number of devices unavailable for example.com/dev. Requested: 2, Available: 1, " +
		"which is unexpected"
	reject := (*containermanager.Rejection)(nil)
	if err := n.admit(asking("q", 2)); !errors.As(err, &reject) || reject.Reason != "UnexpectedAdmissionError" || reject.Message != want {
		t.Errorf("another pod: %v", err)
	}
	n.release(t, pod)
	if err := n.admit(asking("q", 2)); err != nil {
		t.Error(err)
	}
	var methods []string
	for _, s := range ledger.Spans("default", "p") {
		methods = append(methods, s.Method)
	}
	if !slices.Equal(methods, []string{"Allocate", "PreStartContainer"}) {
		t.Errorf("calls for the pod: %v", methods)
	}
	// Options, the list, two Allocates and PreStartContainer.
	ref := extension.Ref{Point: extension.DevicePlugin, Name: name}
	if e := ledger.Snapshot(); len(e) != 1 || e[0].Ref != ref || e[0].Calls != 5 || e[0].Failures != 0 {
		t.Errorf("the ledger has %+v", e)
	}
}

// The pods and the Node see that a device is no longer healthy.
func TestHealth(t *testing.T) {
	n := start(t, t.TempDir(), newPods(), nil)
	d := newDriver("d1", "d2")
	n.plug(t, d, "d.sock")
	pod := asking("p", 1)
	if err := n.admit(pod); err != nil {
		t.Fatal(err)
	}
	list := devices("d1", "d2")
	list[0].Health = pluginapi.Unhealthy
	d.lists <- list
	if uid := <-n.pods.woken; uid != "p" {
		t.Errorf("woke %s", uid)
	}
	n.until(t, func() bool { return n.counts() == [2]int64{2, 1} })
	status := n.ResourceStatus(pod, "a")
	if len(status) != 1 || status[0].Name != name || status[0].Resources[0] != (corev1.ResourceHealth{ResourceID: "d1", Health: "Unhealthy"}) {
		t.Errorf("status %v", status)
	}
}

// A container that starts after an init container has ended gets that one's devices; one that runs beside it does not.
func TestInitContainersShareDevices(t *testing.T) {
	n := start(t, t.TempDir(), newPods(), nil)
	n.plug(t, newDriver("d1", "d2", "d3", "d4"), "d.sock")
	pod := asking("p", 2)
	sidecar := container("side", 1)
	sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	pod.Spec.InitContainers = []corev1.Container{container("init", 2), sidecar}
	if err := n.admit(pod); err != nil {
		t.Fatal(err)
	}
	init, side, main := n.given("p", "init"), n.given("p", "side"), n.given("p", "a")
	if !slices.Equal(init, []string{"d1", "d2"}) || !slices.Equal(side, []string{"d1"}) || !slices.Equal(main, []string{"d2", "d3"}) {
		t.Errorf("init %v, sidecar %v, main %v", init, side, main)
	}
}

// A plug-in says which devices it would rather give; what it may not give is not given.
func TestPreferredDevices(t *testing.T) {
	n := start(t, t.TempDir(), newPods(), nil)
	d := newDriver("d1", "d2", "d3", "d4")
	d.options.GetPreferredAllocationAvailable = true
	d.prefer = func(q *pluginapi.ContainerPreferredAllocationRequest) []string {
		if q.GetAllocationSize() != 2 || len(q.GetMustIncludeDeviceIDs()) != 0 {
			t.Errorf("asked %v", q)
		}
		return []string{"other", "d4"}
	}
	n.plug(t, d, "d.sock")
	if err := n.admit(asking("p", 2)); err != nil {
		t.Fatal(err)
	}
	if got := n.given("p", "a"); !slices.Equal(got, []string{"d1", "d4"}) {
		t.Errorf("given %v", got)
	}
}

func on(id string, nodes ...int64) *pluginapi.Device {
	d := devices(id)[0]
	d.Topology = &pluginapi.TopologyInfo{}
	for _, n := range nodes {
		d.Topology.Nodes = append(d.Topology.Nodes, &pluginapi.NUMANode{ID: n})
	}
	return d
}

// fixed is a topology policy that decides for a NUMA node.
type fixed struct {
	containermanager.NUMANodes
	hints []map[string][]containermanager.TopologyHint
}

func (*fixed) Scope() string { return containermanager.ContainerScope }

func (f *fixed) Merge(hints []map[string][]containermanager.TopologyHint) (containermanager.TopologyHint, bool) {
	f.hints = hints
	return containermanager.TopologyHint{Nodes: f.NUMANodes, Preferred: true}, f.NUMANodes != 0
}

// Hints name the NUMA nodes with enough devices, and devices come from the nodes that the policy chose.
func TestNUMA(t *testing.T) {
	n := start(t, t.TempDir(), newPods(), nil)
	d := newDriver()
	d.lists = make(chan []*pluginapi.Device, 1)
	d.lists <- []*pluginapi.Device{on("a0", 0), on("b0", 0), on("c1", 1), on("d1", 1), on("e1", 1)}
	n.plug(t, d, "d.sock")
	policy := &fixed{NUMANodes: containermanager.NUMAMask(1)}
	m := containermanager.New(policy, n.Row())
	n.pods.set("p", true)
	if err := m.Admit(t.Context(), asking("p", 2)); err != nil {
		t.Fatal(err)
	}
	if got := n.given("p", "a"); !slices.Equal(got, []string{"c1", "d1"}) {
		t.Errorf("given %v", got)
	}
	want := []containermanager.TopologyHint{
		{Nodes: containermanager.NUMAMask(0), Preferred: true}, {Nodes: containermanager.NUMAMask(1), Preferred: true},
		{Nodes: containermanager.NUMAMask(0, 1)},
	}
	if got := policy.hints[0][name]; !slices.Equal(got, want) {
		t.Errorf("hints %v", got)
	}
	again := n.TopologyHints(containermanager.Request{Pod: asking("q", 2), Container: &asking("q", 2).Spec.Containers[0]})[name]
	if !slices.Equal(again, []containermanager.TopologyHint{want[0], want[2]}) {
		t.Errorf("hints beside another pod %v", again)
	}
	policy.NUMANodes = 0
	if err := m.Admit(t.Context(), asking("q", 1)); err == nil || err.Error() != "Resources cannot be allocated with Topology locality" {
		t.Errorf("refused by the policy: %v", err)
	}
}

// What kubelet refuses is refused, and what would leave the directory.
func TestRefusedRegistrations(t *testing.T) {
	n := start(t, t.TempDir(), newPods(), nil)
	for want, q := range map[string]*pluginapi.RegisterRequest{
		`requested API version ["v1alpha1"] is not supported by kubelet. Supported version is ["v1beta1"]`: {
			Version: "v1alpha1", Endpoint: "a", ResourceName: name,
		},
		`the ResourceName "cpu" is invalid`:               {Version: "v1beta1", Endpoint: "a", ResourceName: "cpu"},
		`the ResourceName "kubernetes.io/dev" is invalid`: {Version: "v1beta1", Endpoint: "a", ResourceName: "kubernetes.io/dev"},
		`the endpoint "../../run/x.sock" is not in the directory of device plug-ins`: {
			Version: "v1beta1", Endpoint: "../../run/x.sock", ResourceName: name,
		},
	} {
		if err := register(n.dir, q); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	d := newDriver("d1")
	d.refused = errors.New("no options")
	d.serve(t, n.dir, "d.sock")
	err := register(n.dir, &pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: "d.sock", ResourceName: name})
	if err == nil || !strings.Contains(err.Error(), "failed to get device plugin options: ") || !strings.Contains(err.Error(), "no options") {
		t.Errorf("a plug-in without options: %v", err)
	}
	if err := n.Validate(t.Context(), plugins.Plugin{Name: name, Versions: []string{"v2"}}); err == nil {
		t.Error("a plug-in of an unknown version is valid")
	}
	if all, _ := n.Capacity(); len(all) != 0 {
		t.Errorf("the Node has %v", all)
	}
}

// When a plug-in goes, its devices are unhealthy, and after five minutes the resource is zero. When it comes back, they count again.
func TestPluginThatGoes(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	n := start(t, t.TempDir(), newPods(), func(o *Options) { o.Clock = clock })
	step := func(want [2]int64, by time.Duration) {
		t.Helper()
		late := time.After(time.Minute)
		for n.counts() != want {
			select {
			case <-n.changed:
			case <-late:
				t.Fatalf("counts %v, want %v", n.counts(), want)
			default:
				if clock.HasWaiters() {
					clock.Step(by)
				}
			}
		}
	}
	d := newDriver("d1", "d2")
	d.serve(t, n.dir, "d.sock")
	q := &pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: "d.sock", ResourceName: name}
	if err := register(n.dir, q); err != nil {
		t.Fatal(err)
	}
	step([2]int64{2, 2}, time.Millisecond)
	d.server.Stop()
	step([2]int64{2, 0}, time.Millisecond)
	step([2]int64{0, 0}, time.Second)
	if all, _ := n.Capacity(); len(all) != 1 {
		t.Errorf("the resource is gone from the Node: %v", all)
	}
	d = newDriver("d1", "d2")
	d.serve(t, n.dir, "d.sock")
	if err := register(n.dir, q); err != nil {
		t.Fatal(err)
	}
	step([2]int64{2, 2}, time.Millisecond)
	// A node that ends before it has written the zero to its Node writes it when it is back.
	d.server.Stop()
	step([2]int64{2, 0}, time.Millisecond)
	step([2]int64{0, 0}, time.Second)
	n.stop()
	n = start(t, n.dir, newPods(), nil)
	if all, _ := n.Capacity(); len(all) != 1 {
		t.Errorf("the resource is gone from the Node after a restart: %v", all)
	}
}

// A plug-in is not connected, and the Node does not have its resource, before that is on disk: a node that starts anew knows all of them.
func TestRegistrationThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	n := start(t, dir, newPods(), nil)
	blocked := filepath.Join(dir, checkpoint.File)
	if err := os.MkdirAll(filepath.Join(blocked, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	d := newDriver("d1")
	d.serve(t, dir, "d.sock")
	q := &pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: "d.sock", ResourceName: name}
	for range 2 {
		if err := register(dir, q); err == nil || !strings.Contains(err.Error(), "write checkpoint of devices") {
			t.Errorf("registered: %v", err)
		}
		n.mu.Lock()
		connected := len(n.resources[name].plugins)
		n.mu.Unlock()
		if connected != 0 {
			t.Error("the plug-in is connected")
		}
	}
	if err := os.RemoveAll(blocked); err != nil {
		t.Fatal(err)
	}
	if err := register(dir, q); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(blocked); err != nil || !strings.Contains(string(text), name) {
		t.Errorf("%s %v", text, err)
	}
}

// The record is missing on a new machine and after a checkpoint that cannot be read, until it is begun.
func TestRecord(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, checkpoint.File)
	for _, contents := range []string{"", "{"} {
		if contents != "" {
			if err := os.WriteFile(file, []byte(contents), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		n := start(t, dir, newPods(), nil)
		if !n.Record().Missing() {
			t.Errorf("%q is a record", contents)
		}
		n.plug(t, newDriver("d1"), "d.sock") // before the node registers
		if !n.Record().Missing() {
			t.Error("a registration has begun the record")
		}
		if err := n.Record().Begin(); err != nil || n.Record().Missing() {
			t.Errorf("begun: %v, missing %t", err, n.Record().Missing())
		}
		n.stop()
		n = start(t, dir, newPods(), nil)
		if n.Record().Missing() {
			t.Error("a restart has lost the record")
		}
		n.stop()
	}
}

// A resource that has expired makes room for another.
func TestManyResources(t *testing.T) {
	n := start(t, t.TempDir(), newPods(), nil)
	n.mu.Lock()
	for i := range maxResources {
		n.resources[fmt.Sprintf("example.com/%d", i)] = newResource(n.Clock.Now())
	}
	n.mu.Unlock()
	if err := n.know(name); err == nil {
		t.Error("there is one resource too many")
	}
	n.mu.Lock()
	n.resources["example.com/1"].expired = true
	n.mu.Unlock()
	if err := n.know(name); err != nil {
		t.Error(err)
	}
}

// After a restart of the node, a pod whose plug-in is not back waits, new pods too; when the plug-in is back, the pod keeps its devices.
func TestRestart(t *testing.T) {
	dir, p := t.TempDir(), newPods()
	n := start(t, dir, p, nil)
	n.plug(t, newDriver("d1", "d2"), "d.sock")
	pod := asking("p", 1)
	if err := n.admit(pod); err != nil {
		t.Fatal(err)
	}
	n.stop()
	n = start(t, dir, p, nil)
	if got := n.given("p", "a"); !slices.Equal(got, []string{"d1"}) || n.counts() != [2]int64{} {
		t.Errorf("after the restart: %v, %v", got, n.counts())
	}
	err := n.admit(pod)
	if !held(err) || err.Error() != "waiting for the device plug-in of example.com/dev to register" {
		t.Errorf("admitted without its plug-in: %v", err)
	}
	if err := n.admit(asking("q", 1)); !held(err) {
		t.Errorf("a new pod: %v", err)
	}
	if _, err := containermanager.New(nil, n.Row()).Options(t.Context(), pod, &pod.Spec.Containers[0]); !held(err) {
		t.Errorf("started without its plug-in: %v", err)
	}
	d := newDriver("d1", "d2")
	n.plug(t, d, "d.sock")
	for woken := map[types.UID]bool{}; !woken["p"] || !woken["q"]; {
		woken[<-p.woken] = true
	}
	if err := errors.Join(n.admit(pod), n.admit(asking("q", 1))); err != nil {
		t.Error(err)
	}
	if got := n.given("q", "a"); !slices.Equal(got, []string{"d2"}) || len(d.allocated) != 1 {
		t.Errorf("given %v, allocated %v", got, d.allocated)
	}
	// Pods that went while no node ran leak nothing.
	n.stop()
	p.set("p", false)
	n = start(t, dir, p, nil)
	n.plug(t, newDriver("d1", "d2"), "d.sock")
	if err := n.admit(asking("r", 1)); err != nil {
		t.Error(err)
	}
}

// A pod is not held for longer than the bound.
func TestBoundOfHold(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	dir, p := t.TempDir(), newPods()
	n := start(t, dir, p, nil)
	n.plug(t, newDriver("d1"), "d.sock")
	pod := asking("p", 1)
	if err := n.admit(pod); err != nil {
		t.Fatal(err)
	}
	n.stop()
	n = start(t, dir, p, func(o *Options) { o.Clock, o.Wait = clock, time.Minute })
	hold := (*containermanager.Hold)(nil)
	if err := n.admit(pod); !errors.As(err, &hold) || !hold.Until.Equal(clock.Now().Add(time.Minute)) || hold.Plugin != name {
		t.Errorf("%v", err)
	}
	clock.Step(time.Minute)
	const want = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices example.com/dev, which is unexpected"
	if err := n.admit(pod); err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}

// Plug-ins of the plug-in directory are the same; of two for one resource the newer counts, and the older again when that has gone.
func TestPluginDirectory(t *testing.T) {
	n := start(t, t.TempDir(), newPods(), nil)
	at := func(socket string) plugins.Plugin {
		return plugins.Plugin{Type: Type, Name: name, Endpoint: filepath.Join(n.dir, socket), Versions: []string{"v1beta1"}}
	}
	older, newer := newDriver("d1"), newDriver("d1", "d2")
	older.serve(t, n.dir, "older")
	newer.serve(t, n.dir, "newer")
	if err := errors.Join(n.Validate(t.Context(), at("older")), n.Register(t.Context(), at("older"))); err != nil {
		t.Fatal(err)
	}
	n.until(t, func() bool { return n.counts() == [2]int64{1, 1} })
	if err := n.Register(t.Context(), at("newer")); err != nil {
		t.Fatal(err)
	}
	n.until(t, func() bool { return n.counts() == [2]int64{2, 2} })
	n.Deregister(t.Context(), at("newer"))
	n.until(t, func() bool { return n.counts() == [2]int64{1, 1} })
	n.Deregister(t.Context(), at("older"))
	n.until(t, func() bool { return n.counts() == [2]int64{1, 0} })
}

// Sockets of former plug-ins are removed at the start, so that plug-ins register again; other files stay.
func TestStartRemovesSockets(t *testing.T) {
	dir := t.TempDir()
	newDriver().serve(t, dir, "old.sock")
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n := start(t, dir, newPods(), nil)
	n.plug(t, newDriver("d"), "new.sock")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{"file", "kubelet.sock", "kubelet_internal_checkpoint", "new.sock"}; !slices.Equal(names, want) {
		t.Errorf("files %v", names)
	}
}

// A checkpoint that cannot be read is set aside, and the node starts.
func TestUnreadableCheckpoint(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kubelet_internal_checkpoint"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := start(t, dir, newPods(), nil)
	n.plug(t, newDriver("d"), "d.sock")
	if _, err := os.Stat(filepath.Join(dir, "kubelet_internal_checkpoint.unreadable")); err != nil {
		t.Error(err)
	}
}

// A plug-in that fails has its error in the pod's refusal, and its devices stay free.
func TestAllocateFails(t *testing.T) {
	n := start(t, t.TempDir(), newPods(), nil)
	d := newDriver("d1")
	fail := true
	d.answer = func([]string) (*pluginapi.ContainerAllocateResponse, error) {
		if fail {
			return nil, errors.New("out of order")
		}
		return &pluginapi.ContainerAllocateResponse{}, nil
	}
	n.plug(t, d, "d.sock")
	if err := n.admit(asking("p", 1)); err == nil || !strings.Contains(err.Error(), "out of order") {
		t.Errorf("%v", err)
	}
	fail = false
	if err := n.admit(asking("q", 1)); err != nil {
		t.Error(err)
	}
}

// An allocation that cannot be written does not reach a container, and is retried.
func TestCheckpointThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	n := start(t, dir, newPods(), nil)
	n.plug(t, newDriver("d1"), "d.sock")
	pod := asking("p", 1)
	blocked := filepath.Join(dir, checkpoint.File)
	if err := errors.Join(os.Remove(blocked), os.MkdirAll(filepath.Join(blocked, "full"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := n.admit(pod); err != nil {
		t.Fatal(err)
	}
	create := func() error {
		return n.AddOptions(t.Context(), pod, &pod.Spec.Containers[0], &containermanager.Options{})
	}
	if err := create(); err == nil || !strings.Contains(err.Error(), "write checkpoint of devices") {
		t.Errorf("the container is created: %v", err)
	}
	if err := os.RemoveAll(blocked); err != nil {
		t.Fatal(err)
	}
	if err := create(); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(blocked); err != nil || !strings.Contains(string(text), `"PodUID":"p"`) {
		t.Errorf("%s %v", text, err)
	}
}
