// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package sharedobjects_test

import (
	"io"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/sharedobjects"
)

// TestClientset checks that watches of pods and nodes request shared objects, with all their options, and watches of other kinds bytes.
func TestClientset(t *testing.T) {
	pod := &corev1.Pod{}
	shares := map[string]bool{}
	here := server(func(r *http.Request) (*http.Response, error) {
		receiver := sharedobjects.FromContext(r.Context())
		shares[r.URL.RequestURI()] = receiver != nil
		body, _ := io.Pipe()
		if receiver != nil {
			receiver.Begin()
			if err := receiver.Send(r.Context(), watch.Event{Type: watch.Added, Object: pod}); err != nil {
				t.Error(err)
			}
			receiver.End()
		}
		return answer(r, http.StatusOK, body), nil
	})
	plain, err := kubernetes.NewForConfig(&rest.Config{Host: "http://here", Transport: here, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	c := sharedobjects.Clientset(plain).CoreV1()
	seconds := int64(9)
	o := metav1.ListOptions{LabelSelector: "a=b", ResourceVersion: "7", TimeoutSeconds: &seconds}
	for path, w := range map[string]func() (watch.Interface, error){
		"/api/v1/namespaces/ns/pods": func() (watch.Interface, error) { return c.Pods("ns").Watch(t.Context(), o) },
		"/api/v1/pods":               func() (watch.Interface, error) { return c.Pods("").Watch(t.Context(), o) },
		"/api/v1/nodes":              func() (watch.Interface, error) { return c.Nodes().Watch(t.Context(), o) },
		"/api/v1/secrets":            func() (watch.Interface, error) { return c.Secrets("").Watch(t.Context(), o) },
	} {
		events, err := w()
		if err != nil {
			t.Fatal(err)
		}
		want := path != "/api/v1/secrets"
		if want {
			if e := <-events.ResultChan(); e.Object != pod {
				t.Errorf("%s: got %v", path, e)
			}
		}
		events.Stop()
		uri := path + "?labelSelector=a%3Db&resourceVersion=7&timeout=9s&timeoutSeconds=9&watch=true"
		if got, ok := shares[uri]; !ok || got != want {
			t.Errorf("%s: requested %v, want shared objects %t", path, shares, want)
		}
	}
}

// TestDropManagedFields checks that only objects that are not shared are changed.
func TestDropManagedFields(t *testing.T) {
	meta := metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}}
	for _, c := range []struct {
		obj  metav1.Object
		left int
	}{
		{&corev1.Pod{ObjectMeta: meta}, 1}, {&corev1.Node{ObjectMeta: meta}, 1}, {&corev1.Secret{ObjectMeta: meta}, 0}, {&corev1.Secret{}, 0},
	} {
		got, err := sharedobjects.DropManagedFields(c.obj)
		if err != nil || got != c.obj || len(c.obj.GetManagedFields()) != c.left {
			t.Errorf("%T: %v, %v", c.obj, got, err)
		}
	}
}
