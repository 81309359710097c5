// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/resource"
)

func find(t *testing.T, all []*resource.Descriptor, group, plural string) *resource.Descriptor {
	t.Helper()
	i := slices.IndexFunc(all, func(d *resource.Descriptor) bool {
		return d.GroupResource() == schema.GroupResource{Group: group, Resource: plural}
	})
	if i < 0 {
		t.Fatalf("no kind %s of group %q", plural, group)
	}
	return all[i]
}

// TestSettled reads objects whose fields say a thing twice, not at all, or in a way that is for writing alone, as requests
// bring them and as the store has them: kube-apiserver's conversions settle what counts.
func TestSettled(t *testing.T) {
	all := All(Options{})
	for _, c := range []struct {
		group, plural, body, path string
		request, stored           string // what stands at the path; stored empty: the same
	}{
		{"", "secrets", `{"data":{"a":"YQ==","b":"Yg=="},"stringData":{"b":"c"}}`, "data", `{"a":"YQ==","b":"Yw=="}`, ""},
		{"", "secrets", `{"stringData":{"b":"c"}}`, "stringData", `null`, ""},
		{"", "nodes", `{"spec":{"podCIDR":"10.1.0.0/24"}}`, "spec/podCIDRs", `["10.1.0.0/24"]`, ""},
		{"", "nodes", `{"spec":{"podCIDR":"10.1.0.0/24","podCIDRs":["10.2.0.0/24","fd00::/64"]}}`, "spec/podCIDRs", `["10.1.0.0/24"]`, ""},
		{"", "nodes", `{"spec":{"podCIDRs":["10.2.0.0/24","fd00::/64"]}}`, "spec/podCIDR", `"10.2.0.0/24"`, ""},
		{"", "nodes", `{"status":{"capacity":{"cpu":"1"},"allocatable":{}}}`, "status/allocatable", `null`, `{"cpu":"1"}`},
		{"", "persistentvolumeclaims", `{"status":{}}`, "status/phase", `"Pending"`, ""},
		{"", "services", `{"spec":{"type":"ExternalName","internalTrafficPolicy":"Cluster"}}`, "spec/internalTrafficPolicy", `"Cluster"`, `null`},
		{"", "services", `{"spec":{"clusterIP":"10.0.0.1"}}`, "spec/clusterIPs", `null`, `["10.0.0.1"]`},
		{"", "services", `{"spec":{"clusterIP":"10.0.0.1"}}`, "spec/ipFamilies", `null`, `["IPv4"]`},
		{"", "services", `{"spec":{"clusterIP":"None"}}`, "spec/ipFamilies", `null`, `["IPv4","IPv6"]`},
		{"", "services", `{"spec":{"clusterIP":"None","selector":{"a":"b"}}}`, "spec/ipFamilyPolicy", `null`, `"SingleStack"`},
		{"apps", "daemonsets", `{"metadata":{"annotations":{"deprecated.daemonset.template.generation":"007"}}}`,
			"metadata/annotations", `{"deprecated.daemonset.template.generation":"7"}`, ""},
		{"apps", "deployments", `{"metadata":{"annotations":{"deprecated.deployment.rollback.to":""}}}`, "metadata/annotations", `null`, ""},
		{"apps", "statefulsets", `{"spec":{"volumeClaimTemplates":[{"metadata":{"name":"v"}}]}}`, "spec/volumeClaimTemplates",
			`[{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"v"},"spec":{"resources":{},"volumeMode":"Filesystem"},"status":{"phase":"Pending"}}]`, ""},
	} {
		t.Run(c.plural+" "+c.body, func(t *testing.T) {
			d := find(t, all, c.group, c.plural)
			v := d.Hub()
			obj := v.New()
			if err := json.Unmarshal([]byte(c.body), obj); err != nil {
				t.Fatal(err)
			}
			v.Default(obj)
			if diff := cmp.Diff(c.request, under(t, obj, c.path)); diff != "" {
				t.Errorf("of a request (-want +got):\n%s", diff)
			}
			data, err := d.Codec.Encode(obj)
			if err != nil {
				t.Fatal(err)
			}
			stored, err := d.Codec.Decode(data)
			if err != nil {
				t.Fatal(err)
			}
			if c.stored == "" {
				c.stored = c.request
			}
			if diff := cmp.Diff(c.stored, under(t, stored, c.path)); diff != "" {
				t.Errorf("of the store (-want +got):\n%s", diff)
			}
		})
	}
	for plural, annotation := range map[string]string{
		"daemonsets": "deprecated.daemonset.template.generation", "deployments": "deprecated.deployment.rollback.to",
	} {
		v := find(t, all, "apps", plural).Hub()
		obj := v.New()
		obj.SetAnnotations(map[string]string{annotation: "x"})
		if err := v.Coerce(obj); err == nil || !strings.Contains(err.Error(), `strconv.ParseInt: parsing "x": invalid syntax`) {
			t.Errorf("%s: an annotation that is no number: %v", plural, err)
		}
	}
}

