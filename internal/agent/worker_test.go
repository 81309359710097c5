// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/cri/fakecri"
	"github.com/mortise-dev/mortise/internal/agent/nodeaddress"
	"github.com/mortise-dev/mortise/internal/machine/images"
)

// noMounts plays a kernel that mounts nothing.
type noMounts struct{}

func (noMounts) Tmpfs(string, int64) error                                     { return nil }
func (noMounts) Huge(string, int64) error                                      { return nil }
func (noMounts) Unmount(string) error                                          { return nil }
func (noMounts) Mount(context.Context, string, string, string, []string) error { return nil }
func (noMounts) Bind(string, string) error                                     { return nil }
func (noMounts) Below(string) ([]string, error)                                { return nil, nil }
func (noMounts) IsMountPoint(string) (bool, error)                             { return false, nil }

// tellingClock is a fake clock that says which waits begin.
type tellingClock struct {
	*clocktesting.FakeClock
	waits chan time.Duration
}

func (c *tellingClock) NewTimer(d time.Duration) clock.Timer {
	t := c.FakeClock.NewTimer(d)
	select {
	case c.waits <- d:
	default:
	}
	return t
}

// pass waits until somebody waits for about so long, and lets that time pass.
func (c *tellingClock) pass(t *testing.T, d time.Duration) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		select {
		case got := <-c.waits:
			if got > d-time.Second && got <= d {
				c.Step(d)
				return
			}
		case <-limit:
			t.Fatalf("nobody waits for %v", d)
		}
	}
}

// newFake is a node on a runtime without containers.
func newFake(t *testing.T, c clock.WithTicker) (*cluster, *fakecri.Runtime) {
	t.Helper()
	dir := t.TempDir()
	if c == nil {
		c = clock.RealClock{}
	}
	r := fakecri.New(dir, c.Now, images.Busybox)
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return newCluster(t, Options{
		NodeName: "n1", RuntimeEndpoint: r.Socket(), CNI: CNIOptions{ConfDir: "-"},
		Host:      HostOptions{RootDir: dir + "/kubelet", LogDir: dir + "/pods", CgroupFS: t.TempDir(), Mounter: noMounts{}},
		Addresses: nodeaddress.Fixed("192.168.1.5"), Clock: c, ClusterDNS: func() []string { return []string{"10.96.0.10"} },
	}), r
}

func running(restarts int32) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Running != nil &&
			p.Status.ContainerStatuses[0].RestartCount == restarts
	}
}

func waitingFor(reason string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == reason
	}
}

func onePod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
}

func TestPodLifeAndAdoption(t *testing.T) {
	c, r := newFake(t, nil)
	made := c.create(onePod("p"))
	pod := c.await("p", "ready", isReady)
	if pod.Status.Phase != corev1.PodRunning || pod.Status.HostIP != "192.168.1.5" || pod.Status.PodIP == "" || pod.Status.StartTime == nil ||
		pod.Status.QOSClass != corev1.PodQOSBestEffort {
		t.Errorf("status: %+v", pod.Status)
	}
	want := []string{
		`Pulled: Container image "mortise.local/busybox:1" already present on machine and can be accessed by the pod`,
		"Created: Container created", "Started: Container started",
	}
	c.awaitEvent("p", "Started")
	if got := c.events("p"); !slices.Equal(sorted(got), sorted(want)) {
		t.Errorf("events: %q", got)
	}

	client, err := cri.Dial(t.Context(), r.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(t.Context())
	list, err := client.Runtime.ListContainers(t.Context(), nil)
	if err != nil || len(list) != 1 {
		t.Fatalf("containers: %v, %v", list, err)
	}
	wantLabels := map[string]string{
		"io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": string(made.UID),
		"io.kubernetes.container.name": "c",
	}
	for k, v := range wantLabels {
		if list[0].Labels[k] != v {
			t.Errorf("label %s is %q, want %q", k, list[0].Labels[k], v)
		}
	}

	c.stop()
	c.start()
	c.await("p", "ready", isReady)
	c.create(onePod("q"))
	c.await("q", "ready", isReady)
	if n := r.Calls("CreateContainer"); n != 2 {
		t.Errorf("%d containers were made, want 2: the running one is to be left alone", n)
	}

	if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await("p", "gone", func(p *corev1.Pod) bool { return p == nil })
	if list, err = client.Runtime.ListContainers(t.Context(), &runtimeapi.ContainerFilter{LabelSelector: wantLabels}); err != nil ||
		len(list) != 0 {
		t.Errorf("left: %v, %v", list, err)
	}
}

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	return s
}

