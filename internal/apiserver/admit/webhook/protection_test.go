// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// TestConfigurationsInErrors checks that errors and warnings name the webhook's configuration if that is enabled.
func TestConfigurationsInErrors(t *testing.T) {
	for say, want := range map[string]map[bool]string{
		answerOf(`"allowed":false`): {
			false: `400 : admission webhook "w.example.com" denied the request without explanation`,
			true:  `400 : admission webhook "w.example.com" of ValidatingWebhookConfiguration "c" denied the request without explanation`,
		},
		answerOf(`"allowed":true,"warnings":["careful",""]`): {
			false: "allowed\nwarning careful\nwarning ",
			true:  "allowed\nwarning webhook \"w.example.com\" of ValidatingWebhookConfiguration \"c\": careful\nwarning ",
		},
	} {
		for _, told := range []bool{false, true} {
			server := newHookServer(t)
			server.say = say
			s := newSetting(t, Protection{Configurations: told})
			s.register(t, false, webhookOf(server, "w"))
			if got := s.outcome(t, server, creation()); got != want[told] {
				t.Errorf("configurations %v: got %s, want %s", told, got, want[told])
			}
		}
	}
}

// breaking is a webhook that always fails, with a clock that the test moves and a log.
type breaking struct {
	*setting
	t      *testing.T
	server *hookServer
	clock  *clocktesting.FakeClock
	log    told
	hook   admissionregistrationv1.MutatingWebhook
}

func newBreaking(t *testing.T, protection Protection) *breaking {
	t.Helper()
	b := &breaking{t: t, server: newHookServer(t), clock: clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0)), log: newTold()}
	b.server.status, b.server.say = http.StatusInternalServerError, "{}"
	b.setting = newSetting(t, protection, func(s *setting) {
		s.host.Ledger, s.host.Log = extension.NewLedger(b.clock), slog.New(b.log)
	})
	b.hook = webhookOf(b.server, "w")
	return b
}

// annotated is register with the value of the configuration's breaker annotation; empty: none.
func (b *breaking) annotated(said string) {
	b.t.Helper()
	obj := b.objects.objects[b.store(false, "c", b.hook)]
	if said != "" {
		obj.SetAnnotations(map[string]string{BreakerAnnotation: said})
	}
	b.committed(b.t, "c")
}

// asked sends a number of requests, which are all rejected, and returns how often the webhook was called.
func (b *breaking) asked(requests int) int {
	b.t.Helper()
	before := len(b.server.paths())
	for range requests {
		if got := b.outcome(b.t, b.server, creation()); !strings.HasPrefix(got, "500 ") {
			b.t.Errorf("not refused: %s", got)
		}
	}
	return len(b.server.paths()) - before
}

// TestBreakers checks that a webhook is not called for a while after a number of consecutive failures, either for all
// configurations or for those with the annotation, and what is logged.
func TestBreakers(t *testing.T) {
	for _, c := range []struct {
		name       string
		protection Protection
		said       string
		calls      int // of seven requests
		pause      time.Duration
	}{
		{"nobody wants it", Protection{}, "", 7, 0},
		{"the configuration wants it", Protection{}, "on", 5, 10 * time.Second},
		{"the configuration wants it not", Protection{Failures: 2}, "off", 7, 0},
		{"it wants what there is not", Protection{}, "maybe", 7, 0},
		{"everybody has it", Protection{Failures: 2}, "", 2, 10 * time.Second},
		{"everybody has it, and this one wants it", Protection{Failures: 2}, "on", 2, 10 * time.Second},
		{"for another while", Protection{Failures: 2, Pause: time.Hour}, "", 2, time.Hour},
	} {
		b := newBreaking(t, c.protection)
		b.annotated(c.said)
		if n := b.asked(7); n != c.calls {
			t.Errorf("%s: called %d times", c.name, n)
		}
		if c.pause == 0 {
			continue
		}
		const quiet = "Webhook keeps failing, pausing calls to it configuration=c webhook=w.example.com pause="
		if line := <-b.log.lines; line != quiet+c.pause.String() {
			t.Errorf("%s: logged %q", c.name, line)
		}
		b.clock.Step(c.pause - time.Nanosecond)
		if n := b.asked(2); n != 0 {
			t.Errorf("%s: called %d times before the pause was over", c.name, n)
		}
		b.clock.Step(time.Nanosecond)
		b.server.status, b.server.say = 0, answerOf(`"allowed":true`)
		for range 2 {
			if got := b.outcome(t, b.server, creation()); got != "allowed" {
				t.Errorf("%s: after the pause: %s", c.name, got)
			}
		}
		if line := <-b.log.lines; line != "Calling a webhook again configuration=c webhook=w.example.com" {
			t.Errorf("%s: logged %q", c.name, line)
		}
	}
}

