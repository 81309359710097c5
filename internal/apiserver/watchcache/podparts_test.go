// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"encoding/json"
	"hash/maphash"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kinds "github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// web is a pod of a template.
func web(name string) *corev1.Pod {
	seconds, yes, priority, policy := int64(30), true, int32(7), corev1.PreemptLowerPriority
	at := metav1.NewTime(time.Unix(1_800_000_000, 0))
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: strings.Clone("ns"), UID: types.UID(name),
			Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "text"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "u", Controller: &yes}},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "m", Time: &at, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)}},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "web:1", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}}}},
			InitContainers:            []corev1.Container{{Name: "i", Image: "init:1"}},
			Volumes:                   []corev1.Volume{{Name: "v"}},
			Tolerations:               []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "zone"}},
			NodeSelector:              map[string]string{"disk": "ssd"},
			Affinity:                  &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}},
			SecurityContext:           &corev1.PodSecurityContext{RunAsUser: &seconds},
			NodeName:                  strings.Clone("node-1"), Priority: &priority, PreemptionPolicy: &policy, EnableServiceLinks: &yes,
			TerminationGracePeriodSeconds: &seconds, AutomountServiceAccountToken: &yes,
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: "PodScheduled", Status: "True",
			LastTransitionTime: at}}},
	}
}

// TestPodsShareParts checks that pods of a template share their parts from the third on, and that no pod changes by that: neither one
// whose parts are shared, nor one that differs in any of them.
func TestPodsShareParts(t *testing.T) {
	s := &podParts{seed: maphash.MakeSeed()}
	shared := func(change func(*corev1.Pod)) *corev1.Pod {
		t.Helper()
		pod, want := web("a"), web("a")
		change(pod)
		change(want)
		decodedFieldSets.share(pod)
		s.share(pod)
		if d := cmp.Diff(want, pod); d != "" {
			t.Errorf("a pod is changed (-want +got):\n%s", d)
		}
		return pod
	}
	same := func(*corev1.Pod) {}
	shared(same)
	kept, pod := shared(same), shared(same)
	parts := func(p *corev1.Pod) map[string]any {
		return map[string]any{
			"owners": &p.OwnerReferences[0], "managers": &p.ManagedFields[0], "containers": &p.Spec.Containers[0],
			"inits": &p.Spec.InitContainers[0], "volumes": &p.Spec.Volumes[0], "tolerations": &p.Spec.Tolerations[0],
			"spreads": &p.Spec.TopologySpreadConstraints[0], "affinity": p.Spec.Affinity, "security": p.Spec.SecurityContext,
			"priority": p.Spec.Priority, "policy": p.Spec.PreemptionPolicy, "links": p.Spec.EnableServiceLinks,
			"mount": p.Spec.AutomountServiceAccountToken, "grace": p.Spec.TerminationGracePeriodSeconds, "conditions": &p.Status.Conditions[0],
		}
	}
	of := parts(kept)
	for part, at := range parts(pod) {
		if at != of[part] {
			t.Errorf("the %s are not shared", part)
		}
	}
	pod.Labels["seen"], pod.Annotations["seen"], pod.Spec.NodeSelector["seen"] = "yes", "yes", "yes" // as nobody may, to see which map it is
	for what, texts := range map[string]map[string]string{"labels": kept.Labels, "annotations": kept.Annotations,
		"selector": kept.Spec.NodeSelector} {
		if texts["seen"] == "" {
			t.Errorf("the %s are not shared", what)
		}
		delete(texts, "seen")
	}
	no := false
	for _, change := range []func(p *corev1.Pod){
		func(p *corev1.Pod) { p.Labels["app"] = "db" },
		func(p *corev1.Pod) { p.Labels = nil },
		func(p *corev1.Pod) { p.Annotations = map[string]string{"text": "note"} },
		func(p *corev1.Pod) { p.OwnerReferences[0].Controller = &no },
		func(p *corev1.Pod) { p.ManagedFields[0].Operation = "Update" },
		func(p *corev1.Pod) { p.ManagedFields[0].Time = nil },
		func(p *corev1.Pod) { p.ManagedFields = append(p.ManagedFields, p.ManagedFields[0]) },
		func(p *corev1.Pod) { p.Spec.Containers[0].Image = "web:2" },
		func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests["memory"] = resource.MustParse("1Mi") },
		func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, p.Spec.InitContainers...) },
		func(p *corev1.Pod) { p.Spec.Volumes = nil },
		func(p *corev1.Pod) { p.Spec.EnableServiceLinks = &no },
		func(p *corev1.Pod) { p.Spec.Priority = nil },
		func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{strings.Repeat("x", 2*largePart)} },
	} {
		shared(change)
		shared(change)
		shared(change)
	}
	shared(same)
}

type podCodec struct{ codec }

func (podCodec) Decode(data []byte) (kinds.Object, error) {
	pod := &corev1.Pod{}
	return pod, json.Unmarshal(data, pod)
}

// TestStoredPodsShareParts checks that cached pods share parts, and that a decoded pod that its caller owns shares none.
func TestStoredPodsShareParts(t *testing.T) {
	f := newFixture(t, 1<<20)
	f.Descriptor.Codec = podCodec{}
	var cached []*corev1.Pod
	for _, name := range []string{"a", "b", "c"} {
		value, err := f.Codec.Encode(web(name))
		if err != nil {
			t.Fatal(err)
		}
		record := &store.Record{Key: f.Key("ns", name), Value: value, Revision: 1}
		own, err := f.Decode(record)
		if err != nil {
			t.Fatal(err)
		}
		o, err := f.Cached(record)
		if err != nil {
			t.Fatal(err)
		}
		pod, ok := o.Hub.(*corev1.Pod)
		if !ok || pod.Name != name {
			t.Fatalf("cached is %v", o.Hub)
		}
		if &own.(*corev1.Pod).Spec.Containers[0] == &pod.Spec.Containers[0] {
			t.Error("a pod that its caller owns shares its containers")
		}
		cached = append(cached, pod)
	}
	if &cached[1].Spec.Containers[0] != &cached[2].Spec.Containers[0] {
		t.Error("cached pods of a template do not share their containers")
	}
}

// TestSeldomPartsTakeNoMemory checks that a part that is seen once is not kept.
func TestSeldomPartsTakeNoMemory(t *testing.T) {
	s := &podParts{seed: maphash.MakeSeed()}
	a := &alike[string]{}
	sameValue(s, a, "once")
	for i := range a.slots {
		if a.slots[i].part.Load() != nil {
			t.Error("it is kept")
		}
	}
}
