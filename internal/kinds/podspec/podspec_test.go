// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func always[T any](v T) *T { return &v }

// TestDropOff drops what gates that are off bring, unless it is there already, and keeps the rest.
func TestDropOff(t *testing.T) {
	with := func() *corev1.PodSpec {
		return &corev1.PodSpec{
			Containers: []corev1.Container{{
				Name:      "c",
				Lifecycle: &corev1.Lifecycle{StopSignal: always(corev1.SIGTERM)},
			}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: "e", Lifecycle: &corev1.Lifecycle{StopSignal: always(corev1.SIGTERM)},
			}}},
			InitContainers: []corev1.Container{{Name: "i", Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{
				HTTPGet: &corev1.HTTPGetAction{Protocol: always(corev1.HTTPProtocol("HTTP1"))},
			}}}},
			Volumes: []corev1.Volume{{Name: "v",
				VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "p", User: always(int64(-1))}},
				}}}}},
			SchedulingGroup: &corev1.PodSchedulingGroup{},
		}
	}
	for _, f := range gated {
		if f.used(&corev1.PodSpec{}) {
			t.Errorf("%s: an empty spec uses it", f.gate)
		}
	}
	spec := with()
	DropOff(spec, nil)
	for _, f := range gated {
		t.Logf("%s is used: %v", f.gate, f.used(spec))
	}
	if spec.SchedulingGroup != nil {
		t.Errorf("a new pod keeps %+v", spec.SchedulingGroup)
	}
	if p := spec.InitContainers[0].Lifecycle.PreStop.HTTPGet.Protocol; p != nil {
		t.Errorf("a new pod keeps the protocol %q of a handler", *p)
	}
	if u := spec.Volumes[0].Projected.Sources[0].ServiceAccountToken.User; u != nil {
		t.Errorf("a new pod keeps the user %d of a token", *u)
	}
	status := &corev1.PodStatus{VolumeHealth: []corev1.PodVolumeHealth{{Name: "v"}}}
	DropOffStatus(status, &corev1.PodStatus{VolumeHealth: []corev1.PodVolumeHealth{{Name: "w"}}})
	if len(status.VolumeHealth) != 1 {
		t.Error("a status that tells of volumes' health no longer does")
	}
	if DropOffStatus(status, &corev1.PodStatus{}); len(status.VolumeHealth) != 0 {
		t.Errorf("a status keeps %+v", status.VolumeHealth)
	}
	kept := with()
	DropOff(kept, with())
	if diff := cmp.Diff(with(), kept); diff != "" {
		t.Errorf("an old pod loses:\n%s", diff)
	}
}

// TestWarnings says what is odd about a pod.
func TestWarnings(t *testing.T) {
	spec := &corev1.PodSpec{
		NodeSelector: map[string]string{"beta.kubernetes.io/os": "linux"},
		HostAliases:  []corev1.HostAlias{{IP: "1.1.1.1"}, {IP: "1.1.1.1"}},
		Volumes: []corev1.Volume{
			{Name: "git", VolumeSource: corev1.VolumeSource{GitRepo: &corev1.GitRepoVolumeSource{}}},
			{Name: "cm", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "m"},
				Items:                []corev1.KeyToPath{{Key: "a", Path: "x"}, {Key: "b", Path: "x/y"}},
			}}},
		},
		Containers: []corev1.Container{{
			Name:      "c",
			Env:       []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "A", Value: "2"}, {Name: "B", Value: "1"}, {Name: "B", Value: "$(B):2"}},
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: apiresource.MustParse("100m")}},
			Ports:     []corev1.ContainerPort{{ContainerPort: 80}, {ContainerPort: 80}},
		}},
		TerminationGracePeriodSeconds: always(int64(-1)),
	}
	want := []string{
		`spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use "kubernetes.io/os" instead`,
		`spec.volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+`,
		`volume "cm" (ConfigMap "m"): overlapping paths: "x/y" with "x"`,
		`spec.hostAliases[1].ip: duplicate ip "1.1.1.1"`,
		`spec.containers[0].resources.limits[memory]: fractional byte value "100m" is invalid, must be an integer`,
		`spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply`,
		`spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]`,
		`spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1`,
	}
	if diff := cmp.Diff(want, Warnings(nil, spec, &metav1.ObjectMeta{})); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if got := TemplateWarnings(field.NewPath("spec", "template"),
		&corev1.PodTemplateSpec{Spec: corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{}}}}); len(got) != 1 ||
		got[0] != `spec.template.spec.imagePullSecrets[0].name: invalid empty name ""` {
		t.Errorf("of a template: %q", got)
	}
}

// TestSyncAppArmor moves profiles from annotations to fields.
func TestSyncAppArmor(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}, {Name: "b"}, {Name: "c"}}}}
	pod.Annotations = map[string]string{
		"container.apparmor.security.beta.kubernetes.io/a": "localhost/p",
		"container.apparmor.security.beta.kubernetes.io/b": "nonsense",
	}
	if got := SyncAppArmor(pod); len(got) != 2 {
		t.Errorf("warnings: %q", got)
	}
	a := pod.Spec.Containers[0].SecurityContext
	if a == nil || a.AppArmorProfile == nil || a.AppArmorProfile.Type != corev1.AppArmorProfileTypeLocalhost ||
		*a.AppArmorProfile.LocalhostProfile != "p" {
		t.Errorf("a has %+v", a)
	}
	if pod.Spec.Containers[1].SecurityContext != nil || pod.Spec.Containers[2].SecurityContext != nil {
		t.Errorf("b or c was given a profile")
	}
}

// TestDefaultPodResources fills in a pod's own resources from its containers'.
func TestDefaultPodResources(t *testing.T) {
	cpu := func(q string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse(q)}
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: cpu("1")}},
			{Resources: corev1.ResourceRequirements{Requests: cpu("2")}}},
		Resources: &corev1.ResourceRequirements{Limits: cpu("5")},
	}}
	DefaultPodResources(pod)
	if q := pod.Spec.Resources.Requests[corev1.ResourceCPU]; q.String() != "3" {
		t.Errorf("the pod requests %s", q.String())
	}
	if QOSClass(pod) != corev1.PodQOSBurstable {
		t.Errorf("class is %s", QOSClass(pod))
	}
}

// TestMergeLabelKeys writes label keys out as requirements.
func TestMergeLabelKeys(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"v": "1"}}}
	pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{LabelSelector: &metav1.LabelSelector{},
		MatchLabelKeys: []string{"v", "absent"}}}
	MergeLabelKeys(pod)
	want := []metav1.LabelSelectorRequirement{{Key: "v", Operator: metav1.LabelSelectorOpIn, Values: []string{"1"}}}
	if diff := cmp.Diff(want, pod.Spec.TopologySpreadConstraints[0].LabelSelector.MatchExpressions); diff != "" {
		t.Errorf("requirements (-want +got):\n%s", diff)
	}
}