// TestStatusThatOthersChange: what the node says of a pod is said again when somebody else has changed it, as the controllers do when
// the node is silent; what others say beside it stays.
func TestStatusThatOthersChange(t *testing.T) {
	c, _ := newFake(t, nil)
	c.create(onePod("p"))
	pod := c.await("p", "ready", isReady).DeepCopy()
	pod.ResourceVersion = "7"
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == corev1.PodReady {
			pod.Status.Conditions[i].Status = corev1.ConditionFalse
		}
	}
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: "example.com/other", Status: corev1.ConditionTrue})
	pod.Status.NominatedNodeName = "n2"
	if err := c.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, pod.Namespace); err != nil {
		t.Fatal(err)
	}
	again := c.await("p", "ready again", isReady)
	if again.Status.NominatedNodeName != "n2" || !slices.ContainsFunc(again.Status.Conditions,
		func(c corev1.PodCondition) bool { return c.Type == "example.com/other" }) {
		t.Errorf("what others say is gone: %+v", again.Status)
	}
}

func TestBackOffDoubles(t *testing.T) {
	fake := &tellingClock{clocktesting.NewFakeClock(time.Now().Truncate(time.Second)), make(chan time.Duration, 1024)}
	c, r := newFake(t, fake)
	c.create(onePod("p"))
	c.await("p", "running", running(0))
	r.Exit("p", "c", 1)
	c.await("p", "started again at once", running(1))
	for i, wait := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
		r.Exit("p", "c", 1)
		pod := c.await("p", "backing off", waitingFor("CrashLoopBackOff"))
		if want := "back-off " + wait.String() + " restarting"; !strings.HasPrefix(pod.Status.ContainerStatuses[0].State.Waiting.Message, want) {
			t.Errorf("message %q, want %q", pod.Status.ContainerStatuses[0].State.Waiting.Message, want)
		}
		fake.pass(t, wait)
		c.await("p", "started again", running(int32(i)+2))
	}
}

func TestActiveDeadline(t *testing.T) {
	fake := &tellingClock{clocktesting.NewFakeClock(time.Now().Truncate(time.Second)), make(chan time.Duration, 1024)}
	c, _ := newFake(t, fake)
	p := onePod("p")
	p.Spec.ActiveDeadlineSeconds = new(int64(30))
	c.create(p)
	c.await("p", "running", running(0))
	fake.pass(t, 30*time.Second)
	pod := c.await("p", "ended", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if pod.Status.Reason != "DeadlineExceeded" || pod.Status.Message != "Pod was active on the node longer than the specified deadline" {
		t.Errorf("status: %+v", pod.Status)
	}
}

// TestActiveDeadlineBeforeStart: a pod whose deadline passes before its image is there has containers that ended.
func TestActiveDeadlineBeforeStart(t *testing.T) {
	fake := &tellingClock{clocktesting.NewFakeClock(time.Now().Truncate(time.Second)), make(chan time.Duration, 1024)}
	c, _ := newFake(t, fake)
	p := onePod("p")
	p.Spec.ActiveDeadlineSeconds = new(int64(9))
	p.Spec.Containers[0].Image = "example.org/none:1"
	c.createAs(p, corev1.PullNever)
	c.await("p", "waiting", waitingFor("ErrImageNeverPull"))
	fake.pass(t, 9*time.Second)
	pod := c.await("p", "ended", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodFailed && p.Status.ContainerStatuses[0].State.Waiting == nil
	})
	end := pod.Status.ContainerStatuses[0].State.Terminated
	if end == nil || end.Reason != "ContainerStatusUnknown" || end.ExitCode != 137 ||
		end.Message != "The container could not be located when the pod was terminated" {
		t.Errorf("the container's end: %+v", end)
	}
	if pod.Status.Reason != "DeadlineExceeded" {
		t.Errorf("status: %+v", pod.Status)
	}
}

func TestRuntimeRestartIsSurvived(t *testing.T) {
	c, r := newFake(t, nil)
	c.create(onePod("p"))
	c.await("p", "ready", isReady)
	r.Stop()
	c.create(onePod("q"))
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	c.await("q", "ready", isReady)
	pod := c.await("p", "ready", isReady)
	if pod.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the container was started again: %+v", pod.Status.ContainerStatuses)
	}
}

