// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podadmission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/sysctls"
)

// node is a node with pods.
type node struct {
	pods    []*corev1.Pod
	counted []types.UID
	shown   *corev1.Node // by the informer
	newest  *corev1.Node // in the API server; nil: as shown
	fetches int
	refuses string // of the shutdown
	starves string // of the eviction
	killed  []string
	awaited []*corev1.Pod
}

func (n *node) AdmittedPods() []*corev1.Pod { return slices.Clone(n.pods) }
func (n *node) CountPod(pod types.UID)      { n.counted = append(n.counted, pod) }
func (n *node) Node() *corev1.Node          { return n.shown }
func (n *node) Refusal() string             { return n.refuses }
func (n *node) KillPod(p types.UID, e podspec.End) {
	n.killed = append(n.killed, fmt.Sprintf("%s %+v", p, e))
}

func (n *node) AwaitEnd(_ context.Context, pods []*corev1.Pod) error {
	n.awaited = append(n.awaited, pods...)
	return nil
}

func (n *node) FetchNode(context.Context) (*corev1.Node, error) {
	n.fetches++
	if n.newest == nil {
		return nil, errors.New("no API server")
	}
	return n.newest, nil
}

// starvation is the eviction's side.
type starvation struct{ *node }

func (s starvation) Refusal(*corev1.Pod) string { return s.starves }

// manager is the admission of a node with the resources.
func manager(t *testing.T, n *node, resources corev1.ResourceList) (*Manager, *record.FakeRecorder) {
	t.Helper()
	list, err := sysctls.New("6.1.0", nil)
	if err != nil {
		t.Fatal(err)
	}
	if n.shown == nil {
		n.shown = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		n.shown.Status.Allocatable = corev1.ResourceList{"pods": resource.MustParse("10")}
		maps.Copy(n.shown.Status.Allocatable, resources)
	}
	events := record.NewFakeRecorder(10)
	return New(Config{
		Pods: n, Node: n, Killer: n, Shutdown: n, Eviction: starvation{n}, Sysctls: list, Events: events, Metrics: NewMetrics(),
	}), events
}

func asking(uid types.UID, list corev1.ResourceList) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: list}}},
	}}
}

func one(name corev1.ResourceName, much string) corev1.ResourceList {
	return corev1.ResourceList{name: resource.MustParse(much)}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Whatever else is wrong, the first of kubelet's checks says what is.
func TestOrderOfChecks(t *testing.T) {
	n := &node{starves: "The node was low.", refuses: "the end"}
	m, _ := manager(t, n, nil)
	n.shown.Spec.Taints = []corev1.Taint{{Key: "gone", Effect: "NoExecute"}, {Key: "full", Effect: "NoSchedule"}}
	n.shown.Status.Allocatable["pods"] = resource.MustParse("0")
	n.shown.Status.Allocatable["cpu"] = resource.MustParse("1")
	other := asking("other", nil)
	other.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
	n.pods = []*corev1.Pod{other}
	pod := asking("p", one("cpu", "2"))
	pod.Labels = map[string]string{corev1.LabelOSStable: "windows"}
	pod.Spec.OS = &corev1.PodOS{Name: corev1.Windows}
	pod.Spec.NodeName = "n2"
	pod.Spec.NodeSelector = map[string]string{"color": "blue"}
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80, HostIP: "10.0.0.1"}}
	pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault},
	}
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{
		SupplementalGroupsPolicy: new(corev1.SupplementalGroupsPolicyStrict), Sysctls: []corev1.Sysctl{{Name: "kernel.msgmax", Value: "1"}},
	}
	for _, step := range []struct {
		want string
		mend func()
	}{
		{"Evicted: The node was low.", func() { n.starves = "" }},
		{`SysctlForbidden: `, func() { pod.Spec.SecurityContext.Sysctls = nil }},
		{"PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label", func() {
			pod.Labels = nil
		}},
		{"PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS", func() { pod.Spec.OS = nil }},
		{"SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not supported in this node", func() {
			n.shown.Status.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: new(true)}
		}},
		{"OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 1, capacity: 0", func() {
			n.shown.Status.Allocatable["pods"] = resource.MustParse("10")
		}},
		{"OutOfcpu: Node didn't have enough resource: cpu, requested: 2000, used: 0, capacity: 1000", func() {
			n.shown.Status.Allocatable["cpu"] = resource.MustParse("2")
		}},
		{"NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector", func() {
			n.shown.Labels = map[string]string{"color": "blue"}
		}},
		{"NodeName: Predicate NodeName failed: node(s) didn't match the requested node name", func() { pod.Spec.NodeName = "n1" }},
		{"NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports", func() { n.pods = nil }},
		{"TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate", func() {
			pod.Spec.Tolerations = []corev1.Toleration{{Key: "gone", Operator: corev1.TolerationOpExists}}
		}},
		{"AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host", func() { m.AppArmor = true }},
		{"NodeShutdown: the end", func() { n.refuses = "" }},
		{"", nil},
	} {
		err := m.Admit(t.Context(), pod)
		if got := text(err); !strings.HasPrefix(got, step.want) || step.want == "" && got != "" {
			t.Fatalf("%q\nnot %q", got, step.want)
		}
		if err != nil && len(n.counted) > 0 {
			t.Errorf("%s: the pod was counted", step.want)
		}
		if step.mend != nil {
			step.mend()
		}
	}
	if !slices.Equal(n.counted, []types.UID{"p"}) {
		t.Errorf("counted: %v", n.counted)
	}
}

