// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
)

// TestFailurePolicy checks that a webhook that cannot be called, or returns an invalid response, rejects the request
// unless its failure policy is Ignore. A rejection by the webhook counts in any case.
func TestFailurePolicy(t *testing.T) {
	const failed = "500 InternalError: Internal error occurred: failed calling webhook \"w.example.com\": "
	for _, c := range []struct {
		name    string
		status  int
		say     string
		refused string // also with the failure policy Ignore
		failed  string // empty: it does not fail
		code    int
	}{
		{name: "allowed", say: answerOf(`"allowed":true`)},
		{name: "denied", say: answerOf(`"allowed":false`),
			refused: `400 : admission webhook "w.example.com" denied the request without explanation`},
		{name: "denied with a message", say: answerOf(`"allowed":false,"status":{"code":403,"message":"no","reason":"Forbidden"}`),
			refused: `403 Forbidden: admission webhook "w.example.com" denied the request: no`},
		{name: "denied with a reason", say: answerOf(`"allowed":false,"status":{"code":409,"reason":"Conflict"}`),
			refused: `409 Conflict: admission webhook "w.example.com" denied the request: Conflict`},
		{name: "denied with a code of success", say: answerOf(`"allowed":false,"status":{"code":200,"status":"Success"}`),
			refused: `400 : admission webhook "w.example.com" denied the request without explanation`},
		{name: "a server error", status: 500, say: "{}", failed: "failed to call webhook: ", code: 500},
		{name: "no JSON", say: "nonsense", failed: "failed to call webhook: ", code: 503},
		{name: "no response", say: `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`,
			failed: "received invalid webhook response: webhook response was absent", code: 503},
		{name: "another UID", say: strings.Replace(answerOf(`"allowed":true`), "UID", "x", 1),
			failed: `received invalid webhook response: expected response.uid="`, code: 503},
	} {
		for _, policy := range []*admissionregistrationv1.FailurePolicyType{nil, ptr.To(admissionregistrationv1.Fail),
			ptr.To(admissionregistrationv1.Ignore)} {
			for _, mutating := range []bool{true, false} {
				server := newHookServer(t)
				server.status, server.say = c.status, c.say
				s := newSetting(t, Protection{})
				h := webhookOf(server, "w")
				h.FailurePolicy = policy
				s.register(t, mutating, h)
				got := s.outcome(t, server, creation())
				ignore := policy != nil && *policy == admissionregistrationv1.Ignore
				step, mark := "validating", "failed-open.validating.webhook.admission.k8s.io/round_0_index_0 = w.example.com"
				if mutating {
					step, mark = "admit", "failed-open.mutation.webhook.admission.k8s.io/round_0_index_0 = w.example.com"
				}
				labels := `name=w.example.com,operation=CREATE`
				calls := func(code int, rejected bool) string {
					return fmt.Sprintf(`request_total{code=%d,%s,rejected=%v,type=%s} 1`, code, labels, rejected, step)
				}
				var want, counts string
				switch {
				case c.refused != "":
					want = c.refused
					code := c.refused[:3]
					counts = fmt.Sprintf("rejection_count{error_type=no_error,%s,rejection_code=%s,type=%s} 1\n", labels, code, step) +
						strings.Replace(calls(0, true), "code=0", "code="+code, 1)
				case c.failed == "":
					want, counts = "allowed", calls(200, false)
				case ignore:
					want, counts = "allowed", "fail_open_count{name=w.example.com,type="+step+"} 1\n"+calls(c.code, false)
				default:
					want = failed + c.failed
					counts = fmt.Sprintf("rejection_count{error_type=calling_webhook_error,%s,rejection_code=%d,type=%s} 1\n", labels, c.code, step) +
						calls(c.code, true)
				}
				if !strings.HasPrefix(got, want) || strings.Contains(got, mark) != (c.failed != "" && ignore) {
					t.Errorf("%s, %v, mutating %v:\n got %q\nwant %q", c.name, policy, mutating, got, want)
				}
				if d := cmp.Diff(counts, s.counted(t)); d != "" {
					t.Errorf("%s, %v, mutating %v: counts (-want +got):\n%s", c.name, policy, mutating, d)
				}
			}
		}
	}
}

// TestUnreachable covers webhooks without a listener and with an untrusted certificate.
func TestUnreachable(t *testing.T) {
	server := newHookServer(t)
	server.say = answerOf(`"allowed":true`)
	h := webhookOf(server, "w")
	h.ClientConfig.CABundle = nil
	s := newSetting(t, Protection{})
	s.register(t, false, h)
	if got := s.outcome(t, server, creation()); !strings.HasPrefix(got,
		`500 InternalError: Internal error occurred: failed calling webhook "w.example.com": failed to call webhook: Post "URL/w?timeout=10s": tls: failed to verify certificate`) {
		t.Errorf("not trusted: %s", got)
	}
	server.Close()
	h = webhookOf(server, "w")
	s.register(t, false, h)
	if got := s.outcome(t, server, creation()); !strings.HasPrefix(got,
		`500 InternalError: Internal error occurred: failed calling webhook "w.example.com": failed to call webhook: Post "URL/w?timeout=10s": dial tcp`) {
		t.Errorf("nobody listens: %s", got)
	}
}

