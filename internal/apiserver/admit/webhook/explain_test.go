// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/apiserver/explain"
)

// inJSON decodes the objects in traces.
type inJSON struct{}

func (inJSON) Stored(_ schema.GroupResource, _ string, data []byte) (m map[string]any, err error) {
	err = json.Unmarshal(data, &m)
	return m, err
}

func (inJSON) Sent(schema.GroupResource, string, string, []byte) (said, filled map[string]any, err error) {
	return nil, nil, errors.New("nothing was sent")
}

func (inJSON) Live(context.Context, schema.GroupResource, string, string) (map[string]any, string, error) {
	return nil, "", errors.New("nothing is there")
}

// explained admits the creation of a traced pod, and returns the webhooks in its trace, one a line with their changes.
func (s *setting) explained(t *testing.T) (told []string) {
	t.Helper()
	r := explain.New(explain.Options{Started: time.Now()})
	info := &request.RequestInfo{IsResourceRequest: true, Verb: "create", APIVersion: "v1", Resource: "pods", Namespace: "ns", Name: "p"}
	traced := r.Begin(info, time.Now())
	a := creation()
	a.Descriptor = s.kinds[0]
	got := verdict(s.admit(explain.With(t.Context(), traced), a))
	untraced := creation()
	untraced.Descriptor = a.Descriptor
	if want := verdict(s.admit(t.Context(), untraced)); got != want {
		t.Errorf("%s, and without a trace %s", got, want)
	}
	post := httptest.NewRequest(http.MethodPost, "/api/v1/namespaces/ns/pods", nil)
	traced.Finish(post, explain.Answer{ID: "id", Code: 201})
	w := httptest.NewRecorder()
	refuse := func(_ http.ResponseWriter, _ *http.Request, err error) int { t.Error(err); return 0 }
	r.Handler(inJSON{}, refuse).ServeHTTP(w, httptest.NewRequest(http.MethodGet, trace.Route, nil))
	var view trace.View
	if err := json.Unmarshal(w.Body.Bytes(), &view); err != nil || len(view.Traces) != 1 {
		t.Fatalf("%v: %s", err, w.Body)
	}
	for _, step := range view.Traces[0].Steps {
		if step.Seconds < 0 || step.Seconds == 0 && step.Kind == trace.Webhook {
			t.Errorf("%s took %v s", step.Name, step.Seconds)
		}
		line := fmt.Sprint(step.Phase, " ", step.Kind, " ", step.Configuration, " ", step.Name, ": ", step.Result, " ", step.Reason)
		for _, c := range step.Changes {
			line += fmt.Sprintf("%s=%v ", c.Path, c.Value)
		}
		told = append(told, line)
	}
	return told
}

// TestExplained checks that the trace of a request contains each webhook's response, its changes and the outcome.
func TestExplained(t *testing.T) {
	label := patchOf(`[{"op":"add","path":"/metadata/labels/a","value":"b"}]`)
	for _, c := range []struct {
		name     string
		mutating bool
		ignore   bool
		say      string
		want     []string
	}{
		{"allowed by validation", false, false, answerOf(`"allowed":true`), []string{"validate webhook c w.example.com: allowed "}},
		{"allowed by mutation", true, false, answerOf(`"allowed":true`), []string{"mutate webhook c w.example.com: allowed "}},
		{"changed", true, false, label, []string{
			`mutate webhook c w.example.com: changed /metadata/labels/a=b `, `mutate defaulting  : changed /spec/restartPolicy=Always `,
		}},
		{"changed nothing", true, false, patchOf(`[{"op":"add","path":"/metadata/labels/team","value":"a"}]`),
			[]string{"mutate webhook c w.example.com: allowed "}},
		{"denied", false, true, answerOf(`"allowed":false`), []string{
			`validate webhook c w.example.com: denied admission webhook "w.example.com" denied the request without explanation`,
		}},
		{"failed", true, false, answerOf(`"allowed":true,"patchType":"x"`), []string{
			`mutate webhook c w.example.com: failed failed calling webhook "w.example.com": received invalid webhook response: ` +
				"webhook returned response.patchType but not response.patch",
		}},
		{"failed, to be ignored", false, true, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`, []string{
			`validate webhook c w.example.com: ignored failed calling webhook "w.example.com": received invalid webhook response: ` +
				"webhook response was absent",
		}},
		{"the server's own error", true, false, patchOf(`[{"op":"replace","path":"/apiVersion","value":"v2"}]`), []string{
			`mutate webhook c w.example.com: failed Internal error occurred: no kind "Pod" is registered for version "v2" ` +
				`in scheme "pkg/runtime/scheme.go:111"`,
		}},
	} {
		server := newHookServer(t)
		server.say = c.say
		s := newSetting(t, Protection{})
		h := webhookOf(server, "w")
		if c.ignore {
			h.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
		}
		s.register(t, c.mutating, h)
		if d := cmp.Diff(c.want, s.explained(t)); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

// TestLatencies checks that the audit event contains the durations of mutating and of validating webhooks.
func TestLatencies(t *testing.T) {
	for _, mutating := range []bool{true, false} {
		server := newHookServer(t)
		server.say = answerOf(`"allowed":true`)
		s := newSetting(t, Protection{})
		s.register(t, mutating, webhookOf(server, "w"))
		ctx := request.WithLatencyTrackers(t.Context())
		if got := s.outcomeIn(ctx, server, creation()); got[:7] != "allowed" {
			t.Error(got)
		}
		spent, _ := request.LatencyTrackersFrom(ctx)
		m, v := spent.MutatingWebhookTracker.GetLatency(), spent.ValidatingWebhookTracker.GetLatency()
		if (m > 0) != mutating || (v > 0) == mutating {
			t.Errorf("mutating %v: %v in mutating ones, %v in validating ones", mutating, m, v)
		}
	}
}