// A pod that needs a feature which the node does not declare is refused.
func TestUndeclaredFeatures(t *testing.T) {
	n := &node{}
	m, _ := manager(t, n, nil)
	pod := asking("p", nil)
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{
		Action: corev1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
			Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{1},
		},
	}}
	const want = "PodFeatureUnsupported: Pod requires node features that are not available: RestartAllContainersOnContainerExits"
	if got := text(m.Admit(t.Context(), pod)); got != want {
		t.Errorf("%q\nnot %q", got, want)
	}
	m.Features = []string{"RestartAllContainersOnContainerExits"}
	if err := m.Admit(t.Context(), pod); err != nil {
		t.Error(err)
	}
}

// The Node that the informer shows may be older than the pod: before a pod is refused for the Node's labels alone, the API server is asked.
func TestLabelsAreFetched(t *testing.T) {
	n := &node{}
	m, _ := manager(t, n, nil)
	pod := asking("p", nil)
	pod.Spec.NodeSelector = map[string]string{"color": "blue"}
	if err := m.Admit(t.Context(), pod); err == nil || n.fetches != 1 {
		t.Errorf("%v after %d fetches", err, n.fetches)
	}
	n.newest = n.shown.DeepCopy()
	n.newest.Labels = map[string]string{"color": "blue"}
	if err := m.Admit(t.Context(), pod); err != nil {
		t.Error(err)
	}
	// What else is wrong is wrong on any Node.
	n.fetches = 0
	pod.Spec.NodeName = "n2"
	if err := m.Admit(t.Context(), pod); err == nil || n.fetches != 0 {
		t.Errorf("%v after %d fetches", err, n.fetches)
	}
}

