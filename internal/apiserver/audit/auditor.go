// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/lasting"
)

// ReadPolicy reads a policy: audit.k8s.io/v1, YAML or JSON.
func ReadPolicy(b []byte) (*auditinternal.Policy, error) {
	p, err := policy.LoadPolicyFromBytes(b)
	if err != nil {
		return nil, fmt.Errorf("read audit policy: %w", err)
	}
	return p, nil
}

// Auditor records requests and responses according to its policy. A nil Auditor records nothing.
type Auditor struct {
	rules    audit.PolicyRuleEvaluator
	backends []Backend
	strict   bool // a backend can reject requests
	log      *slog.Logger
	counters *Counters
}

// New makes an auditor that writes to backends. Its counters are readable immediately.
func New(p *auditinternal.Policy, log *slog.Logger, backends ...Backend) *Auditor {
	a := &Auditor{rules: policy.NewPolicyRuleEvaluator(p), backends: backends, log: log, counters: &Counters{}}
	for _, b := range backends {
		b.bind(a.counters, log)
		switch b := b.(type) {
		case *logger:
			a.strict = a.strict || b.o.Mode == BlockingStrict
		case *sender:
			a.strict = a.strict || b.o.Mode == BlockingStrict
		}
	}
	return a
}

// Run runs the backends until ctx ends and they have sent all accepted events.
func (a *Auditor) Run(ctx context.Context) error {
	var g sync.WaitGroup
	for _, b := range a.backends {
		g.Go(func() { b.run(ctx) })
	}
	g.Wait()
	return nil
}

// Counts returns the counters. It works for a nil auditor too.
func (a *Auditor) Counts() *Counters {
	if a == nil {
		return &Counters{}
	}
	return a.counters
}

// With returns a context in which a request collects the data of its event.
func (a *Auditor) With(ctx context.Context) context.Context {
	if a == nil {
		return ctx
	}
	ctx = audit.WithAuditContext(ctx)
	audit.WithAuditID(ctx, types.UID(ID(ctx)))
	return request.WithLatencyTrackers(ctx)
}

// lines pools the buffers in which events are encoded.
var lines = sync.Pool{New: func() any { return new([]byte) }}

// maxRoom is the maximum size of a pooled buffer.
const maxRoom = 64 << 10

// ProcessEvents implements upstream's audit.Sink: it encodes an event once, and passes it to each backend.
func (a *Auditor) ProcessEvents(events ...*auditinternal.Event) bool {
	room := lines.Get().(*[]byte)
	ok := true
	for _, e := range events {
		a.counters.events.Add(1)
		line := appendEvent((*room)[:0], e)
		for _, b := range a.backends {
			ok = b.take(e, line) && ok
		}
		if cap(line) <= maxRoom {
			*room = line
		}
	}
	lines.Put(room)
	return ok
}

// judge evaluates the policy for a request and begins its event; nil: it is not audited.
func (a *Auditor) judge(r *http.Request, at authorizer.Attributes, received time.Time) (ac *audit.AuditContext,
	config audit.RequestAuditConfig) {
	ctx := r.Context()
	if ac = audit.AuditContextFrom(ctx); ac == nil {
		return nil, config
	}
	config = a.rules.EvaluatePolicyRule(at)
	a.counters.level(config.Level)
	if err := ac.Init(config, a); err != nil || config.Level == auditinternal.LevelNone {
		return nil, config // Init cannot fail: it is called once per request
	}
	audit.LogRequestMetadata(ctx, r, received, at)
	return ac, config
}

// Serve calls next and records the request, its object and its response. long is true for long-running requests: for
// them it also records the start of the response.
func (a *Auditor) Serve(w http.ResponseWriter, r *http.Request, at authorizer.Attributes, received time.Time, long bool,
	next http.Handler) {
	ac, config := a.judge(r, at, received)
	if ac == nil {
		next.ServeHTTP(w, r)
		return
	}
	ctx := r.Context()
	if !ac.ProcessEventStage(ctx, auditinternal.StageRequestReceived) {
		a.counters.rejected.Add(1)
		internalError(w, r, "failed to store audit event") // upstream's words
		return
	}
	t := &tap{ResponseWriter: w, ctx: ctx, ac: ac, long: long, bare: config.OmitManagedFields}
	if !long {
		t.copies = config.Level == auditinternal.LevelRequestResponse
		t.holds = a.strict && r.Method != http.MethodGet && r.Method != http.MethodHead
	}
	end := func(p any) {
		if p != nil {
			ac.SetEventResponseStatus(&metav1.Status{
				Code: http.StatusInternalServerError, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError,
				Message: fmt.Sprintf("APIServer panic'd: %v", p), // upstream's words
			})
			ac.ProcessEventStage(ctx, auditinternal.StagePanic)
			panic(p)
		}
		if ac.GetEventResponseStatus() == nil {
			// upstream's words
			ac.SetEventResponseStatus(&metav1.Status{Code: http.StatusOK, Status: metav1.StatusSuccess, Message: "Connection closed early"})
			if long {
				ac.ProcessEventStage(ctx, auditinternal.StageResponseStarted)
			}
		}
		annotateLatency(ctx, received)
		a.complete(t)
	}
	defer func() { lasting.Recover(w, recover(), end) }()
	next.ServeHTTP(t, r)
}

// complete ends a request's event, and then releases the response if it was held back.
func (a *Auditor) complete(t *tap) {
	if t.copies {
		if body, err := answered(t.Header(), t.body); err != nil {
			a.log.ErrorContext(t.ctx, "Could not decode a response for its audit event", "error", err)
		} else if body != nil {
			if t.bare {
				body = withoutManagedFields(body)
			}
			t.ac.LogResponseObject(nil, &runtime.Unknown{Raw: body, ContentType: runtime.ContentTypeJSON})
		}
	}
	t.ac.ProcessEventStage(t.ctx, auditinternal.StageResponseComplete)
	t.release()
}

// Refused calls next, which rejects a request before it reaches the audit stage, and records one event with the
// message.
func (a *Auditor) Refused(w http.ResponseWriter, r *http.Request, at authorizer.Attributes, received time.Time, message string,
	next http.HandlerFunc) {
	if a == nil {
		next(w, r)
		return
	}
	ac, _ := a.judge(r, at, received)
	if ac == nil {
		next(w, r)
		return
	}
	ac.SetEventResponseStatus(&metav1.Status{Message: message})
	next(&tap{ResponseWriter: w, ctx: r.Context(), ac: ac, long: true}, r)
}

// Attempted returns the authentication methods that a request tried, in upstream's words.
func Attempted(r *http.Request) string {
	var all []string
	if _, _, ok := r.BasicAuth(); ok {
		all = append(all, "basic")
	}
	if parts := strings.Split(strings.TrimSpace(r.Header.Get("Authorization")), " "); len(parts) > 1 && strings.EqualFold(parts[0], "bearer") {
		all = append(all, "bearer")
	}
	if strings.TrimSpace(r.URL.Query().Get("access_token")) != "" {
		all = append(all, "access_token")
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		all = append(all, "x509")
	}
	if len(all) == 0 {
		return "Authentication failed, no credentials provided" // upstream's words
	}
	return "Authentication failed, attempted: " + strings.Join(all, ", ") // upstream's words
}

func internalError(w http.ResponseWriter, r *http.Request, text string) {
	w.Header().Del("Cache-Control")
	text = fmt.Sprintf("Internal Server Error: %q: %s", r.RequestURI, text) // upstream's words
	http.Error(w, authorize.EscapeMarkup(text), http.StatusInternalServerError)
}
