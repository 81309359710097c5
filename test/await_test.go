// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// await waits, by list and watch, until a ConfigMap is as is says.
func await(t *testing.T, c kubernetes.Interface, namespace, name string, is func(*corev1.ConfigMap) bool) {
	t.Helper()
	awaitEvent(t, c, "configmaps", namespace, fields.OneTermEqualSelector("metadata.name", name), &corev1.ConfigMap{}, time.Minute,
		func(e watch.Event) bool {
			m, ok := e.Object.(*corev1.ConfigMap)
			return ok && e.Type != watch.Deleted && is(m)
		})
}

// awaitPods waits until the pods with a label are as are says. It is asked after each change.
func awaitPods(t *testing.T, c kubernetes.Interface, label string, limit time.Duration, are func([]corev1.Pod) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	list, err := c.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: label})
	if err != nil {
		t.Fatal(err)
	}
	pods := map[string]corev1.Pod{}
	for _, p := range list.Items {
		pods[p.Name] = p
	}
	values := func() []corev1.Pod {
		var out []corev1.Pod
		for _, p := range pods {
			out = append(out, p)
		}
		return out
	}
	version := list.ResourceVersion
	for !are(values()) {
		w, err := c.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{LabelSelector: label, ResourceVersion: version})
		if err != nil {
			t.Fatalf("watch pods %s: %v; now %s", label, err, describe(values()))
		}
		for e := range w.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				t.Fatalf("watch pods %s: %#v", label, e.Object)
			}
			version = p.ResourceVersion
			if e.Type == watch.Deleted {
				delete(pods, p.Name)
			} else {
				pods[p.Name] = *p
			}
			if are(values()) {
				w.Stop()
				return
			}
		}
		if ctx.Err() != nil {
			t.Fatalf("pods %s are not as they should be after %s: %s", label, limit, describe(values()))
		}
	}
}

// describe says for each pod what one asks first.
func describe(pods []corev1.Pod) string {
	var out string
	for _, p := range pods {
		out += "\n  " + p.Name + " " + string(p.Status.Phase) + " " + p.Status.PodIP
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Waiting != nil {
				out += " " + s.State.Waiting.Reason + " " + s.State.Waiting.Message
			}
		}
	}
	return out
}

// ready reports whether a pod is Running, has an address and is Ready.
func ready(p corev1.Pod) bool {
	if p.Status.Phase != corev1.PodRunning || p.Status.PodIP == "" || p.DeletionTimestamp != nil {
		return false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// awaitEvent waits for one event of a list and watch.
func awaitEvent(t *testing.T, c kubernetes.Interface, resource, namespace string, selector fields.Selector, kind runtime.Object,
	limit time.Duration, is func(watch.Event) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	lw := cache.NewListWatchFromClient(c.CoreV1().RESTClient(), resource, namespace, selector)
	if _, err := watchtools.UntilWithSync(ctx, lw, kind, nil, func(e watch.Event) (bool, error) { return is(e), nil }); err != nil {
		t.Fatalf("wait for %s %s: %v", resource, selector, err)
	}
}
