// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"pgregory.net/rapid"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

var crates = schema.GroupVersionResource{Group: "quota.example.com", Version: "v1", Resource: "crates"}

// quotaModel makes random objects in a namespace of its own and knows, by arithmetic of its own, what they use.
type quotaModel struct {
	t         *rapid.T
	test      *testing.T
	c         kubernetes.Interface
	d         dynamic.Interface
	namespace string
	serial    int

	maps, crates []string
	pods         map[string]int64 // thousandths of a processor; ended pods are 0
	ended        map[string]bool
	services     map[string]int64 // node ports
	claims       map[string]int64 // bytes asked for
}

var quotaLimits = map[corev1.ResourceName]string{
	"count/configmaps": "4", "pods": "3", "count/pods": "5", "requests.cpu": "2", "services": "3", "services.nodeports": "4",
	"requests.storage": "10", "persistentvolumeclaims": "3", "count/crates.quota.example.com": "2",
}

func (m *quotaModel) used() map[corev1.ResourceName]int64 {
	u := map[corev1.ResourceName]int64{
		"count/configmaps": int64(len(m.maps)), "count/pods": int64(len(m.pods)), "services": int64(len(m.services)),
		"persistentvolumeclaims": int64(len(m.claims)), "count/crates.quota.example.com": int64(len(m.crates)),
		"pods": 0, "requests.cpu": 0, "services.nodeports": 0, "requests.storage": 0,
	}
	for name, cpu := range m.pods {
		if !m.ended[name] {
			u["pods"]++
			u["requests.cpu"] += cpu
		}
	}
	for _, ports := range m.services {
		u["services.nodeports"] += ports
	}
	for _, size := range m.claims {
		u["requests.storage"] += size
	}
	return u
}

func (m *quotaModel) name() string {
	m.serial++
	return fmt.Sprintf("o%d", m.serial)
}

// pick draws one of the names, "" if there is none.
func (m *quotaModel) pick(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return rapid.SampledFrom(names).Draw(m.t, "which")
}

func keys(of map[string]int64) []string { return slices.Sorted(maps.Keys(of)) }

// did reports whether something was done; that a quota refused it is no error.
func (m *quotaModel) did(err error) bool {
	if err != nil && !apierrors.IsForbidden(err) {
		m.t.Fatal(err)
	}
	return err == nil
}