// TestBreakersAreClosed checks that a skipped webhook is called again immediately after its call settings change.
func TestBreakersAreClosed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*admissionregistrationv1.MutatingWebhook)
		calls  int
	}{
		"as it was":        {func(*admissionregistrationv1.MutatingWebhook) {}, 0},
		"on other objects": {func(h *admissionregistrationv1.MutatingWebhook) { h.Rules[0].Resources = []string{"*"} }, 0},
		"at another address": {func(h *admissionregistrationv1.MutatingWebhook) {
			h.ClientConfig.URL = ptr.To(*h.ClientConfig.URL + "/x")
		}, 1},
		"of another name": {func(h *admissionregistrationv1.MutatingWebhook) { h.Name = "x.example.com" }, 1}, // it is another webhook
		"trusting another": {func(h *admissionregistrationv1.MutatingWebhook) {
			h.ClientConfig.CABundle = append([]byte("\n"), h.ClientConfig.CABundle...)
		}, 1},
	} {
		b := newBreaking(t, Protection{Failures: 1})
		b.annotated("")
		if n := b.asked(2); n != 1 {
			t.Fatalf("called %d times at first", n)
		}
		c.change(&b.hook)
		b.annotated("")
		if n := b.asked(2); n != c.calls {
			t.Errorf("%s: called %d times", name, n)
		}
	}
}