// TestMutations covers the results of a mutating webhook's patch.
func TestMutations(t *testing.T) {
	const failed = `500 InternalError: Internal error occurred: failed calling webhook "w.example.com": `
	note := func(mutated bool) string {
		return fmt.Sprintf("\nmutation.webhook.admission.k8s.io/round_0_index_0 = {\"configuration\":\"c\",\"webhook\":\"w.example.com\",\"mutated\":%v}", mutated)
	}
	for _, c := range []struct{ name, say, want string }{
		{"a label", patchOf(`[{"op":"add","path":"/metadata/labels/a","value":"b"}]`), "allowed\nlabels map[a:b team:a]" + note(true)},
		{"nothing", answerOf(`"allowed":true`), "allowed" + note(false)},
		{"an empty patch", patchOf(`[]`), "allowed" + note(false)},
		{"a patch of no type", answerOf(`"allowed":true,"patch":"W10="`),
			failed + "received invalid webhook response: webhook returned response.patch but not response.patchType" + note(false)},
		{"a type of no patch", answerOf(`"allowed":true,"patchType":"JSONPatch"`),
			failed + "received invalid webhook response: webhook returned response.patchType but not response.patch" + note(false)},
		{"a type that is empty", answerOf(`"allowed":true,"patchType":"","patch":"W10="`),
			failed + `received invalid webhook response: webhook returned invalid response.patchType of ""` + note(false)},
		{"another type", answerOf(`"allowed":true,"patchType":"Merge","patch":"` +
			base64.StdEncoding.EncodeToString([]byte(`[{"op":"remove","path":"/x"}]`)) + `"`),
			failed + `unsupported patch type "Merge"` + note(false)},
		{"what cannot be read", answerOf(`"allowed":true,"patchType":"JSONPatch","patch":"e30="`),
			failed + "received undecodable patch in webhook response: json: cannot unmarshal object into Go value of type jsonpatch.Patch" +
				note(false)},
		{"what cannot be applied", patchOf(`[{"op":"remove","path":"/metadata/labels/none"}]`),
			"500 InternalError: Internal error occurred: error in remove for path: '/metadata/labels/none': Unable to remove nonexistent key: none: missing value" + note(false)},
		{"another kind", patchOf(`[{"op":"replace","path":"/kind","value":"ConfigMap"}]`),
			"500 InternalError: Internal error occurred: converting (v1.ConfigMap) to (Pod): unknown conversion" + note(false)},
		{"a kind that nobody serves", patchOf(`[{"op":"replace","path":"/kind","value":"Nothing"}]`),
			`500 InternalError: Internal error occurred: no kind "Nothing" is registered for version "v1" in scheme "pkg/runtime/scheme.go:111"` +
				note(false)},
		{"no kind at all", patchOf(`[{"op":"remove","path":"/kind"},{"op":"remove","path":"/apiVersion"},{"op":"add","path":"/metadata/labels/a","value":"b"}]`), "allowed\nlabels map[a:b team:a]" + note(true)},
		{"denied, with a patch", strings.Replace(patchOf(`[{"op":"add","path":"/metadata/labels/a","value":"b"}]`), "true", "false", 1),
			`400 : admission webhook "w.example.com" denied the request without explanation` + note(false)},
		{"warnings and annotations", answerOf(`"allowed":true,"warnings":["careful"],"auditAnnotations":{"key":"value","a/b":"c"}`),
			"allowed\nwarning careful" + note(false) + "\nw.example.com/key = value"},
	} {
		server := newHookServer(t)
		server.say = c.say
		s := newSetting(t, Protection{})
		s.register(t, true, webhookOf(server, "w"))
		a := creation()
		if d := cmp.Diff(c.want, s.outcome(t, server, a)); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
		if p := a.Object.(*corev1.Pod); c.name == "a label" && p.Spec.RestartPolicy != corev1.RestartPolicyAlways {
			t.Errorf("%s: defaults were not filled in after the patch", c.name)
		}
	}
	server := newHookServer(t)
	server.say = patchOf(`[{"op":"add","path":"/metadata/labels/a","value":"b"}]`)
	s := newSetting(t, Protection{})
	s.register(t, true, webhookOf(server, "w"))
	a := creation()
	a.Operation, a.Old, a.Object = admit.Delete, a.Object, nil
	if got := s.outcome(t, server, a); !strings.HasPrefix(got,
		`500 InternalError: Internal error occurred: admission webhook "w.example.com" attempted to modify the object, which is not supported for this operation`) {
		t.Errorf("a deletion: %s", got)
	}
}