func (m *quotaModel) step() {
	ctx, core := m.test.Context(), m.c.CoreV1()
	name := m.name()
	meta := metav1.ObjectMeta{Name: name}
	now := metav1.DeleteOptions{}
	switch rapid.IntRange(0, 11).Draw(m.t, "what") {
	case 0:
		_, err := core.ConfigMaps(m.namespace).Create(ctx, mapNamed(name), metav1.CreateOptions{})
		if m.did(err) {
			m.maps = append(m.maps, name)
		}
	case 1:
		if one := m.pick(m.maps); one != "" && m.did(core.ConfigMaps(m.namespace).Delete(ctx, one, now)) {
			m.maps = without(m.maps, one)
		}
	case 2, 3:
		cpu := rapid.Int64Range(1, 1200).Draw(m.t, "cpu")
		pod := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i",
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(cpu, resource.DecimalSI)},
			}}}}}
		if _, err := core.Pods(m.namespace).Create(ctx, pod, metav1.CreateOptions{}); m.did(err) {
			m.pods[name] = cpu
		}
	case 4:
		if one := m.pick(keys(m.pods)); one != "" {
			_, err := core.Pods(m.namespace).Patch(ctx, one, types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{},
				"status")
			if m.did(err) {
				m.ended[one] = true
			}
		}
	case 5:
		if one := m.pick(keys(m.pods)); one != "" && m.did(core.Pods(m.namespace).Delete(ctx, one, now)) {
			delete(m.pods, one)
		}
	case 6:
		ports := rapid.Int64Range(0, 3).Draw(m.t, "ports")
		s := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}}
		for i := range ports {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Port: 80 + int32(i)})
		}
		if ports == 0 {
			s.Spec.Type, s.Spec.Ports = corev1.ServiceTypeClusterIP, []corev1.ServicePort{{Port: 80}}
		}
		if _, err := core.Services(m.namespace).Create(ctx, s, metav1.CreateOptions{}); m.did(err) {
			m.services[name] = ports
		}
	case 7:
		if one := m.pick(keys(m.services)); one != "" {
			s, err := core.Services(m.namespace).Get(ctx, one, metav1.GetOptions{})
			if !m.did(err) {
				return
			}
			var ports int64
			if s.Spec.Type, ports = corev1.ServiceTypeNodePort, int64(len(s.Spec.Ports)); rapid.Bool().Draw(m.t, "inside") {
				s.Spec.Type, ports = corev1.ServiceTypeClusterIP, 0
			}
			if _, err := core.Services(m.namespace).Update(ctx, s, metav1.UpdateOptions{}); m.did(err) {
				m.services[one] = ports
			}
		}
	case 8:
		size := rapid.Int64Range(1, 6).Draw(m.t, "size")
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(size,
				resource.DecimalSI)}},
		}}
		if _, err := core.PersistentVolumeClaims(m.namespace).Create(ctx, claim, metav1.CreateOptions{}); m.did(err) {
			m.claims[name] = size
		}
	case 9:
		if one := m.pick(keys(m.claims)); one != "" {
			_, err := core.PersistentVolumeClaims(m.namespace).Patch(ctx, one, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
				metav1.PatchOptions{})
			if m.did(err) && m.did(core.PersistentVolumeClaims(m.namespace).Delete(ctx, one, now)) {
				delete(m.claims, one)
			}
		}
	case 10:
		crate := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "quota.example.com/v1", "kind": "Crate",
			"metadata": map[string]any{"name": name}}}
		if _, err := m.d.Resource(crates).Namespace(m.namespace).Create(ctx, crate, metav1.CreateOptions{}); m.did(err) {
			m.crates = append(m.crates, name)
		}
	case 11:
		if one := m.pick(m.crates); one != "" && m.did(m.d.Resource(crates).Namespace(m.namespace).Delete(ctx, one, now)) {
			m.crates = without(m.crates, one)
		}
	}
}

func without(names []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == one })
}

// TestQuotaProperty: whatever is made, changed and deleted, a quota's used is in the end what a count comes to, and is never
// more than its limits.
func TestQuotaProperty(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Node: embed.NodeNone, Controllers: []string{"resourcequota", "serviceaccount"}})
	c := cluster.Client()
	d, err := dynamic.NewForConfig(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	definition := map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "crates.quota.example.com"},
		"spec": map[string]any{
			"group": "quota.example.com", "scope": "Namespaced", "names": map[string]any{"plural": "crates", "kind": "Crate"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
		},
	}
	if _, err := d.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}).Create(t.Context(), &unstructured.Unstructured{Object: definition},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var cases atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		n := cases.Add(1)
		if n > 12 {
			return // each is a namespace with some fifty requests; more are no more telling
		}
		m := &quotaModel{
			t: rt, test: t, c: c, d: d, namespace: fmt.Sprintf("case-%d", n),
			pods: map[string]int64{}, ended: map[string]bool{}, services: map[string]int64{}, claims: map[string]int64{},
		}
		limit(t, c, m.namespace, quotaLimits)
		for range rapid.IntRange(20, 60).Draw(rt, "steps") {
			m.step()
		}
		want := m.used()
		awaitQuota(t, c, m.namespace, func(q *corev1.ResourceQuota) bool {
			for name, n := range want {
				is := q.Status.Used[name]
				if hard := q.Status.Hard[name]; is.Cmp(hard) > 0 {
					rt.Fatalf("%s: %s used of %s", name, is.String(), hard.String())
				}
				got := is.Value()
				if name == corev1.ResourceRequestsCPU {
					got = is.MilliValue()
				}
				if got != n {
					return false
				}
			}
			return true
		})
	})
}
