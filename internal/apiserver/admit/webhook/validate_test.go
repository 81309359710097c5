// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/utils/ptr"
)

// TestValidatorsAtOnce checks that validating webhooks are called concurrently, and that each can reject the request.
func TestValidatorsAtOnce(t *testing.T) {
	names := []string{"a", "b", "c"}
	for _, no := range append(names, "") {
		server := newHookServer(t)
		server.say, server.other = answerOf(`"allowed":true`), map[string]string{no: answerOf(`"allowed":false,"status":{"message":"no"}`)}
		var met sync.WaitGroup
		met.Add(len(names))
		server.meet = func(*http.Request) {
			met.Done()
			met.Wait() // all of them are called before the first responds
		}
		s := newSetting(t, Protection{})
		var hooks []admissionregistrationv1.MutatingWebhook
		for _, name := range names {
			hooks = append(hooks, webhookOf(server, name))
		}
		s.register(t, false, hooks...)
		want := "allowed"
		if no != "" {
			want = `400 : admission webhook "` + no + `.example.com" denied the request: no`
		}
		if got := s.outcome(t, server, creation()); got != want {
			t.Errorf("%q says no: %s", no, got)
		}
	}
}

// TestPanics checks that a panic during a call rejects the request, unless the webhook's failure policy is Ignore: then
// the request continues as after any other failure.
func TestPanics(t *testing.T) {
	for _, others := range []bool{false, true} {
		for policy, want := range map[admissionregistrationv1.FailurePolicyType]string{
			"Fail":   "500 InternalError: Internal error occurred: ValidatingAdmissionWebhook/w.example.com has panicked: no such key",
			"Ignore": "allowed\nfailed-open.validating.webhook.admission.k8s.io/round_0_index_0 = w.example.com",
		} {
			server := newHookServer(t)
			server.say = answerOf(`"allowed":true`)
			server.other = map[string]string{"w": answerOf(`"allowed":true,"auditAnnotations":{"panic":"now"}`)}
			s := newSetting(t, Protection{})
			h := webhookOf(server, "w")
			h.FailurePolicy = &policy
			hooks := []admissionregistrationv1.MutatingWebhook{h}
			if others {
				hooks = append(hooks, webhookOf(server, "other"))
			}
			s.register(t, false, hooks...)
			s.panics = "w.example.com/panic"
			if got := s.outcome(t, server, creation()); got != want {
				t.Errorf("%s: %s, want %s", policy, got, want)
			}
			counted := strings.Contains(s.counted(t), "fail_open_count{name=w.example.com,type=validating} 1")
			if counted != (policy == "Ignore") {
				t.Errorf("%s: counted %s", policy, s.counted(t))
			}
		}
	}
}

// TestFailuresAreMarked checks that the audit event contains the index of a skipped webhook.
func TestFailuresAreMarked(t *testing.T) {
	server := newHookServer(t)
	server.say, server.other = answerOf(`"allowed":true`), map[string]string{"b": "nonsense"}
	a, b := webhookOf(server, "a"), webhookOf(server, "b")
	b.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
	s := newSetting(t, Protection{})
	s.register(t, false, a, b)
	if got := s.outcome(t, server, creation()); got != "allowed\nfailed-open.validating.webhook.admission.k8s.io/round_0_index_1 = b.example.com" {
		t.Error(got)
	}
}