func TestLostSandboxIsReplaced(t *testing.T) {
	c, r := newFake(t, nil)
	c.create(onePod("p"))
	before := c.await("p", "ready", isReady)
	client, err := cri.Dial(t.Context(), r.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(t.Context())
	list, err := client.Runtime.ListPodSandbox(t.Context(), nil)
	if err != nil || len(list) != 1 {
		t.Fatalf("sandboxes: %v, %v", list, err)
	}
	if err := client.Runtime.StopPodSandbox(t.Context(), list[0].Id); err != nil {
		t.Fatal(err)
	}
	after := c.await("p", "in another sandbox", func(p *corev1.Pod) bool { return isReady(p) && p.Status.PodIP != before.Status.PodIP })
	if s := after.Status.ContainerStatuses[0]; s.RestartCount != 1 || s.LastTerminationState.Terminated == nil {
		t.Errorf("status: %+v", s)
	}
}

// TestClockSetBack has containers and a sandbox that are newer than others and say that they are older.
func TestClockSetBack(t *testing.T) {
	fake := &tellingClock{clocktesting.NewFakeClock(time.Now().Truncate(time.Second)), make(chan time.Duration, 1024)}
	c, r := newFake(t, fake)
	c.create(onePod("p"))
	before := c.await("p", "ready", isReady)
	client, err := cri.Dial(t.Context(), r.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(t.Context())

	fake.SetTime(fake.Now().Add(-time.Hour))
	list, err := client.Runtime.ListPodSandbox(t.Context(), nil)
	if err != nil || len(list) != 1 {
		t.Fatalf("sandboxes: %v, %v", list, err)
	}
	if err := client.Runtime.StopPodSandbox(t.Context(), list[0].Id); err != nil {
		t.Fatal(err)
	}
	after := c.await("p", "in another sandbox", func(p *corev1.Pod) bool {
		return running(1)(p) && p.Status.PodIP != "" && p.Status.PodIP != before.Status.PodIP
	})
	if s := after.Status.ContainerStatuses[0]; s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ExitCode != 137 {
		t.Errorf("status: %+v", s)
	}
	// Nothing is made again for it, also by a node that knows no more than the runtime does.
	c.stop()
	c.start()
	c.create(onePod("q"))
	c.await("q", "ready", isReady)
	c.await("p", "ready", isReady)
	if n := r.Calls("RunPodSandbox"); n != 3 {
		t.Errorf("%d sandboxes were made, want 3", n)
	}
	if n := r.Calls("CreateContainer"); n != 3 {
		t.Errorf("%d containers were made, want 3", n)
	}
}

func TestOrphanIsRemoved(t *testing.T) {
	c, r := newFake(t, nil)
	c.create(onePod("p"))
	c.await("p", "ready", isReady)
	c.stop()
	zero := int64(0)
	if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	removed := make(chan struct{}, 1)
	r.Fault("RemovePodSandbox", func() error { removed <- struct{}{}; return nil })
	c.start()
	select {
	case <-removed:
	case <-time.After(20 * time.Second):
		t.Error("a pod that the API server does not know goes on running")
	}
}

func TestImagePolicies(t *testing.T) {
	c, r := newFake(t, nil)
	p := onePod("never")
	p.Spec.Containers[0].Image = "example.org/none:1"
	never := p.DeepCopy()
	c.createAs(never, corev1.PullNever)
	pod := c.await("never", "refused", waitingFor("ErrImageNeverPull"))
	if want := `Container image "example.org/none:1" is not present with pull policy of Never`; pod.Status.ContainerStatuses[0].State.Waiting.Message != want {
		t.Errorf("message %q", pod.Status.ContainerStatuses[0].State.Waiting.Message)
	}
	r.Pullable("example.org/some:latest")
	p = onePod("some")
	p.Spec.Containers[0].Image = "example.org/some"
	c.createAs(p, corev1.PullAlways)
	c.await("some", "ready", isReady)
	c.awaitEvent("some", `Pulling: Pulling image "example.org/some"`)
	c.awaitEvent("some", `Pulled: Successfully pulled image "example.org/some" in `)
}

func TestPodThatDoesNotFitIsRejected(t *testing.T) {
	c, r := newFake(t, nil)
	p := onePod("big")
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000")}
	c.create(p)
	pod := c.await("big", "rejected", func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodFailed })
	if pod.Status.Reason != "OutOfcpu" || !strings.HasPrefix(pod.Status.Message,
		"Pod was rejected: Node didn't have enough resource: cpu, requested: 1000000, used: 0, capacity: ") {
		t.Errorf("status: %+v", pod.Status)
	}
	if n := r.Calls("RunPodSandbox"); n != 0 {
		t.Errorf("%d sandboxes were made", n)
	}
}

func TestReadinessAndLiveness(t *testing.T) {
	c, r := newFake(t, nil)
	p := onePod("p")
	probe := func(word string) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{word}}}, PeriodSeconds: 1,
			FailureThreshold: 1, TimeoutSeconds: 1}
	}
	p.Spec.Containers[0].ReadinessProbe, p.Spec.Containers[0].LivenessProbe = probe("ready"), probe("live")
	answer := make(chan map[string]int32, 1)
	answer <- map[string]int32{"ready": 1}
	r.OnExec(func(command []string) (string, int32) {
		codes := <-answer
		defer func() { answer <- codes }()
		return "said " + command[0], codes[command[0]]
	})
	set := func(word string, code int32) {
		codes := <-answer
		codes[word] = code
		answer <- codes
	}
	c.create(p)
	pod := c.await("p", "running", running(0))
	if isReady(pod) {
		t.Error("ready before its probe says so")
	}
	set("ready", 0)
	c.await("p", "ready", isReady)
	set("live", 1)
	c.await("p", "started again", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount > 0 })
}

