// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// labels is a webhook that labels what it sees, and refuses objects named "bad".
func labels(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: review.Request.Name != "bad",
		Patch: []byte(`[{"op":"add","path":"/metadata/labels","value":{"seen":"yes"}}]`), PatchType: ptr.To(admissionv1.PatchTypeJSONPatch)}
	if !review.Response.Allowed {
		review.Response.Patch, review.Response.PatchType = nil, nil
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

var createsConfigMaps = admissionregistrationv1.RuleWithOperations{
	Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
	Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
}

// TestWebhook has a handler of the test called for writes to a cluster, to a fork of it, and to a fork in a bubble; and no more once it
// has stopped.
func TestWebhook(t *testing.T) {
	first := bare(t)
	hook := first.Webhook(t, "/label", http.HandlerFunc(labels), createsConfigMaps)
	check := func(t *testing.T, cluster *embed.Server) {
		t.Helper()
		maps := cluster.Client().CoreV1().ConfigMaps("default")
		m, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "good"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if m.Labels["seen"] != "yes" {
			t.Errorf("the object has labels %v", m.Labels)
		}
		_, err = maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "bad"}}, metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "denied the request") {
			t.Errorf("a bad object: %v", err)
		}
	}
	fork := first.Fork(t)
	check(t, first)
	check(t, fork)
	embedtest.Bubble(t, first, func(t *testing.T, cluster *embed.Server) {
		if err := cluster.Client().CoreV1().ConfigMaps("default").Delete(t.Context(), "good", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		check(t, cluster)
	})
	hook.Stop()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	_, err := first.Client().CoreV1().ConfigMaps("default").Create(t.Context(), m, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("with a dead webhook: %v", err)
	}
}

// TestAPIService reads an object of an aggregated API server that is a handler of the test.
func TestAPIService(t *testing.T) {
	cluster := bare(t)
	mux := http.NewServeMux()
	answer := func(path string, obj any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(obj)
		})
	}
	answer("/apis/test.example.com/v1", metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "test.example.com/v1",
		APIResources: []metav1.APIResource{{Name: "things", Kind: "Thing", Verbs: metav1.Verbs{"get"}}},
	})
	mux.HandleFunc("/apis/test.example.com/v1/things/a", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind":"Thing","apiVersion":"test.example.com/v1","metadata":{"name":"a"},"user":%q}`, r.Header.Get("X-Remote-User"))
	})
	cluster.APIService(t, schema.GroupVersion{Group: "test.example.com", Version: "v1"}, mux)
	client := kubernetes.NewForConfigOrDie(cluster.As("alice", "system:masters")).Discovery().RESTClient()
	text, err := client.Get().AbsPath("/apis/test.example.com/v1/things/a").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), `"user":"alice"`) {
		t.Errorf("got %s", text)
	}
}

// TestAs: a user may do what roles allow, and nothing else.
func TestAs(t *testing.T) {
	cluster := bare(t)
	alice := kubernetes.NewForConfigOrDie(cluster.As("alice", "readers"))
	if _, err := alice.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("without a role: %v", err)
	}
	_, err := cluster.Client().RbacV1().RoleBindings("default").Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "readers"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "readers"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := alice.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("with a role: %v", err)
	}
}

// failing is a test that is expected to fail.
type failing struct {
	testing.TB
	log strings.Builder
}

func (f *failing) Logf(format string, a ...any)   { fmt.Fprintf(&f.log, format+"\n", a...) }
func (f *failing) Errorf(format string, a ...any) { f.Logf(format, a...) }
func (f *failing) Fatalf(format string, a ...any) { f.Logf(format, a...); panic(f) }

// TestWaitFor waits for what controllers do, for a deletion, and in vain.
func TestWaitFor(t *testing.T) {
	embedtest.Bubble(t, embedtest.New(t), func(t *testing.T, cluster *embed.Server) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		pods := cluster.Client().CoreV1().Pods("default")
		if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		cluster.WaitFor(t, pod, func() bool { return pod.Status.Phase == corev1.PodRunning })
		if pod.Spec.NodeName == "" {
			t.Error("the pod has no node")
		}
		f := &failing{TB: t}
		func() {
			defer func() {
				if recover() != f {
					t.Error("the wait does not fail")
				}
			}()
			cluster.WaitFor(f, pod, func() bool { return pod.Status.Phase == corev1.PodFailed })
		}()
		for _, part := range []string{"phase: Running", "writes of pods p:", "POST /api/v1/namespaces/default/pods",
			"event of Pod p: Normal Scheduled", "last writes of all:", "wait for the condition of *v1.Pod default/p: context deadline exceeded"} {
			if !strings.Contains(f.log.String(), part) {
				t.Errorf("the log has no %q:\n%s", part, f.log.String())
			}
		}
		if err := pods.Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		cluster.WaitDeleted(t, pod)
	})
}
