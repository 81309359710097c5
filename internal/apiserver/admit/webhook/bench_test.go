// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

// shelf is a backend that holds one object.
type shelf struct {
	resource.Backend
	resource.Object
}

func (s shelf) Get(context.Context, schema.GroupResource, string, string) (resource.Object, error) {
	return s.Object, nil
}

// BenchmarkWebhook measures what one webhook on this machine adds to the create of a pod, and what no webhook adds. It
// reports the webhook's own time separately.
func BenchmarkWebhook(b *testing.B) {
	var own atomic.Int64
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		begun := time.Now()
		body, _ := io.ReadAll(q.Body)
		_, after, _ := bytes.Cut(body, []byte(`"uid":"`))
		uid, _, _ := bytes.Cut(after, []byte(`"`))
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"%s","allowed":true}}`, uid)
		own.Add(int64(time.Since(begun)))
	}))
	defer server.Close()
	d := &resource.Descriptor{Resource: "pods", Kind: "Pod", Namespaced: true,
		Versions: []resource.Version{{Name: "v1", New: func() resource.Object { return &corev1.Pod{} }}}, Storage: "v1", Prefix: "pods"}
	p := NewValidating(Options{})
	host := &admit.Host{
		Log: slog.New(slog.DiscardHandler), Ledger: extension.NewLedger(clock.RealClock{}),
		Kinds: func() []*resource.Descriptor { return []*resource.Descriptor{d} },
		Kind:  func(schema.GroupResource) *resource.Descriptor { return d },
	}
	if err := p.Join(host); err != nil {
		b.Fatal(err)
	}
	objects := shelf{Object: &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "w.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds: ptr.To(int32(10)),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &server.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
			Rules: []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{"*"},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}},
			NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
		}}}}
	obj := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}, {Name: "d", Image: "i"}}}}
	ask := func(b *testing.B) {
		own.Store(0)
		for b.Loop() {
			a := &admit.Attributes{Operation: admit.Create, Descriptor: d, Version: "v1", Namespace: "default", Name: "p", Object: obj,
				Options: &metav1.CreateOptions{}, User: &user.DefaultInfo{Name: "u"},
				Warn: func(string) {}, Annotate: func(string, string) {}}
			if err := p.Validate(b.Context(), objects, a); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(own.Load())/float64(b.N), "own-ns/op")
	}
	b.Run("none", ask)
	if err := p.Apply(b.Context(), &feed.Change{Resource: p.resource, Name: "c", Object: objects.Object}); err != nil {
		b.Fatal(err)
	}
	b.Run("one", ask)
}
