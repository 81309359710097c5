// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package explain records traces of writes: the user, the duration of each stage, the changes of each mutating step, the step that
// rejected the write, and the stored objects. `mortise explain` reads them at [trace.Route].
//
// A [Recorder] begins a [Trace] for a write request; the trace is in the request's context ([With], [From]), and each step records its
// part with one call. All methods of a nil Trace do nothing, so that steps need not know whether traces are recorded. [Trace.Finish]
// stores the trace.
//
// # Memory
//
// Traces are in memory, as compact bytes in rings of a bounded size (ring.go, record.go): objects are decoded, and diffs computed, only on
// request (answer.go, field.go). There is no index: a request reads all traces, which are some megabytes. Three rings share the bound, so
// that frequent writes do not displace rare ones: seven tenths for writes with their contents, two tenths for rejected ones, one tenth for
// brief ones. Brief are leases, events, reviews, and the status that the cluster's own components write: their traces have stages and
// verdicts, but no contents.
//
// # Secrets
//
// Values of Secrets are replaced before they are recorded (redact.go), each by a mark that is the same for the same value within a write,
// so that a change shows; bodies with tokens are not recorded at all.
package explain

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
)

// Stage is a part of the server that a write passes.
type Stage uint8

// The stages in their order. Time that passes belongs to the stage that was entered last.
const (
	Receive Stage = iota
	Authenticate
	Audit
	Impersonate
	FlowControl
	Authorize
	Decode
	Mutate
	Prepare
	Validate
	Store
	Respond
	stageCount
)

var stageNames = [stageCount]string{
	"receive", "authenticate", "audit", "impersonate", "flow control", "authorize", "decode", "mutate", "prepare", "validate", "store",
	"respond",
}

// String is the stage's name.
func (s Stage) String() string { return stageNames[s] }

// DefaultBytes is the default maximum of the memory of traces.
const DefaultBytes = 16 << 20

// Options of [New].
type Options struct {
	Bytes   int64     // that traces take at most; 0: DefaultBytes
	Started time.Time // of the server
	// Mutators and Validators are the names of the admission plug-ins that are one, in their order.
	Mutators, Validators []string
	Now                  func() time.Time // nil: time.Now
}

// Recorder keeps traces. A nil one keeps none.
type Recorder struct {
	started    time.Time
	now        func() time.Time
	bound      int64
	large      int          // contents of more bytes are not kept
	key        [32]byte     // of marks
	numbers    atomic.Int64 // of traces
	validators []string
	watched    map[string]bool     // resources that some built-in plug-in changes
	changes    map[string][]string // by plug-in, as in the table
	foreign    bool                // there are plug-ins of which nothing is known

	full, refused, brief ring
	buffers              sync.Pool // in which records are made
}

// New makes a recorder.
func New(o Options) *Recorder {
	if o.Bytes <= 0 {
		o.Bytes = DefaultBytes
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &Recorder{started: o.Started, now: o.Now, bound: o.Bytes, large: int(min(o.Bytes/16, 1<<20)), validators: o.Validators}
	if _, err := rand.Read(r.key[:]); err != nil {
		panic("explain: no randomness: " + err.Error()) // the runtime ends the program before this
	}
	segment := int(min(max(o.Bytes/64, 4<<10), 256<<10))
	r.full = ring{bound: o.Bytes * 7 / 10, segment: segment}
	r.refused = ring{bound: o.Bytes * 2 / 10, segment: segment}
	r.brief = ring{bound: o.Bytes / 10, segment: segment}
	r.watched, r.changes, r.foreign = concerns(o.Mutators), mutates(), len(Foreign(o.Mutators)) > 0
	return r
}

// Traces reports whether a request is one whose trace is kept: a write, or a connection, on which admission decides too.
func (r *Recorder) Traces(info *request.RequestInfo) bool {
	return r != nil && (requestinfo.Writes(info) || requestinfo.Connects(info))
}

// Begin begins the trace of a request that came at a time.
func (r *Recorder) Begin(info *request.RequestInfo, at time.Time) *Trace {
	t := &Trace{recorder: r, info: info, begun: at, since: at, number: r.numbers.Add(1)}
	t.secret = secret(info.APIGroup, info.Resource, info.Subresource)
	switch info.APIGroup {
	case "coordination.k8s.io", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io":
		t.brief = true
	case "":
		t.brief = info.Resource == "events" || info.Subresource == "proxy" && !requestinfo.Writes(info)
	}
	return t
}

type key struct{}

// With is a context that carries a trace.
func With(ctx context.Context, t *Trace) context.Context { return context.WithValue(ctx, key{}, t) }

// From is the trace of the write that ctx belongs to; nil: it is not kept.
func From(ctx context.Context) *Trace {
	t, _ := ctx.Value(key{}).(*Trace)
	return t
}

// Trace is one write on its way. It may be used by many goroutines.
type Trace struct {
	recorder *Recorder
	info     *request.RequestInfo
	begun    time.Time
	number   int64 // among all of the recorder

	mu    sync.Mutex
	ended bool
	at    Stage
	since time.Time
	took  [stageCount]time.Duration

	secret, brief, dryRun     bool
	decided, allowed, refused bool
	refusedAt                 Stage
	user, as                  string
	name                      string // of what is created
	by, why                   string
	schema, level             string
	manager, operation, media string
	body                      []byte
	commits                   []commit
	first                     [1]commit // most writes are of one object
	changes, denials          int32     // steps that were told of
	seen                      [2]int32  // those of them that the plug-ins are known by
	ran                       int32     // how many of the plug-ins validated
	more                      int
	odd                       *odd // nil of most writes: there is nothing out of the ordinary
}

// odd is what few traces have.
type odd struct {
	steps   []step
	patched [3][]byte // what a patch of a hook was applied to, what it made, and that filled in
	plugins watching
	reason  metav1.StatusReason
	message string
}

// oddly is the place for what few traces have.
func (t *Trace) oddly() *odd {
	if t.odd == nil {
		t.odd = new(odd)
	}
	return t.odd
}

// Enter says that the request comes to a stage.
func (t *Trace) Enter(s Stage) {
	if t == nil {
		return
	}
	now := t.recorder.now()
	t.mu.Lock()
	t.enter(s, now)
	t.mu.Unlock()
}

func (t *Trace) enter(s Stage, now time.Time) {
	t.took[t.at] += now.Sub(t.since)
	t.at, t.since = s, now
	if s == Authorize {
		t.by = "" // who decided about impersonation is another matter
	}
}

// Asks records the user of the request, and then, if there is one, the impersonated user.
func (t *Trace) Asks(name string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.user == "":
		t.user = name
	case name != t.user:
		t.as = name
	}
	if t.info.Subresource == "status" && component(name) {
		t.brief = true
	}
}