func TestHostPorts(t *testing.T) {
	with := func(uid types.UID, ports ...corev1.ContainerPort) *corev1.Pod {
		p := asking(uid, nil)
		p.Spec.Containers[0].Ports = ports
		return p
	}
	sidecar := asking("sidecar", nil)
	sidecar.Spec.InitContainers = []corev1.Container{
		{RestartPolicy: new(corev1.ContainerRestartPolicyAlways), Ports: []corev1.ContainerPort{{HostPort: 90}}},
		{Ports: []corev1.ContainerPort{{HostPort: 91}}}, // over before the pod runs
	}
	n := &node{pods: []*corev1.Pod{
		with("web", corev1.ContainerPort{HostPort: 80, HostIP: "10.0.0.1"}, corev1.ContainerPort{HostPort: 53, Protocol: "UDP"}),
		sidecar,
	}}
	m, _ := manager(t, n, nil)
	for name, want := range map[string]struct {
		port  corev1.ContainerPort
		taken bool
	}{
		"no port of the host":      {port: corev1.ContainerPort{ContainerPort: 80}},
		"the same":                 {corev1.ContainerPort{HostPort: 80, HostIP: "10.0.0.1", Protocol: "TCP"}, true},
		"at another address":       {port: corev1.ContainerPort{HostPort: 80, HostIP: "10.0.0.2"}},
		"at all addresses":         {corev1.ContainerPort{HostPort: 80}, true},
		"theirs is at all":         {corev1.ContainerPort{HostPort: 53, HostIP: "10.0.0.9", Protocol: "UDP"}, true},
		"of another protocol":      {port: corev1.ContainerPort{HostPort: 53}},
		"a sidecar's":              {corev1.ContainerPort{HostPort: 90, HostIP: "0.0.0.0"}, true},
		"of an init container":     {port: corev1.ContainerPort{HostPort: 91}},
		"another port of the host": {port: corev1.ContainerPort{HostPort: 81}},
	} {
		if err := m.Admit(t.Context(), with("p", want.port)); (err != nil) != want.taken {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := m.Admit(t.Context(), n.pods[0]); err != nil {
		t.Errorf("a pod stands in its own way: %v", err)
	}
}

// What does not fit is refused in kubelet's words, huge pages, disk and extended resources too.
func TestResources(t *testing.T) {
	n := &node{}
	m, _ := manager(t, n, corev1.ResourceList{
		"cpu": resource.MustParse("2"), "memory": resource.MustParse("4Gi"), "ephemeral-storage": resource.MustParse("1Gi"),
		"hugepages-2Mi": resource.MustParse("8Mi"), "example.com/dongle": resource.MustParse("3"),
	})
	n.pods = []*corev1.Pod{asking("other", corev1.ResourceList{
		"hugepages-2Mi": resource.MustParse("6Mi"), "example.com/dongle": resource.MustParse("2"),
	})}
	overhead := asking("", one("cpu", "1500m"))
	overhead.Spec.Overhead = one("cpu", "600m")
	level := asking("", one("cpu", "1"))
	level.Spec.Resources = &corev1.ResourceRequirements{Requests: one("cpu", "3")}
	claimed := asking("", one("example.com/dongle", "2"))
	mapping := []corev1.ContainerExtendedResourceRequest{{ContainerName: "c", ResourceName: "example.com/dongle"}}
	claimed.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{RequestMappings: mapping}
	short := func(name string, requested, used, capacity int64) string {
		const form = "OutOf%[1]s: Node didn't have enough resource: %[1]s, requested: %[2]d, used: %[3]d, capacity: %[4]d"
		return fmt.Sprintf(form, name, requested, used, capacity)
	}
	several := one("cpu", "3")
	several["memory"], several["example.com/dongle"] = resource.MustParse("5Gi"), resource.MustParse("4")
	for name, want := range map[string]struct {
		pod *corev1.Pod
		err string
	}{
		"room":          {pod: asking("", one("hugepages-2Mi", "2Mi"))},
		"pages":         {asking("", one("hugepages-2Mi", "4Mi")), short("hugepages-2Mi", 4<<20, 6<<20, 8<<20)},
		"another size":  {asking("", one("hugepages-1Gi", "1Gi")), short("hugepages-1Gi", 1<<30, 0, 0)},
		"disk":          {asking("", one("ephemeral-storage", "2Gi")), short("ephemeral-storage", 2<<30, 0, 1<<30)},
		"overhead":      {overhead, short("cpu", 2100, 0, 2000)},
		"the pod's own": {level, short("cpu", 3000, 0, 2000)},
		"a dongle":      {pod: asking("", one("example.com/dongle", "1"))},
		"two dongles":   {asking("", one("example.com/dongle", "2")), short("example.com/dongle", 2, 2, 3)},
		"of a claim":    {pod: claimed},
		"the cluster's": {pod: asking("", one("example.com/license", "5"))},
		"native":        {asking("", one("kubernetes.io/batch", "5")), short("kubernetes.io/batch", 5, 0, 0)},
		"cpu first":     {asking("", several), short("cpu", 3000, 0, 2000)},
	} {
		if got := text(m.Admit(t.Context(), want.pod)); got != want.err {
			t.Errorf("%s: %s\nnot %s", name, got, want.err)
		}
	}
}

// Static pods stay where the node's taints expel others.
func TestStaticPodsHaveNoTaints(t *testing.T) {
	n := &node{}
	m, _ := manager(t, n, nil)
	n.shown.Spec.Taints = []corev1.Taint{{Key: "gone", Effect: corev1.TaintEffectNoExecute}}
	pod := asking("p", nil)
	pod.Annotations = map[string]string{podspec.ConfigSource: "file"}
	if err := m.Admit(t.Context(), pod); err != nil {
		t.Error(err)
	}
	delete(pod.Annotations, podspec.ConfigSource)
	if err := m.Admit(t.Context(), pod); err == nil {
		t.Error("a pod came in spite of a taint")
	}
}

func TestPreemption(t *testing.T) {
	cpu := func(uid types.UID, much string) *corev1.Pod { return asking(uid, one("cpu", much)) }
	guaranteed := func(uid types.UID, much string) *corev1.Pod {
		p := cpu(uid, much)
		list := corev1.ResourceList{"cpu": resource.MustParse(much), "memory": resource.MustParse("1Mi")}
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
		return p
	}
	critical := func(p *corev1.Pod) *corev1.Pod {
		p.Spec.Priority = new(int32(2_000_000_000))
		return p
	}
	prior := func(p *corev1.Pod, priority int32) *corev1.Pod {
		p.Spec.Priority = &priority
		return p
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		pods []*corev1.Pod
		max  string // pods
		want []types.UID
		err  string
	}{
		"nobody, if there is room": {pod: critical(cpu("p", "1")), pods: []*corev1.Pod{cpu("a", "3")}},
		"the one that frees enough, not those that free more": {
			pod: critical(cpu("p", "2")), pods: []*corev1.Pod{cpu("a", "500m"), cpu("b", "1"), cpu("c", "2500m")}, want: []types.UID{"c"},
		},
		"the smallest of those that free enough": {
			pod: critical(cpu("p", "1")), pods: []*corev1.Pod{cpu("a", "500m"), cpu("b", "1"), cpu("c", "2500m")}, want: []types.UID{"b"},
		},
		"burstable ones before guaranteed ones": {
			pod: critical(cpu("p", "1")), pods: []*corev1.Pod{guaranteed("a", "2"), cpu("b", "2")}, want: []types.UID{"b"},
		},
		"guaranteed ones too": {
			pod: critical(cpu("p", "3")), pods: []*corev1.Pod{guaranteed("a", "2"), cpu("b", "2")}, want: []types.UID{"b", "a"},
		},
		"one of best effort, for a place": {
			pod: critical(asking("p", nil)), pods: []*corev1.Pod{guaranteed("a", "1"), asking("b", nil)}, max: "2", want: []types.UID{"b"},
		},
		"not critical ones": {
			pod: critical(cpu("p", "2")), pods: []*corev1.Pod{critical(cpu("a", "4"))},
			err: "UnexpectedAdmissionError: Unexpected error while attempting to recover from admission failure: preemption: " +
				"error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 2000), ]",
		},
		"less critical ones": {
			pod: prior(cpu("p", "2"), 2_000_001_000), pods: []*corev1.Pod{critical(cpu("a", "4"))}, want: []types.UID{"a"},
		},
		"nobody for another pod": {
			pod: prior(cpu("p", "2"), 1000), pods: []*corev1.Pod{cpu("a", "4")},
			err: "OutOfcpu: Node didn't have enough resource: cpu, requested: 2000, used: 4000, capacity: 4000",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := &node{pods: c.pods}
			m, events := manager(t, n, one("cpu", "4"))
			if c.max != "" {
				n.shown.Status.Allocatable["pods"] = resource.MustParse(c.max)
			}
			if got := text(m.Admit(t.Context(), c.pod)); got != c.err {
				t.Errorf("%s\nnot %s", got, c.err)
			}
			var got []types.UID
			for _, pod := range n.awaited {
				got = append(got, pod.UID)
			}
			if !slices.Equal(got, c.want) || len(n.killed) != len(c.want) || len(events.Events) != len(c.want) {
				t.Errorf("%v, not %v; killed %v, %d events", got, c.want, n.killed, len(events.Events))
			}
			for _, killed := range n.killed {
				if !strings.Contains(killed, "{Reason:Preempting Message:Preempted in order to admit critical pod Grace:30 "+
					"Disruption:Pod was preempted by Kubelet to accommodate a critical pod.}") {
					t.Error(killed)
				}
			}
		})
	}
}

// A critical pod that does not fit for another reason ends nobody.
func TestNoVainPreemption(t *testing.T) {
	n := &node{pods: []*corev1.Pod{asking("other", one("cpu", "4"))}}
	m, _ := manager(t, n, one("cpu", "4"))
	pod := asking("p", one("cpu", "1"))
	pod.Annotations, pod.Spec.NodeName = map[string]string{podspec.ConfigSource: "file"}, "n2"
	if err := m.Admit(t.Context(), pod); !strings.HasPrefix(text(err), "NodeName: ") || len(n.killed) > 0 {
		t.Errorf("%v, killed %v", err, n.killed)
	}
}
