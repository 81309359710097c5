// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// owned is what workers wrote that share nothing but the server's allocators and definitions: each knows what must be there.
type owned struct {
	mu        sync.Mutex
	addresses map[string]string // of acknowledged Services whose deletion was not asked for: by address and by port
	spec      int32             // replicas that were acknowledged for the Deployment, and that were asked for
	specNext  int32
	status    int64 // likewise of its status
	next      int64

	defined     map[string]int // definitions that were acknowledged: how many objects they have
	definitions int
}

func newOwned() *owned {
	return &owned{addresses: map[string]string{}, defined: map[string]int{}}
}

// serve makes and deletes Services, and wants each address and port given to one alone.
func (o *owned) serve(ctx context.Context, t *testing.T, c kubernetes.Interface, r *rand.Rand, worker int, count func()) {
	api := c.CoreV1().Services("soak-own")
	for ctx.Err() == nil {
		name := fmt.Sprintf("s%d-%d", worker, r.IntN(5))
		if r.IntN(2) == 0 {
			o.mu.Lock()
			for k, owner := range o.addresses {
				if owner == name {
					delete(o.addresses, k)
				}
			}
			o.mu.Unlock()
			if res := outcome(api.Delete(ctx, name, metav1.DeleteOptions{})); res.unknown {
				return
			} else if res.done {
				count()
			}
			continue
		}
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}},
		}}
		made, err := api.Create(ctx, svc, metav1.CreateOptions{})
		switch res := outcome(err); {
		case res.unknown:
			return
		case !res.done:
			continue
		}
		count()
		o.mu.Lock()
		for _, k := range []string{made.Spec.ClusterIP, fmt.Sprint(made.Spec.Ports[0].NodePort)} {
			if owner, taken := o.addresses[k]; taken && owner != name {
				t.Errorf("%s was given to %s and to %s", k, owner, name)
			}
			o.addresses[k] = name
		}
		o.mu.Unlock()
	}
}

// roll changes spec and status of one Deployment in turn.
func (o *owned) roll(ctx context.Context, t *testing.T, c kubernetes.Interface, r *rand.Rand, count func()) {
	api := c.AppsV1().Deployments("soak-own")
	labels := map[string]string{"app": "rolled"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "rolled"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/i"}}}},
	}}
	if _, err := api.Create(ctx, d, metav1.CreateOptions{}); outcome(err).unknown {
		return
	} else if err == nil {
		o.spec, o.specNext = 1, 1
	}
	for ctx.Err() == nil {
		sub, body := []string{}, ""
		if r.IntN(2) == 0 {
			o.specNext = o.spec%1000 + 1
			body = fmt.Sprintf(`{"spec":{"replicas":%d}}`, o.specNext)
		} else {
			sub = []string{"status"}
			o.next = o.status + 1
			body = fmt.Sprintf(`{"status":{"observedGeneration":%d}}`, o.next)
		}
		if _, err := api.Patch(ctx, "rolled", types.MergePatchType, []byte(body), metav1.PatchOptions{}, sub...); err != nil {
			if !outcome(err).unknown {
				t.Errorf("patch a Deployment that only this client writes: %v", err)
			}
			return
		}
		o.spec, o.status = o.specNext, o.next
		count()
	}
}

// sweep makes a few ConfigMaps and deletes them as a collection.
func (o *owned) sweep(ctx context.Context, t *testing.T, c kubernetes.Interface, r *rand.Rand, count func()) {
	api := c.CoreV1().ConfigMaps("soak-own")
	all := metav1.ListOptions{LabelSelector: "swept"}
	for ctx.Err() == nil {
		for range 1 + r.IntN(5) {
			m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "swept-", Labels: map[string]string{"swept": "yes"}}}
			if _, err := api.Create(ctx, m, metav1.CreateOptions{}); err != nil {
				return
			}
			count()
		}
		if err := api.DeleteCollection(ctx, metav1.DeleteOptions{}, all); err != nil {
			return
		}
		count()
		left, err := api.List(ctx, all)
		if err != nil {
			return
		}
		if len(left.Items) > 0 {
			t.Errorf("%d of a collection are left after its deletion", len(left.Items))
		}
	}
}