// TestValidatorsMayNotPatch checks that a validating webhook's response with a patch is invalid.
func TestValidatorsMayNotPatch(t *testing.T) {
	for say, want := range map[string]string{
		patchOf(`[{"op":"add","path":"/metadata/labels/a","value":"b"}]`): "received invalid webhook response: validating webhook may not return response.patch",
		answerOf(`"allowed":true,"patchType":"JSONPatch"`):                "received invalid webhook response: validating webhook may not return response.patchType",
	} {
		server := newHookServer(t)
		server.say = say
		s := newSetting(t, Protection{})
		s.register(t, false, webhookOf(server, "w"))
		if got := s.outcome(t, server, creation()); got != `500 InternalError: Internal error occurred: failed calling webhook "w.example.com": `+
			want {
			t.Errorf("%s: %s", say, got)
		}
	}
}

// TestDryRun checks that a dry run calls only webhooks without side effects.
func TestDryRun(t *testing.T) {
	for class, want := range map[admissionregistrationv1.SideEffectClass]string{
		"None": "allowed", "NoneOnDryRun": "allowed",
		"Some":    `400 BadRequest: admission webhook "w.example.com" does not support dry run`,
		"Unknown": `400 BadRequest: admission webhook "w.example.com" does not support dry run`,
		"":        `500 InternalError: Internal error occurred: failed calling webhook "w.example.com": Webhook SideEffects is nil`,
	} {
		server := newHookServer(t)
		server.say = answerOf(`"allowed":true`)
		s := newSetting(t, Protection{})
		h := webhookOf(server, "w")
		if h.SideEffects = &class; class == "" {
			h.SideEffects = nil
		}
		s.register(t, false, h)
		a := creation()
		a.DryRun = true
		if got := s.outcome(t, server, a); got != want || (len(server.paths()) > 0) != (want == "allowed") {
			t.Errorf("%q: %s, asked %v", class, got, server.paths())
		}
		if got := s.outcome(t, server, creation()); got != "allowed" {
			t.Errorf("%q in earnest: %s", class, got)
		}
	}
}

// TestReinvocation checks that a webhook that requests it is called again when others changed the object after it.
func TestReinvocation(t *testing.T) {
	for _, c := range []struct {
		again  bool
		change bool
		want   string
	}{
		{false, false, "[first second]"}, {true, false, "[first second]"}, {false, true, "[first second]"}, {true, true, "[first second first]"},
	} {
		server := newHookServer(t)
		server.say = answerOf(`"allowed":true`)
		if c.change {
			server.other = map[string]string{"second": patchOf(`[{"op":"add","path":"/metadata/labels/a","value":"b"}]`)}
		}
		s := newSetting(t, Protection{})
		first, second := webhookOf(server, "first"), webhookOf(server, "second")
		if c.again {
			first.ReinvocationPolicy = ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy)
		}
		s.register(t, true, first, second)
		_ = s.outcome(t, server, creation())
		if got := fmt.Sprint(server.paths()); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// TestMatchConditions checks that a webhook is called if all its conditions match. A condition that cannot be evaluated
// rejects the request, or with the failure policy Ignore skips the webhook.
func TestMatchConditions(t *testing.T) {
	for _, c := range []struct {
		expression string
		policy     admissionregistrationv1.FailurePolicyType
		want       string
		asked      bool
	}{
		{"true", "Fail", "allowed", true},
		{"false", "Fail", "allowed", false},
		{"object.metadata.name == 'p'", "Fail", "allowed", true},
		{"object.metadata.name == 'q'", "Fail", "allowed", false},
		{"authorizer.group('').resource('pods').check('get').allowed()", "Fail", "allowed", true},
		{"object.spec.hostname == 'x'", "Fail", `403 Forbidden: pods "p" is forbidden: expression 'object.spec.hostname == 'x'' resulted in error: no such key: hostname`, false},
		{"object.spec.hostname == 'x'", "Ignore", "allowed", false},
	} {
		for _, mutating := range []bool{true, false} {
			server := newHookServer(t)
			server.say = answerOf(`"allowed":true`)
			s := newSetting(t, Protection{})
			h := webhookOf(server, "w")
			h.FailurePolicy, h.MatchConditions = &c.policy, []admissionregistrationv1.MatchCondition{{Name: "x", Expression: c.expression}}
			s.register(t, mutating, h)
			got, _, _ := strings.Cut(s.outcome(t, server, creation()), "\n")
			if got != c.want || (len(server.paths()) > 0) != c.asked {
				t.Errorf("%s, %s, mutating %v: %s, asked %v", c.expression, c.policy, mutating, got, server.paths())
			}
		}
	}
}
