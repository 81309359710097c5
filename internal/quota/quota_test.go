// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package quota_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/quota"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// around is what evaluators ask.
type around struct {
	classes []*resourcev1.DeviceClass
	pod     *corev1.Pod
	claims  []*resourcev1.ResourceClaim
}

func (a *around) Now() time.Time { return noon }
func (a *around) DeviceClasses(context.Context) ([]*resourcev1.DeviceClass, error) {
	return a.classes, nil
}

func (a *around) Pod(_ context.Context, _, name string) (*corev1.Pod, error) {
	if a.pod == nil || a.pod.Name != name {
		return nil, nil
	}
	return a.pod, nil
}

func (a *around) DeviceClaims(context.Context, string) ([]*resourcev1.ResourceClaim, error) {
	return a.claims, nil
}

func decode[T any](t *testing.T, text string) *T {
	t.Helper()
	obj := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), obj); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return obj
}

func show(list corev1.ResourceList) string {
	var parts []string
	for name, q := range list {
		parts = append(parts, string(name)+"="+q.String())
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// TestUsage is what objects use, worked out by hand.
func TestUsage(t *testing.T) {
	gpu := "example.com/gpu"
	cluster := &around{classes: []*resourcev1.DeviceClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: &gpu}},
		{ObjectMeta: metav1.ObjectMeta{Name: "nic"}},
	}}
	for _, c := range []struct{ name, resource, object, want string }{
		{"a pod that asks for nothing", "pods", `{spec: {containers: [{name: a}]}}`, "count/pods=1 pods=1"},
		{
			"requests and limits of two containers", "pods",
			`{spec: {containers: [{name: a, resources: {requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 2}}}, {name: b, resources: {requests: {cpu: 500m, ephemeral-storage: 1Mi}, limits: {memory: 3Gi, ephemeral-storage: 2Mi}}}]}}`,
			"count/pods=1 cpu=1500m ephemeral-storage=1Mi limits.cpu=2 limits.ephemeral-storage=2Mi limits.memory=3Gi memory=1Gi pods=1 requests.cpu=1500m requests.ephemeral-storage=1Mi requests.memory=1Gi",
		},
		{
			"initialising takes more; a sidecar stays", "pods",
			`{spec: {containers: [{name: a, resources: {requests: {cpu: 1}}}], initContainers: [{name: s, restartPolicy: Always, resources: {requests: {cpu: 1}}}, {name: i, resources: {requests: {cpu: 3}}}]}}`,
			"count/pods=1 cpu=4 pods=1 requests.cpu=4",
		},
		{
			"overhead counts", "pods", `{spec: {overhead: {cpu: 250m}, containers: [{name: a, resources: {requests: {cpu: 1}}}]}}`,
			"count/pods=1 cpu=1250m pods=1 requests.cpu=1250m",
		},
		{
			"what the pod says as a whole", "pods",
			`{spec: {resources: {requests: {cpu: 3}}, containers: [{name: a, resources: {requests: {cpu: 1, memory: 1Mi}}}]}}`,
			"count/pods=1 cpu=3 memory=1Mi pods=1 requests.cpu=3 requests.memory=1Mi",
		},
		{
			"extended resources and huge pages", "pods",
			`{spec: {containers: [{name: a, resources: {requests: {example.com/gpu: 2, hugepages-2Mi: 4Mi}, limits: {example.com/gpu: 2}}}]}}`,
			"count/pods=1 hugepages-2Mi=4Mi pods=1 requests.example.com/gpu=2 requests.hugepages-2Mi=4Mi",
		},
		{"a pod that has ended", "pods", `{spec: {containers: [{name: a, resources: {requests: {cpu: 1}}}]}, status: {phase: Failed}}`,
			"count/pods=1"},
		{
			"a pod whose grace is over, but not twice", "pods",
			`{metadata: {deletionTimestamp: "2026-01-01T11:59:45Z", deletionGracePeriodSeconds: 30}, spec: {containers: [{name: a}]}}`,
			"count/pods=1 pods=1",
		},
		{
			"a pod whose grace is over twice", "pods",
			`{metadata: {deletionTimestamp: "2026-01-01T11:59:29Z", deletionGracePeriodSeconds: 30}, spec: {containers: [{name: a}]}}`,
			"count/pods=1",
		},
		{
			"a pod is charged what it was given while it is resized", "pods",
			`{spec: {containers: [{name: a, resources: {requests: {cpu: 1}}}]}, status: {containerStatuses: [{name: a, image: "", imageID: "", lastState: {}, ready: true, restartCount: 0, state: {}, allocatedResources: {cpu: 2}, resources: {requests: {cpu: 2}}}]}}`,
			"count/pods=1 cpu=2 pods=1 requests.cpu=2",
		},
		{"a service", "services", `{spec: {ports: [{port: 1}]}}`, "count/services=1 services.loadbalancers=0 services.nodeports=0 services=1"},
		{"node ports", "services", `{spec: {type: NodePort, ports: [{port: 1}, {port: 2}]}}`,
			"count/services=1 services.loadbalancers=0 services.nodeports=2 services=1"},
		{"a load balancer", "services", `{spec: {type: LoadBalancer, ports: [{port: 1}]}}`,
			"count/services=1 services.loadbalancers=1 services.nodeports=1 services=1"},
		{
			"a load balancer with the node ports that it asks for", "services",
			`{spec: {type: LoadBalancer, allocateLoadBalancerNodePorts: false, ports: [{port: 1}, {port: 2, nodePort: 30000}]}}`,
			"count/services=1 services.loadbalancers=1 services.nodeports=1 services=1",
		},
		{
			"a claim of a class", "persistentvolumeclaims", `{spec: {storageClassName: fast, resources: {requests: {storage: 1Gi}}}}`,
			"count/persistentvolumeclaims=1 fast.storageclass.storage.k8s.io/persistentvolumeclaims=1 fast.storageclass.storage.k8s.io/requests.storage=1Gi persistentvolumeclaims=1 requests.storage=1Gi",
		},
		{
			"a claim by annotation, of parts of a byte", "persistentvolumeclaims",
			`{metadata: {annotations: {volume.beta.kubernetes.io/storage-class: slow}}, spec: {resources: {requests: {storage: 1500m}}}}`,
			"count/persistentvolumeclaims=1 persistentvolumeclaims=1 requests.storage=2 slow.storageclass.storage.k8s.io/persistentvolumeclaims=1 slow.storageclass.storage.k8s.io/requests.storage=2",
		},
		{
			"a claim that was given more than it asks for now", "persistentvolumeclaims",
			`{spec: {resources: {requests: {storage: 1Gi}}}, status: {allocatedResources: {storage: 3Gi}}}`,
			"count/persistentvolumeclaims=1 persistentvolumeclaims=1 requests.storage=3Gi",
		},
		{
			"devices, exactly, all, and one of several", "resourceclaims.resource.k8s.io",
			`{spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu, allocationMode: ExactCount, count: 2}}, {name: b, exactly: {deviceClassName: nic, allocationMode: All}},
			 {name: c, firstAvailable: [{name: x, deviceClassName: gpu, allocationMode: ExactCount, count: 1}, {name: y, deviceClassName: gpu, allocationMode: ExactCount, count: 3}, {name: z, deviceClassName: nic, allocationMode: ExactCount, count: 1}]}]}}}`,
			"count/resourceclaims.resource.k8s.io=1 gpu.deviceclass.resource.k8s.io/devices=5 nic.deviceclass.resource.k8s.io/devices=33 " +
				"requests.deviceclass.resource.kubernetes.io/gpu=5 requests.deviceclass.resource.kubernetes.io/nic=33 requests.example.com/gpu=5",
		},
		{"a secret", "secrets", `{}`, "count/secrets=1 secrets=1"},
		{"a deployment", "deployments.apps", `{}`, "count/deployments.apps=1"},
	} {
		r := schema.ParseGroupResource(c.resource)
		var obj runtime.Object
		switch r.Resource {
		case "pods":
			obj = decode[corev1.Pod](t, c.object)
		case "services":
			obj = decode[corev1.Service](t, c.object)
		case "persistentvolumeclaims":
			obj = decode[corev1.PersistentVolumeClaim](t, c.object)
		case "resourceclaims":
			obj = decode[resourcev1.ResourceClaim](t, c.object)
		default:
			obj = decode[corev1.Secret](t, c.object)
		}
		got, err := quota.For(r, cluster).Usage(t.Context(), obj)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if show(got) != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, show(got), c.want)
		}
		if _, err := quota.For(r, cluster).Usage(t.Context(), &corev1.Node{}); err == nil && !quota.Counts(quota.For(r, cluster)) {
			t.Errorf("%s: a node was measured", c.name)
		}
	}
}