func definition(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": name + ".soak.example.com"},
		"spec": map[string]any{
			"group": "soak.example.com", "scope": "Cluster", "names": map[string]any{"plural": name, "kind": "K" + name},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{
				"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
		},
	}}
}

var definitionsResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// define makes definitions and objects of them at once, and deletes some.
func (o *owned) define(ctx context.Context, t *testing.T, p *program, r *rand.Rand, count func()) {
	c, err := dynamic.NewForConfig(p.config)
	if err != nil {
		t.Error(err)
		return
	}
	for ctx.Err() == nil {
		name := ""
		for known := range o.defined {
			name = known
			break
		}
		if len(o.defined) > r.IntN(6) {
			delete(o.defined, name) // what it has is not known from here on
			res := outcome(c.Resource(definitionsResource).Delete(ctx, name+".soak.example.com", metav1.DeleteOptions{}))
			if res.unknown {
				return
			}
			if !res.done {
				t.Errorf("delete a definition that was acknowledged: %+v", res)
			}
			count()
			continue
		}
		o.definitions++
		name = fmt.Sprintf("soaks%d", o.definitions)
		if res := outcome(second(c.Resource(definitionsResource).Create(ctx, definition(name), metav1.CreateOptions{}))); res.unknown {
			return
		} else if !res.done {
			t.Errorf("create a definition: %+v", res)
			return
		}
		count()
		kind := c.Resource(schema.GroupVersionResource{Group: "soak.example.com", Version: "v1", Resource: name})
		objects := 1 + r.IntN(3)
		for i := range objects {
			object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "soak.example.com/v1", "kind": "K" + name,
				"metadata": map[string]any{"name": fmt.Sprint("o", i)}}}
			if res := outcome(second(kind.Create(ctx, object, metav1.CreateOptions{}))); res.unknown {
				return
			} else if !res.done {
				t.Errorf("%s is not served though its definition is acknowledged: %+v", name, res)
				return
			}
			count()
		}
		o.defined[name] = objects
	}
}

func second[T any](_ T, err error) error { return err }

// judge wants what was acknowledged, on a server that was started again.
func (o *owned) judge(t *testing.T, p *program) {
	t.Helper()
	services, err := p.client().CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	names, taken := map[string]bool{}, map[string]string{}
	for _, s := range services.Items {
		names[s.Name] = true
		keys := []string{s.Spec.ClusterIP}
		for _, port := range s.Spec.Ports {
			if port.NodePort != 0 {
				keys = append(keys, fmt.Sprint(port.NodePort))
			}
		}
		for _, k := range keys {
			if taken[k] != "" {
				t.Errorf("%s and %s have %s", s.Name, taken[k], k)
			}
			taken[k] = s.Name
		}
	}
	for k, name := range o.addresses {
		if taken[k] != name {
			t.Errorf("%s was given to %s, and %q has it", k, name, taken[k])
		}
	}
	o.addresses = map[string]string{}
	for k, name := range taken {
		if name != "kubernetes" {
			o.addresses[k] = name
		}
	}
	if o.spec != 0 {
		d, err := p.client().AppsV1().Deployments("soak-own").Get(t.Context(), "rolled", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if r := *d.Spec.Replicas; r != o.spec && r != o.specNext || d.Status.ObservedGeneration != o.status &&
			d.Status.ObservedGeneration != o.next {
			t.Errorf("the Deployment has %d replicas and status %d; acknowledged were %d and %d", r, d.Status.ObservedGeneration, o.spec, o.status)
		}
		o.spec, o.status = *d.Spec.Replicas, d.Status.ObservedGeneration
		o.specNext, o.next = o.spec, o.status
	}
	c, err := dynamic.NewForConfig(p.config)
	if err != nil {
		t.Fatal(err)
	}
	for name, objects := range o.defined {
		list, err := c.Resource(schema.GroupVersionResource{Group: "soak.example.com", Version: "v1", Resource: name}).List(t.Context(),
			metav1.ListOptions{})
		if err != nil {
			t.Errorf("%s was defined: %v", name, err)
		} else if len(list.Items) != objects {
			t.Errorf("%s has %d objects, acknowledged were %d", name, len(list.Items), objects)
		}
	}
}