// TestBreakersAndEndpoints checks that a webhook of a service is called again when the service's endpoints change.
func TestBreakersAndEndpoints(t *testing.T) {
	for name, c := range map[string]struct {
		namespace string
		stored    resource.Object
		failures  int
		tried     bool
	}{
		"its own":                 {"hooks", sliceOf("hook"), 1, true},
		"another's":               {"hooks", sliceOf("web"), 1, false},
		"nobody's":                {"hooks", sliceOf(""), 1, false},
		"one that is gone":        {"hooks", nil, 1, false},
		"one in another place":    {"other", sliceOf("hook"), 1, false},
		"where there is no pause": {"hooks", sliceOf("hook"), 0, true},
	} {
		server := newHookServer(t)
		s := newSetting(t, Protection{Failures: c.failures}, withoutEndpoints)
		commit := func() {
			t.Helper()
			if err := s.validating.Apply(t.Context(), s.change(endpointSlices, c.namespace, "s")); err != nil {
				t.Error(err)
			}
		}
		commit() // there are no webhooks yet
		s.register(t, false, behind(server))
		if c.stored != nil {
			s.objects.objects["endpointslices/"+c.namespace+"/s"] = c.stored
		}
		for range 2 {
			_ = s.outcome(t, server, creation())
		}
		commit()
		got := s.outcome(t, server, creation())
		if tried := !strings.Contains(got, "extension is not called while it keeps failing"); tried != c.tried {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestSecondServiceOfSlices checks that only the webhooks of the slice's service are called again.
func TestSecondServiceOfSlices(t *testing.T) {
	server := newHookServer(t)
	s := newSetting(t, Protection{Failures: 1}, withoutEndpoints)
	first, second := behind(server), behind(server)
	second.Name, second.ClientConfig.Service = "second.example.com",
		&admissionregistrationv1.ServiceReference{Namespace: "hooks", Name: "second"}
	s.register(t, false, first, second)
	s.objects.objects["endpointslices/hooks/s"] = sliceOf("second")
	_ = s.outcome(t, server, creation())
	if err := s.validating.Apply(t.Context(), s.change(endpointSlices, "hooks", "s")); err != nil {
		t.Fatal(err)
	}
	for _, e := range s.host.Ledger.Snapshot() {
		want := extension.Open
		if e.Name == "c/second.example.com" {
			want = extension.Failing
		}
		if e.State != want {
			t.Errorf("%s is %s, want %s", e.Name, e.State, want)
		}
	}
}

// TestLeavingIsNotItsFault checks that a client that leaves does not count as a failure of the webhook.
func TestLeavingIsNotItsFault(t *testing.T) {
	for _, protection := range []Protection{{Failures: 1}, {Failures: 1, Deadline: time.Hour}} {
		b := newBreaking(t, protection)
		b.register(t, true, b.hook)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 3 {
			got := b.outcomeIn(ctx, b.server, creation())
			if !strings.HasPrefix(got, `500 InternalError: Internal error occurred: failed calling webhook "w.example.com": failed to call webhook: `) ||
				!strings.Contains(got, "context canceled") {
				t.Errorf("deadline %v: %s", protection.Deadline, got)
			}
		}
		if got := b.counted(t); strings.Contains(got, "rejection_count") {
			t.Errorf("deadline %v: counted %s", protection.Deadline, got)
		}
		if n := b.asked(2); n != 1 { // it failed in these calls
			t.Errorf("deadline %v: called %d times", protection.Deadline, n)
		}
	}
}

// spent returns the context of a request whose webhooks already took some time: m/a a third, m/b two thirds.
func spent(t *testing.T, all time.Duration) context.Context {
	s, begun := &admit.Spending{}, time.Now()
	s.Begin(begun)
	s.End("m/a.example.com", begun, begun.Add(all/3))
	s.Begin(begun.Add(all / 3))
	s.End("m/b.example.com", begun.Add(all/3), begun.Add(all))
	return admit.WithSpending(t.Context(), s)
}

// TestDeadline checks that a request without time for further webhooks counts the next one as failed, and reports the
// time of each webhook. The failure policy decides.
func TestDeadline(t *testing.T) {
	for _, mutating := range []bool{true, false} {
		server := newHookServer(t)
		server.say = answerOf(`"allowed":true`)
		s := newSetting(t, Protection{Deadline: 3 * time.Hour})
		h := webhookOf(server, "w")
		s.register(t, mutating, h)
		if got := s.outcomeIn(spent(t, 3*time.Hour-time.Minute), server, creation()); !strings.HasPrefix(got, "allowed") {
			t.Errorf("a minute is left: %s", got)
		}
		if d := s.host.Ledger.Snapshot()[0]; d.Calls != 1 || d.State != extension.OK {
			t.Errorf("a minute is left: the ledger has %+v", d)
		}
		got, _, _ := strings.Cut(s.outcomeIn(spent(t, 3*time.Hour), server, creation()), "\n")
		want := `500 InternalError: Internal error occurred: failed calling webhook "w.example.com": failed to call webhook: ` +
			`the deadline of admission is used up (3h0m0s), most of it by m/b.example.com: m/a.example.com took 1h0m0s, m/b.example.com took 2h0m0s, c/w.example.com took 0s`
		if got != want {
			t.Errorf("none is left: %s", got)
		}
		step := map[bool]string{true: "admit", false: "validating"}[mutating]
		for _, line := range []string{
			"rejection_count{error_type=calling_webhook_error,name=w.example.com,operation=CREATE,rejection_code=504,type=" + step + "} 1",
			"request_total{code=504,name=w.example.com,operation=CREATE,rejected=true,type=" + step + "} 1",
		} {
			if got := s.counted(t); !strings.Contains(got, line) {
				t.Errorf("want %s in\n%s", line, got)
			}
		}
		h.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
		s.register(t, mutating, h)
		if got := s.outcomeIn(spent(t, 4*time.Hour), server, creation()); !strings.HasPrefix(got, "allowed") {
			t.Errorf("none is left, to be ignored: %s", got)
		}
		if n := len(server.paths()); n != 1 {
			t.Errorf("called %d times", n)
		}
	}
}

// TestDeadlinePasses checks a deadline that expires during a call: it counts as the webhook's failure, unless other
// webhooks left it little time.
func TestDeadlinePasses(t *testing.T) {
	const little = 20 * time.Millisecond
	for _, c := range []struct {
		name     string
		deadline time.Duration
		before   time.Duration
		asked    int // of two requests
		says     string
	}{
		{"it took all", little, 0, 1, "most of it by c/w.example.com: "},
		{"it was left little", 3 * time.Hour, 3*time.Hour - little, 2, "most of it by m/b.example.com: m/a.example.com took 59m59"},
	} {
		b := newBreaking(t, Protection{Deadline: c.deadline, Failures: 1, Pause: time.Hour})
		b.server.meet = func(q *http.Request) { <-q.Context().Done() }
		b.register(t, false, b.hook)
		var first string
		for i := range 2 {
			ctx := t.Context()
			if c.before > 0 {
				ctx = spent(t, c.before)
			}
			if got := b.outcomeIn(ctx, b.server, creation()); i == 0 {
				first = got
			}
		}
		want := "failed to call webhook: the deadline of admission is used up (" + c.deadline.String() + "), " + c.says
		if !strings.Contains(first, want) {
			t.Errorf("%s: %s, want %s", c.name, first, want)
		}
		if e := b.host.Ledger.Snapshot()[0]; e.Calls != int64(c.asked) {
			t.Errorf("%s: called %d times", c.name, e.Calls)
		}
	}
}

// TestDeadlineOfTheRequest checks the error when the request's own deadline expires first.
func TestDeadlineOfTheRequest(t *testing.T) {
	server := newHookServer(t)
	server.meet = func(q *http.Request) { <-q.Context().Done() }
	s := newSetting(t, Protection{Deadline: time.Hour})
	s.register(t, false, webhookOf(server, "w"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if got := s.outcomeIn(ctx, server, creation()); !strings.Contains(got, "context deadline exceeded") || strings.Contains(got, "used up") {
		t.Error(got)
	}
}

// TestTimeout checks that a webhook has the time in its configuration, which the call contains as a parameter.
func TestTimeout(t *testing.T) {
	server := newHookServer(t)
	queries := make(chan string, 10)
	server.say, server.meet = answerOf(`"allowed":true`), func(q *http.Request) { queries <- q.URL.RawQuery }
	s := newSetting(t, Protection{})
	h := webhookOf(server, "w")
	for _, c := range []struct {
		seconds *int32
		want    string
	}{{ptr.To(int32(7)), "timeout=7s"}, {nil, "timeout=30s"}} { // client-go's default

		h.TimeoutSeconds = c.seconds
		s.register(t, false, h)
		if got := s.outcome(t, server, creation()); got != "allowed" {
			t.Error(got)
		}
		if got := <-queries; got != c.want {
			t.Errorf("asked with %q, want %q", got, c.want)
		}
	}
}

// TestRequestsWithoutTime checks that a request whose deadline has expired calls no webhook, and that no failure policy
// admits it.
func TestRequestsWithoutTime(t *testing.T) {
	server := newHookServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	const late = "504 Timeout: Timeout: request did not complete within requested timeout"
	for _, c := range []struct {
		mutating, ignore bool
		want             string
	}{
		{true, true, late}, {false, true, late}, {false, false, late},
		{true, false, `500 InternalError: Internal error occurred: failed calling webhook "w.example.com": failed to call webhook: `},
	} {
		s := newSetting(t, Protection{})
		h := webhookOf(server, "w")
		if c.ignore {
			h.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
		}
		s.register(t, c.mutating, h)
		got := s.outcomeIn(ctx, server, creation())
		if !strings.HasPrefix(got, c.want) || strings.Contains(got, "failed-open") {
			t.Errorf("mutating %v, ignore %v: %s", c.mutating, c.ignore, got)
		}
		if strings.Contains(s.counted(t), "fail_open") {
			t.Errorf("mutating %v, ignore %v: counted as passed over", c.mutating, c.ignore)
		}
	}
	if len(server.paths()) > 0 {
		t.Errorf("asked %v", server.paths())
	}
}

// TestLeavingWhileItIsAsked checks that a client that leaves during the call of a validating webhook with the failure policy
// Ignore does not count as a call that failed open.
func TestLeavingWhileItIsAsked(t *testing.T) {
	server := newHookServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	server.meet = func(q *http.Request) { cancel(); <-q.Context().Done() }
	s := newSetting(t, Protection{})
	h := webhookOf(server, "w")
	h.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
	s.register(t, false, h)
	if got := s.outcomeIn(ctx, server, creation()); got != "allowed" {
		t.Error(got)
	}
	if got := s.counted(t); strings.Contains(got, "fail_open") {
		t.Errorf("counted %s", got)
	}
	if len(server.paths()) != 1 {
		t.Error("the webhook was not asked")
	}
}
