// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// hooks is an HTTPS server of admission webhooks: what the last one put under a path answers the reviews that come there.
type hooks struct {
	*httptest.Server
	client kubernetes.Interface

	mu      sync.Mutex
	answers map[string]func(*admissionv1.AdmissionReview) any
	asked   []review
}

// review is one question that was asked.
type review struct {
	path, query, agent string
	admissionv1.AdmissionReview
}

func startHooks(t *testing.T, client kubernetes.Interface) *hooks {
	t.Helper()
	h := &hooks{client: client, answers: map[string]func(*admissionv1.AdmissionReview) any{}}
	h.Server = httptest.NewUnstartedServer(h)
	h.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	h.StartTLS()
	t.Cleanup(h.Close)
	return h
}

func (h *hooks) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var r admissionv1.AdmissionReview
	if err := json.NewDecoder(q.Body).Decode(&r); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	path := strings.Trim(q.URL.Path, "/")
	h.mu.Lock()
	h.asked = append(h.asked, review{path, q.URL.RawQuery, q.UserAgent(), r})
	answer := h.answers[path]
	h.mu.Unlock()
	if answer == nil {
		http.NotFound(w, q)
		return
	}
	said := answer(r.DeepCopy())
	if res, ok := said.(*admissionv1.AdmissionResponse); ok {
		res.UID = r.Request.UID
		said = &admissionv1.AdmissionReview{TypeMeta: r.TypeMeta, Response: res}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(said) // a server that went away needs no answer
}

// on has a path answered.
func (h *hooks) on(path string, answer func(*admissionv1.AdmissionReview) any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answers[path] = answer
}

// take returns what was asked since the last time.
func (h *hooks) take() []review {
	h.mu.Lock()
	defer h.mu.Unlock()
	asked := h.asked
	h.asked = nil
	return asked
}

// paths are the paths that were asked, in their order.
func paths(rs []review) []string {
	var out []string
	for _, r := range rs {
		out = append(out, r.path)
	}
	return out
}

func allow(*admissionv1.AdmissionReview) any { return &admissionv1.AdmissionResponse{Allowed: true} }

func deny(message string) func(*admissionv1.AdmissionReview) any {
	return func(*admissionv1.AdmissionReview) any {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: message, Code: http.StatusForbidden}}
	}
}

func patching(ops string) func(*admissionv1.AdmissionReview) any {
	return func(*admissionv1.AdmissionReview) any {
		return &admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(ops), PatchType: ptr.To(admissionv1.PatchTypeJSONPatch)}
	}
}

func (h *hooks) config(path string) admissionregistrationv1.WebhookClientConfig {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})
	return admissionregistrationv1.WebhookClientConfig{URL: ptr.To(h.URL + "/" + path), CABundle: ca}
}

func rules(group, version, resource string, ops ...admissionregistrationv1.OperationType) []admissionregistrationv1.RuleWithOperations {
	if len(ops) == 0 {
		ops = []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll}
	}
	return []admissionregistrationv1.RuleWithOperations{{Operations: ops, Rule: admissionregistrationv1.Rule{
		APIGroups: []string{group}, APIVersions: []string{version}, Resources: []string{resource},
	}}}
}

// in selects a namespace.
func in(namespace string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": namespace}}
}

// mutating is a webhook on config maps of a namespace, answered under path.
func (h *hooks) mutating(path, namespace string) admissionregistrationv1.MutatingWebhook {
	return admissionregistrationv1.MutatingWebhook{
		Name: path + ".example.com", ClientConfig: h.config(path), Rules: rules("", "v1", "configmaps"), NamespaceSelector: in(namespace),
		SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
	}
}

// validating is the same for a validating webhook.
func (h *hooks) validating(path, namespace string) admissionregistrationv1.ValidatingWebhook {
	return admissionregistrationv1.ValidatingWebhook{
		Name: path + ".example.com", ClientConfig: h.config(path), Rules: rules("", "v1", "configmaps"), NamespaceSelector: in(namespace),
		SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
	}
}

// mutate registers mutating webhooks until the test ends.
func (h *hooks) mutate(t *testing.T, name string, ws ...admissionregistrationv1.MutatingWebhook) {
	t.Helper()
	c := h.client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := c.Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: ws}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// validate registers validating webhooks until the test ends.
func (h *hooks) validate(t *testing.T, name string, ws ...admissionregistrationv1.ValidatingWebhook) {
	t.Helper()
	c := h.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if _, err := c.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: ws}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// namespace makes one, and empties what was asked until now.
func (h *hooks) namespace(t *testing.T, name string) string {
	t.Helper()
	if _, err := h.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	h.take()
	return name
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": "b"}}
}