// under is the JSON of what stands at a path in an object.
func under(t *testing.T, obj any, path string) string {
	t.Helper()
	data, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	for key := range strings.SplitSeq(path, "/") {
		m, _ := v.(map[string]any)
		v = m[key]
	}
	if data, err = json.Marshal(v); err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestAllowPrivileged has two lists of kinds in one process: one whose pods may be privileged, and one whose may not.
func TestAllowPrivileged(t *testing.T) {
	for _, allowed := range []bool{false, true} {
		all := All(Options{AllowPrivileged: allowed})
		for _, body := range []string{
			`/api/v1/namespaces/ns/pods {"spec":POD}`,
			`/api/v1/namespaces/ns/replicationcontrollers {"spec":{"selector":{"a":"b"},"template":TEMPLATE}}`,
			`/apis/apps/v1/namespaces/ns/daemonsets {"spec":{"selector":{"matchLabels":{"a":"b"}},"template":TEMPLATE}}`,
			`/apis/batch/v1/namespaces/ns/cronjobs {"spec":{"schedule":"@daily","jobTemplate":{"spec":{"template":{"spec":ONCE}}}}}`,
		} {
			path, body, _ := strings.Cut(body, " ")
			pod := `{"containers":[{"name":"c","image":"i","securityContext":{"privileged":true}}],"restartPolicy":"Always"}`
			body = strings.NewReplacer("TEMPLATE", `{"metadata":{"labels":{"a":"b"}},"spec":`+pod+`}`, "POD", pod,
				"ONCE", strings.Replace(pod, "Always", "Never", 1), `{"spec":`, `{"metadata":{"name":"x"},"spec":`).Replace(body)
			gvr, ns := split(path)
			_, err := create(t, find(t, all, gvr.Group, gvr.Resource), gvr.Version, ns, body, false)
			if refused := apierrors.IsInvalid(err) && strings.Contains(err.Error(),
				"privileged: Forbidden: disallowed by cluster policy"); refused == allowed {
				t.Errorf("%s, allowed %v: %v", gvr.Resource, allowed, err)
			}
		}
	}
}

// TestPodRows says in the rows of pods that have ended that they have: kubectl hides them when asked to.
func TestPodRows(t *testing.T) {
	rows, ok := find(t, All(Options{}), "", "pods").Hub().Columns.(resource.Rows)
	if !ok {
		t.Fatal("pods have no rows")
	}
	for phase, want := range map[corev1.PodPhase]string{corev1.PodRunning: "", corev1.PodSucceeded: "Succeeded", corev1.PodFailed: "Failed"} {
		row, err := rows.Row(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: corev1.PodStatus{Phase: phase}})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, c := range row.Conditions {
			if c.Type == metav1.RowCompleted && c.Status == metav1.ConditionTrue {
				got = c.Reason
			}
		}
		if got != want || row.Cells[0] != "p" || row.Object.Object != nil {
			t.Errorf("%s: completed for %q, want %q: %+v", phase, got, want, row)
		}
	}
}

// TestReplicationControllerWarnings are about the template that an update takes away, as kube-apiserver has it.
func TestReplicationControllerWarnings(t *testing.T) {
	d := find(t, All(Options{}), "", "replicationcontrollers")
	rc := func(generation int64, node string) *corev1.ReplicationController {
		return &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "x", Generation: generation},
			Spec: corev1.ReplicationControllerSpec{
				Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeSelector: map[string]string{node: "x"}}}}}
	}
	const old = "beta.kubernetes.io/os"
	for _, c := range []struct {
		obj, old *corev1.ReplicationController
		want     int
	}{{rc(1, old), nil, 1}, {rc(2, old), rc(1, "a"), 0}, {rc(2, "a"), rc(1, old), 1}, {rc(1, "a"), rc(1, old), 0}} {
		var before resource.Object
		if c.old != nil {
			before = c.old
		}
		if got := d.Strategy.Warn(context.Background(), c.obj, before); len(got) != c.want {
			t.Errorf("warnings %q, want %d", got, c.want)
		}
	}
}

// TestPodFields takes every field that clients may select pods by.
func TestPodFields(t *testing.T) {
	d := find(t, All(Options{}), "", "pods")
	for _, label := range []string{"spec.nodeName", "spec.hostNetwork", "status.phase", "status.podIP", "status.podIPs"} {
		name, _, err := d.Hub().FieldLabel(label, "x")
		if err != nil || !slices.Contains(d.FieldNames, name) {
			t.Errorf("%s is refused: %q, %v", label, name, err)
		}
	}
	if _, _, err := d.Hub().FieldLabel("status.qosClass", "x"); err == nil {
		t.Error("status.qosClass is taken")
	}
}