// TestClaimOfPod: a claim that was made for a pod's extended resources costs no more than the pod did not pay already.
func TestClaimOfPod(t *testing.T) {
	gpu, yes := "example.com/gpu", true
	claim := func(name string) *resourcev1.ResourceClaim {
		c := decode[resourcev1.ResourceClaim](t,
			`{spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu, allocationMode: ExactCount, count: 3}}]}}}`)
		c.Name, c.Annotations = name, map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u", Controller: &yes}}
		return c
	}
	pod := decode[corev1.Pod](t, `{metadata: {name: p, uid: u}, spec: {containers: [{name: a, resources: {requests: {example.com/gpu: 2}}}]}}`)
	for _, c := range []struct {
		name   string
		change func(*around, *corev1.Pod)
		want   int64
	}{
		{"the pod paid for two of three", func(*around, *corev1.Pod) {}, 1},
		{"there is no pod", func(a *around, _ *corev1.Pod) { a.pod = nil }, 3},
		{"another pod of the name", func(_ *around, p *corev1.Pod) { p.UID = types.UID("v") }, 3},
		{"the pod names the claim", func(_ *around, p *corev1.Pod) {
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "b"}
		}, 1},
		{"the pod names another", func(_ *around, p *corev1.Pod) {
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "a"}
		}, 3},
		{"an earlier claim of the same pod", func(a *around, _ *corev1.Pod) { a.claims = append(a.claims, claim("a")) }, 3},
		{"a later one", func(a *around, _ *corev1.Pod) { a.claims = append(a.claims, claim("c")) }, 1},
	} {
		p := pod.DeepCopy()
		a := &around{pod: p, classes: []*resourcev1.DeviceClass{{ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
			Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: &gpu}}}}
		a.claims = []*resourcev1.ResourceClaim{claim("b")}
		c.change(a, p)
		used, err := quota.For(schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}, a).Usage(t.Context(), claim("b"))
		if err != nil {
			t.Fatal(err)
		}
		if n := used["requests.example.com/gpu"]; n.Value() != c.want {
			t.Errorf("%s: charged %s, want %d", c.name, n.String(), c.want)
		}
	}
}