func TestNodeIsRegistered(t *testing.T) {
	fake := &tellingClock{clocktesting.NewFakeClock(time.Now().Truncate(time.Second)), make(chan time.Duration, 1024)}
	c, _ := newFake(t, fake)
	node, err := c.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	conditions := map[corev1.NodeConditionType]corev1.ConditionStatus{}
	for _, c := range node.Status.Conditions {
		conditions[c.Type] = c.Status
	}
	want := map[corev1.NodeConditionType]corev1.ConditionStatus{
		corev1.NodeReady: corev1.ConditionTrue, corev1.NodeMemoryPressure: corev1.ConditionFalse, corev1.NodeDiskPressure: corev1.ConditionFalse,
		corev1.NodePIDPressure: corev1.ConditionFalse,
	}
	for kind, status := range want {
		if kind == corev1.NodeReady && conditions[kind] != status || conditions[kind] == "" {
			t.Errorf("condition %s is %q, want %s", kind, conditions[kind], status)
		}
	}
	if node.Labels[corev1.LabelHostname] != "n1" || node.Status.NodeInfo.ContainerRuntimeVersion != "fake://1.0" ||
		len(node.Status.Images) != 1 || node.Status.Addresses[0].Address != "192.168.1.5" {
		t.Errorf("node: %+v", node)
	}

	w, err := c.client.CoordinationV1().Leases("kube-node-lease").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	begin := fake.Now()
	if !fake.HasWaiters() {
		t.Fatal("nobody waits")
	}
	// Who waits may be another than the heartbeat, which then waits from a later time on.
	again, limit := time.NewTicker(time.Second), time.After(20*time.Second)
	defer again.Stop()
	fake.Step(10 * time.Second)
	for {
		select {
		case <-again.C:
			fake.Step(10 * time.Second)
		case e := <-w.ResultChan():
			lease := e.Object.(*coordinationv1.Lease)
			if *lease.Spec.HolderIdentity != "n1" || *lease.Spec.LeaseDurationSeconds != 40 {
				t.Errorf("lease: %+v", lease.Spec)
			}
			if after := lease.Spec.RenewTime.Sub(begin); after > 0 && after%(10*time.Second) == 0 {
				return
			}
		case <-limit:
			t.Fatal("the lease is not renewed")
		}
	}
}

func TestPodThatAsksForWhatIsNotThereIsRejected(t *testing.T) {
	c, r := newFake(t, nil)
	for name, spec := range map[string]struct {
		change  func(*corev1.Pod)
		message string
	}{
		"PodOSNotSupported": {func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} },
			"Pod was rejected: Failed to admit pod as the OS field doesn't match node OS"},
		"SupplementalGroupsPolicyNotSupported": {func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{SupplementalGroupsPolicy: new(corev1.SupplementalGroupsPolicyStrict)}
		}, "Pod was rejected: SupplementalGroupsPolicy=Strict is not supported in this node"},
	} {
		p := onePod(strings.ToLower(name))
		spec.change(p)
		c.create(p)
		pod := c.await(p.Name, "rejected", func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodFailed })
		if pod.Status.Reason != name || pod.Status.Message != spec.message {
			t.Errorf("status: %+v", pod.Status)
		}
	}
	p := onePod("recursive")
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", ReadOnly: true,
		RecursiveReadOnly: new(corev1.RecursiveReadOnlyEnabled)}}
	c.create(p)
	pod := c.await("recursive", "held", waitingFor("CreateContainerConfigError"))
	if got, want := pod.Status.ContainerStatuses[0].State.Waiting.Message,
		`volume "v" requested recursive read-only mode, but it is not supported by the runtime`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if n := r.Calls("CreateContainer"); n != 0 {
		t.Errorf("%d containers were made", n)
	}
}