// component reports whether a user is a part of the cluster itself.
func component(name string) bool {
	rest, ok := strings.CutPrefix(name, "system:")
	if !ok {
		return false
	}
	account, ok := strings.CutPrefix(rest, "serviceaccount:")
	return !ok || strings.HasPrefix(account, "kube-system:")
}

// DecidedBy says which authorizer has an opinion.
func (t *Trace) DecidedBy(name string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	if !t.decided {
		t.by = name
	}
	t.mu.Unlock()
}

// Decided says what authorization decided, and why.
func (t *Trace) Decided(allowed bool, why string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.decided, t.allowed, t.why = true, allowed, why
	t.mu.Unlock()
}

// Queued says among which requests it had its turn.
func (t *Trace) Queued(schema, level string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.schema, t.level = schema, level
	t.mu.Unlock()
}

// Body is what the client sent. The bytes must not change any more.
func (t *Trace) Body(media string, body []byte) {
	if t == nil || t.secret || t.brief || len(body) > t.recorder.large {
		return
	}
	t.mu.Lock()
	t.media, t.body = media, body
	t.mu.Unlock()
}

// Managed records the manager of the fields that the write sets.
func (t *Trace) Managed(manager, operation string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.manager, t.operation = manager, operation
	t.mu.Unlock()
}

// DryRun says that nothing is stored.
func (t *Trace) DryRun() {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.dryRun = true
	t.mu.Unlock()
}

// Refused says how a write is answered that is not done.
func (t *Trace) Refused(s *metav1.Status) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.oddly()
	t.refused, t.refusedAt, o.reason = true, t.at, s.Reason
	if o.message = s.Message; t.secret && t.at > Authorize && !harmless(s.Reason) {
		o.message = withheld
	}
}

// Step is what may change or refuse a write.
type Step struct {
	Phase, Kind, Configuration, Name, Result, Reason string // as in [trace.Step]
	Took                                             time.Duration
	Before, After                                    []byte // JSON, of one that changed the object
}

// Step says what came of a step. What [Trace.Patched] said before belongs to it.
func (t *Trace) Step(s Step) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.oddly()
	if s.Before == nil && s.After == nil {
		s.Before, s.After = o.patched[0], o.patched[1]
	}
	filled := o.patched[2]
	o.patched = [3][]byte{}
	if t.secret && s.Reason != "" {
		s.Reason = withheld
	}
	t.add(t.contents(s))
	if filled != nil {
		t.add(t.contents(Step{Phase: s.Phase, Kind: trace.Defaulting, Result: trace.Changed, Before: s.After, After: filled}))
	}
}

// contents is a step with what is kept of its contents.
func (t *Trace) contents(s Step) step {
	kept := step{Step: s}
	if s.After == nil {
		return kept
	}
	kept.form = inJSON
	if t.secret {
		kept.Before, kept.After = t.marks(0).redactJSON(t.info, s.Before), t.marks(0).redactJSON(t.info, s.After)
		if kept.After == nil {
			kept.Before, kept.form = nil, hidden
		}
	}
	return kept
}

// maxSteps is the maximum number of recorded steps of a request: deleting a collection may have any number.
const maxSteps = 1000

func (t *Trace) add(s step) {
	o := t.oddly()
	if len(o.steps) == maxSteps || t.ended {
		return
	}
	if len(s.Before) > t.recorder.large || len(s.After) > t.recorder.large {
		s.Before, s.After, s.form = nil, nil, tooLarge
	}
	o.steps = append(o.steps, s)
	if s.Result == trace.Changed {
		t.changes++
	}
	if s.Result == trace.Denied || s.Result == trace.Failed {
		t.denials++
	}
}

// Patched says what a hook's answer makes of the object, and what that is when what it leaves out is filled in, all in JSON. The
// step follows.
func (t *Trace) Patched(before, after, filled []byte) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.oddly().patched = [3][]byte{before, after, filled}
	t.mu.Unlock()
}

// Keeps reports whether what steps change is written down, for what is costly to make.
func (t *Trace) Keeps() bool { return t != nil }

// step is a Step with the form of its contents.
type step struct {
	Step
	form form
}

// form is what bytes are.
type form uint8

const (
	nothing  form = iota
	inJSON        // as the request's version
	stored        // as the kind stores it
	tooLarge      // they were too large to keep
	hidden        // they were secret
	bound         // a core/v1 Binding as protobuf
)

// read reports whether the bytes can be read later.
func (f form) read() bool { return f == inJSON || f == stored || f == bound }