// TestScopes is which objects are in which scopes.
func TestScopes(t *testing.T) {
	pods := quota.For(schema.GroupResource{Resource: "pods"}, &around{})
	claims := quota.For(schema.GroupResource{Resource: "persistentvolumeclaims"}, &around{})
	plain := `{spec: {containers: [{name: a}]}}`
	for _, c := range []struct {
		scope, object string
		want          bool
	}{
		{"{scopeName: BestEffort, operator: Exists}", plain, true},
		{"{scopeName: NotBestEffort, operator: Exists}", plain, false},
		{"{scopeName: NotBestEffort, operator: Exists}", `{spec: {containers: [{name: a, resources: {limits: {memory: 1}}}]}}`, true},
		{"{scopeName: BestEffort, operator: Exists}", `{spec: {containers: [{name: a, resources: {limits: {example.com/gpu: 1}}}]}}`, true},
		{"{scopeName: BestEffort, operator: Exists}", `{spec: {resources: {requests: {cpu: 1}}, containers: [{name: a}]}}`, false},
		{"{scopeName: BestEffort, operator: Exists}", `{spec: {containers: [{name: a}]}, status: {qosClass: Burstable}}`, false},
		{"{scopeName: Terminating, operator: Exists}", plain, false},
		{"{scopeName: Terminating, operator: Exists}", `{spec: {activeDeadlineSeconds: 0, containers: []}}`, true},
		{"{scopeName: NotTerminating, operator: Exists}", plain, true},
		{"{scopeName: PriorityClass, operator: Exists}", plain, false},
		{"{scopeName: PriorityClass, operator: DoesNotExist}", plain, true},
		{"{scopeName: PriorityClass, operator: In, values: [gold]}", plain, false},
		{"{scopeName: PriorityClass, operator: NotIn, values: [gold]}", plain, true},
		{"{scopeName: PriorityClass, operator: In, values: [iron, gold]}", `{spec: {priorityClassName: gold, containers: []}}`, true},
		{"{scopeName: PriorityClass, operator: NotIn, values: [gold]}", `{spec: {priorityClassName: gold, containers: []}}`, false},
		{"{scopeName: CrossNamespacePodAffinity, operator: Exists}",
			`{spec: {containers: [], affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: z}]}}}}`, false},
		{"{scopeName: CrossNamespacePodAffinity, operator: Exists}",
			`{spec: {containers: [], affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: z, namespaceSelector: {}}}]}}}}`, true},
		{"{scopeName: VolumeAttributesClass, operator: Exists}", plain, false},
	} {
		scope := decode[corev1.ScopedResourceSelectorRequirement](t, c.scope)
		got, err := pods.InScope(*scope, decode[corev1.Pod](t, c.object))
		if err != nil || got != c.want {
			t.Errorf("pod %s in %s: %v, %v, want %v", c.object, c.scope, got, err, c.want)
		}
	}
	for _, c := range []struct {
		scope, object string
		want          bool
	}{
		{"{scopeName: VolumeAttributesClass, operator: Exists}", `{}`, false},
		{"{scopeName: VolumeAttributesClass, operator: NotIn, values: [hot]}", `{}`, true},
		{"{scopeName: VolumeAttributesClass, operator: In, values: [hot]}", `{spec: {volumeAttributesClassName: hot}}`, true},
		{"{scopeName: VolumeAttributesClass, operator: In, values: [hot]}",
			`{spec: {volumeAttributesClassName: cold}, status: {currentVolumeAttributesClassName: hot}}`, true},
		{"{scopeName: VolumeAttributesClass, operator: In, values: [hot]}",
			`{spec: {volumeAttributesClassName: cold}, status: {modifyVolumeStatus: {targetVolumeAttributesClassName: hot, status: Pending}}}`,
			true},
		{"{scopeName: Terminating, operator: Exists}", `{}`, false},
	} {
		scope := decode[corev1.ScopedResourceSelectorRequirement](t, c.scope)
		got, err := claims.InScope(*scope, decode[corev1.PersistentVolumeClaim](t, c.object))
		if err != nil || got != c.want {
			t.Errorf("claim %s in %s: %v, %v, want %v", c.object, c.scope, got, err, c.want)
		}
	}
	if _, err := pods.InScope(corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScopePriorityClass,
		Operator: "Sometimes"}, &corev1.Pod{}); err == nil {
		t.Error("an operator that there is not was taken")
	}
}

