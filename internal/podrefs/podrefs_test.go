// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podrefs

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// beside are the fields that look as if they named an object of the pod's namespace and are read by no table, with the reason. A path
// ends in * where the reason holds for all below it.
var beside = map[string]string{
	"Spec.DeprecatedServiceAccount":                                        "the defaults make it equal to ServiceAccountName",
	"Spec.Volumes.VolumeSource.Ephemeral.VolumeClaimTemplate.*":            "the claim refers to these, not the pod",
	"Spec.Volumes.VolumeSource.Projected.Sources.ServiceAccountToken.*":    "a token of the pod's own account",
	"Spec.Volumes.VolumeSource.Secret.Items.*":                             "keys and paths",
	"Spec.Volumes.VolumeSource.ConfigMap.Items.*":                          "keys and paths",
	"Spec.Volumes.VolumeSource.Projected.Sources.Secret.Items.*":           "keys and paths",
	"Spec.Volumes.VolumeSource.Projected.Sources.ConfigMap.Items.*":        "keys and paths",
	"Spec.Volumes.VolumeSource.CephFS.SecretFile":                          "a file of the node",
	"Spec.ResourceClaims.Name":                                             "the pod's own name for the claim",
	"Spec.ResourceClaims.ResourceClaimTemplateName":                        "the status has the claim that is made from it",
	"Status.ResourceClaimStatuses.Name":                                    "the pod's own name for the claim",
	"Status.ExtendedResourceClaimStatus.RequestMappings.*":                 "containers and requests of the claim",
	"Spec.Containers.Resources.Claims.*":                                   "the pod's own names for its claims",
	"Spec.InitContainers.Resources.Claims.*":                               "the pod's own names for its claims",
	"Spec.EphemeralContainers.EphemeralContainerCommon.Resources.Claims.*": "the pod's own names for its claims",
	"Status.ContainerStatuses.Resources.Claims.*":                          "the pod's own names for its claims",
	"Status.InitContainerStatuses.Resources.Claims.*":                      "the pod's own names for its claims",
	"Status.EphemeralContainerStatuses.Resources.Claims.*":                 "the pod's own names for its claims",
	"Status.Resources.Claims.*":                                            "the pod's own names for its claims",
	"Status.NodeAllocatableResourceClaimStatuses.*":                        "it repeats the claims of the other fields",
	"Spec.Resources.Claims.*":                                              "the pod's own names for its claims",
}

// read are the fields that Visit reads and no table holds.
var read = map[string]Kind{
	"Spec.ServiceAccountName":                              ServiceAccount,
	"Spec.ImagePullSecrets.Name":                           Secret,
	"Spec.ResourceClaims.ResourceClaimName":                ResourceClaim,
	"Status.ResourceClaimStatuses.ResourceClaimName":       ResourceClaim,
	"Status.ExtendedResourceClaimStatus.ResourceClaimName": ResourceClaim,
}

// tables returns every path from a pod that Visit reads.
func tables() map[string]Kind {
	out := map[string]Kind{}
	for path, kind := range read {
		out[path] = kind
	}
	for _, container := range []string{"Spec.InitContainers", "Spec.Containers", "Spec.EphemeralContainers.EphemeralContainerCommon"} {
		paths(out, container+".EnvFrom.", envFrom)
		paths(out, container+".Env.ValueFrom.", envVar)
	}
	paths(out, "Spec.Volumes.VolumeSource.", volume)
	paths(out, "Spec.Volumes.VolumeSource.Projected.Sources.", projection)
	return out
}

func paths[T any](into map[string]Kind, prefix string, references []reference[T]) {
	for _, p := range references {
		into[prefix+p.path] = p.kind
	}
}

// looksLike matches the paths, and embedded the types, that name an object which a pod may refer to.
var (
	looksLike = regexp.MustCompile(`(?i)secret|configmap|claim|serviceaccount`)
	embedded  = []reflect.Type{
		reflect.TypeFor[corev1.LocalObjectReference](), reflect.TypeFor[corev1.ObjectReference](), reflect.TypeFor[corev1.SecretReference](),
		reflect.TypeFor[corev1.TypedLocalObjectReference](),
	}
)

// leaf is a field of a string below the pod; named says that it is part of a reference by its type.
type leaf struct {
	path  string
	field []int // from the pod; slices and pointers in between are followed
	named bool
}

// leaves returns every string field below a type. The embedded LocalObjectReference is left out of paths, as Go's selectors do.
func leaves(t reflect.Type, at leaf, out *[]leaf) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		leaves(t.Elem(), at, out)
	case reflect.String:
		*out = append(*out, at)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() {
				continue // of a quantity
			}
			next := leaf{path: at.path, field: append(slices.Clone(at.field), i), named: at.named || slices.Contains(embedded, t)}
			if f.Type != reflect.TypeFor[corev1.LocalObjectReference]() || !f.Anonymous {
				next.path = strings.TrimPrefix(at.path+"."+f.Name, ".")
			}
			leaves(f.Type, next, out)
		}
	}
}

func podLeaves() []leaf {
	var out []leaf
	spec, _ := reflect.TypeFor[corev1.Pod]().FieldByName("Spec")
	status, _ := reflect.TypeFor[corev1.Pod]().FieldByName("Status")
	leaves(spec.Type, leaf{path: "Spec", field: spec.Index}, &out)
	leaves(status.Type, leaf{path: "Status", field: status.Index}, &out)
	return out
}

