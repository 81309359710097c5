// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package binder_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/scheduler/binder"
)

// asked is what a server was asked, without what is decided by the connection.
type asked struct{ method, path, query, contentType, agent string }

// answering is a server, and what it is asked. It answers in turn; the last answer stays.
func answering(t *testing.T, answers ...func(w http.ResponseWriter)) (config *rest.Config, requests *[]asked, bodies *[]runtime.Object) {
	t.Helper()
	requests, bodies = &[]asked{}, &[]runtime.Object{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(b, nil, nil)
		if err != nil {
			t.Error(err)
		}
		*requests = append(*requests, asked{r.Method, r.URL.Path, r.URL.RawQuery, r.Header.Get("Content-Type"), r.UserAgent()})
		*bodies = append(*bodies, obj)
		answers[0](w)
		if len(answers) > 1 {
			answers = answers[1:]
		}
	}))
	t.Cleanup(s.Close)
	return &rest.Config{Host: s.URL, QPS: -1, UserAgent: "scheduler/1",
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf}}, requests, bodies
}

// says is an answer in the form that the server itself gives.
func says(t *testing.T, code int, obj runtime.Object) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		if err := scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion, eventsv1.SchemeGroupVersion).Encode(obj, w); err != nil {
			t.Error(err)
		}
	}
}

func binding() *corev1.Binding {
	return &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u"},
		Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}
}

// TestBindSaysWhatClientGoSays: a binding that goes straight is the request that client-go would make.
func TestBindSaysWhatClientGoSays(t *testing.T) {
	config, requests, bodies := answering(t, says(t, http.StatusCreated, &metav1.Status{Status: metav1.StatusSuccess}))
	for _, qps := range []float32{-1, 1000} { // straight, and held back by client-go
		config.QPS, config.Burst = qps, 10
		client, err := binder.NewForConfig(config, true)
		if err != nil {
			t.Fatal(err)
		}
		if err := client.CoreV1().Pods("ns").Bind(t.Context(), binding(), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if r := *requests; len(r) != 2 || r[0] != r[1] || r[0].path != "/api/v1/namespaces/ns/pods/web/binding" {
		t.Errorf("asked %+v", r)
	}
	for _, obj := range *bodies {
		if b, ok := obj.(*corev1.Binding); !ok || b.Target.Name != "n1" || b.UID != "u" {
			t.Errorf("bound %+v", obj)
		}
	}
}

// TestEventSaysWhatClientGoSays: so is an event.
func TestEventSaysWhatClientGoSays(t *testing.T) {
	config, requests, bodies := answering(t, says(t, http.StatusCreated, &eventsv1.Event{}))
	e := &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web.1"}, Note: "assigned"}
	for _, qps := range []float32{-1, 1000} {
		config.QPS, config.Burst = qps, 10
		client, err := binder.NewForConfig(config, true)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := binder.Events(client).Events("ns").Create(t.Context(), e, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if r := *requests; len(r) != 2 || r[0] != r[1] || r[0].path != "/apis/events.k8s.io/v1/namespaces/ns/events" {
		t.Errorf("asked %+v", r)
	}
	for _, obj := range *bodies {
		if e, ok := obj.(*eventsv1.Event); !ok || e.Note != "assigned" {
			t.Errorf("wrote %+v", obj)
		}
	}
	if e.Kind != "" {
		t.Error("the event was changed")
	}
}

// TestRefusals: what the server says is the error, by which the scheduler decides what to do next.
func TestRefusals(t *testing.T) {
	conflict := apierrors.NewConflict(corev1.Resource("pods/binding"), "web", io.EOF)
	config, _, _ := answering(t, says(t, http.StatusConflict, &conflict.ErrStatus),
		func(w http.ResponseWriter) { http.Error(w, "no server", http.StatusBadGateway) })
	client, err := binder.NewForConfig(config, true)
	if err != nil {
		t.Fatal(err)
	}
	bind := func() error { return client.CoreV1().Pods("ns").Bind(t.Context(), binding(), metav1.CreateOptions{}) }
	if err := bind(); !apierrors.IsConflict(err) || err.Error() != conflict.Error() {
		t.Errorf("conflict: %v", err)
	}
	if err := bind(); err == nil || !strings.Contains(err.Error(), "no server") {
		t.Errorf("a proxy's answer: %v", err)
	}
}

// TestSentAgain: a server that wants to be asked later is.
func TestSentAgain(t *testing.T) {
	config, requests, _ := answering(t, func(w http.ResponseWriter) {
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusTooManyRequests)
	}, says(t, http.StatusCreated, &metav1.Status{Status: metav1.StatusSuccess}))
	client, err := binder.NewForConfig(config, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().Pods("ns").Bind(t.Context(), binding(), metav1.CreateOptions{}); err != nil || len(*requests) != 2 {
		t.Errorf("%v after %d requests", err, len(*requests))
	}
}

// heard collects warnings.
type heard []string

func (h *heard) HandleWarningHeader(code int, _, text string) {
	*h = append(*h, fmt.Sprint(code, " ", text))
}

// TestWarningsAreHeard: what a server warns of in a binding's or an event's answer is heard as client-go has it heard.
func TestWarningsAreHeard(t *testing.T) {
	config, _, _ := answering(t, func(w http.ResponseWriter) {
		w.Header().Add("Warning", `299 - "node n1 is old"`)
		w.Header().Add("Warning", `299 - "be \"careful\""`)
		w.Header().Add("Warning", "nonsense")
		says(t, http.StatusCreated, &metav1.Status{Status: metav1.StatusSuccess})(w)
	})
	for _, qps := range []float32{-1, 1000} { // straight, and held back by client-go
		var heard heard
		config.QPS, config.Burst, config.WarningHandler = qps, 10, &heard
		client, err := binder.NewForConfig(config, true)
		if err != nil {
			t.Fatal(err)
		}
		if err := client.CoreV1().Pods("ns").Bind(t.Context(), binding(), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if want := []string{"299 node n1 is old", `299 be "careful"`}; !slices.Equal(heard, want) {
			t.Errorf("heard %q, want %q", heard, want)
		}
	}
}