// TestResources is which resources a quota's names speak of.
func TestResources(t *testing.T) {
	for name, want := range map[corev1.ResourceName]string{
		"pods": "pods", "cpu": "pods", "limits.memory": "pods", "requests.ephemeral-storage": "pods", "hugepages-2Mi": "pods",
		"count/pods":             "pods",
		"requests.hugepages-1Gi": "pods", "requests.example.com/gpu": "pods resourceclaims.resource.k8s.io",
		"requests.deviceclass.resource.kubernetes.io/nic": "pods resourceclaims.resource.k8s.io",
		"services": "services", "services.nodeports": "services", "services.loadbalancers": "services",
		"persistentvolumeclaims": "persistentvolumeclaims", "requests.storage": "persistentvolumeclaims",
		"gold.storageclass.storage.k8s.io/requests.storage": "persistentvolumeclaims",
		"gpu.deviceclass.resource.k8s.io/devices":           "resourceclaims.resource.k8s.io",
		"count/resourceclaims.resource.k8s.io":              "resourceclaims.resource.k8s.io",
		"configmaps":                                        "configmaps", "count/configmaps": "configmaps", "resourcequotas": "resourcequotas",
		"count/deployments.apps":    "deployments.apps",
		"count/widgets.example.com": "widgets.example.com", "count/events": "", "count/events.events.k8s.io": "", "example.com/gpu": "",
		"storage": "",
	} {
		var got []string
		for _, r := range quota.Resources([]corev1.ResourceName{name}) {
			got = append(got, r.String())
		}
		if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestSay is what containers have to speak of.
func TestSay(t *testing.T) {
	pods := quota.For(schema.GroupResource{Resource: "pods"}, &around{})
	names := []corev1.ResourceName{"cpu", "requests.memory", "limits.cpu", "requests.ephemeral-storage", "requests.example.com/gpu", "pods"}
	for object, want := range map[string]string{
		`{spec: {containers: [{name: a}, {name: b, resources: {requests: {cpu: 1}}}], initContainers: [{name: i}]}}`: "must specify cpu for: a,i; limits.cpu for: a,b,i; requests.memory for: a,b,i",
		`{spec: {containers: [{name: a, resources: {requests: {cpu: 1, memory: 1}, limits: {cpu: 0}}}]}}`:            "",
		`{spec: {resources: {requests: {cpu: 1}}, containers: [{name: a}]}}`:                                         "",
	} {
		got := ""
		if err := pods.Requires(names, decode[corev1.Pod](t, object)); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", object, got, want)
		}
	}
}