// isBeside returns the entry of beside that a path is, or lies below.
func isBeside(path string) (string, bool) {
	for at := range beside {
		if root, all := strings.CutSuffix(at, "*"); path == at || all && strings.HasPrefix(path, root) {
			return at, true
		}
	}
	return "", false
}

// TestNoPlaceIsMissed walks the API's types: each field that looks like a reference is read, or listed with the reason why not. A field
// that a new version of Kubernetes adds fails it.
func TestNoPlaceIsMissed(t *testing.T) {
	known, seen, listed := tables(), map[string]bool{}, map[string]bool{}
	for _, l := range podLeaves() {
		if _, ok := known[l.path]; ok {
			seen[l.path] = true
			continue
		}
		if !l.named && !looksLike.MatchString(l.path) || strings.HasSuffix(l.path, "KeyRef.Key") { // a key of the object
			continue
		}
		at, ok := isBeside(l.path)
		if !ok {
			t.Errorf("%s may name an object: add it to the tables of podrefs.go, or to beside with the reason", l.path)
		}
		listed[at] = true
	}
	for path := range known {
		if !seen[path] {
			t.Errorf("%s is read, and the API has no such field", path)
		}
	}
	for path := range beside {
		if !listed[path] {
			t.Errorf("%s is listed beside the tables for nothing", path)
		}
	}
}

// set puts a string where a leaf is, making what is in between.
func set(v reflect.Value, field []int, to string) {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice {
		if v.IsNil() && v.Kind() == reflect.Pointer {
			v.Set(reflect.New(v.Type().Elem()))
		} else if v.Kind() == reflect.Slice && v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		} else {
			v = v.Index(0)
		}
	}
	if len(field) == 0 {
		v.SetString(to)
		return
	}
	set(v.Field(field[0]), field[1:], to)
}

type found struct {
	kind Kind
	name string
}

func visited(p *corev1.Pod) (out []found) {
	Visit(p, func(k Kind, name string) { out = append(out, found{k, name}) })
	return out
}

// TestEachPlaceIsRead sets each string of a pod alone: Visit reports those of the tables, with their kinds, and no others.
func TestEachPlaceIsRead(t *testing.T) {
	known := tables()
	for _, l := range podLeaves() {
		pod := &corev1.Pod{}
		set(reflect.ValueOf(pod).Elem(), l.field, "x")
		if l.path == "Status.ResourceClaimStatuses.ResourceClaimName" { // of a claim that the spec asks for
			pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{ResourceClaimTemplateName: new("template")}}
		}
		got := visited(pod)
		if pod.Spec.Volumes != nil && pod.Spec.Volumes[0].Ephemeral != nil {
			got = slices.DeleteFunc(got, func(f found) bool { return f == found{PersistentVolumeClaim, "-"} })
		}
		var want []found
		if kind, ok := known[l.path]; ok {
			want = []found{{kind, "x"}}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", l.path, got, want)
		}
	}
}

func TestClaims(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		{Name: "w", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{},
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}},
	}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{
		{Name: "a", ResourceClaimName: new("named")}, {Name: "b", ResourceClaimTemplateName: new("t")},
		{Name: "c", ResourceClaimTemplateName: new("t")}, {Name: "d", ResourceClaimTemplateName: new("t")}, {Name: "e"},
	}
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{
		{Name: "x", ResourceClaimName: new("not-this")}, {Name: "b", ResourceClaimName: new("made")},
		{Name: "d"}, {Name: "e", ResourceClaimName: new("neither")},
	}
	want := []found{{PersistentVolumeClaim, "p-v"}, {PersistentVolumeClaim, "claim"}, {ResourceClaim, "named"}, {ResourceClaim, "made"}}
	if got := visited(pod); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestRefersTo(t *testing.T) {
	if HasSecrets(&corev1.Pod{}) || HasConfigMaps(&corev1.Pod{}) {
		t.Error("an empty pod refers to something")
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{ServiceAccountName: "sa", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}}}
	if !HasSecrets(pod) || HasConfigMaps(pod) {
		t.Errorf("secrets: %v, config maps: %v", HasSecrets(pod), HasConfigMaps(pod))
	}
	pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "map"}},
	}}}
	if !HasConfigMaps(pod) {
		t.Error("the pod's config map is not seen")
	}
	for _, c := range []struct {
		pod            *corev1.Pod
		resource, name string
		want           bool
	}{
		{pod, "secrets", "pull", true}, {pod, "secrets", "map", false}, {pod, "configmaps", "map", true}, {pod, "configmaps", "pull", false},
		{pod, "configmaps", "kube-root-ca.crt", true}, {pod, "secrets", "kube-root-ca.crt", false}, {pod, "persistentvolumeclaims", "x", false},
		{pod, "serviceaccounts", "sa", true}, {pod, "serviceaccounts", "default", false},
		{&corev1.Pod{}, "serviceaccounts", "default", true}, {&corev1.Pod{}, "serviceaccounts", "x", false},
		{&corev1.Pod{}, "secrets", "default", false},
	} {
		kind, ok := KindFor(c.resource)
		if !ok || RefersTo(c.pod, kind, c.name) != c.want {
			t.Errorf("%s %s: want %v", c.resource, c.name, c.want)
		}
	}
	if _, ok := KindFor("pods"); ok {
		t.Error("pods refer to pods")
	}
}
