// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package explain records traces of writes: the user, the duration of each stage, the changes of each mutating step,
// the step that rejected the write, and the stored objects. `mortise explain` reads them at [trace.Route].
//
// A [Recorder] begins a [Trace] for a write request. The request's context carries the trace ([With], [From]), and each
// step records its part with one call. All methods of a nil Trace do nothing, so that steps need not know whether
// traces are recorded. [Trace.Finish] stores the trace.
//
// # Memory
//
// Traces are kept in memory, as compact bytes in rings of a bounded size (ring.go, record.go). Objects are decoded and
// diffs computed only on request (answer.go, field.go). There is no index: a query reads all traces, which are a few
// megabytes. Three rings share the bound, so that frequent writes do not displace rare ones: seven tenths for writes
// with their contents, two tenths for rejected ones, one tenth for brief ones. Brief are leases, events, reviews, and
// the status that the cluster's own components write: their traces have stages and verdicts, but no contents.
//
// # Secrets
//
// Values of Secrets are replaced before they are recorded (redact.go), each by a mark that is the same for the same
// value within a write, so that a change is visible. Bodies with tokens are not recorded at all.
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

// Stage is a part of the server that a write passes through.
type Stage uint8

// The stages in order. Elapsed time belongs to the stage that was entered last.
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

// String returns the stage's name.
func (s Stage) String() string { return stageNames[s] }

// DefaultBytes is the default maximum of the memory of traces.
const DefaultBytes = 16 << 20

// Options of [New].
type Options struct {
	Bytes   int64     // maximum memory of traces; 0: DefaultBytes
	Started time.Time // start of the server
	// Mutators and Validators are the names of the mutating and validating admission plug-ins, in order.
	Mutators, Validators []string
	Now                  func() time.Time // nil: time.Now
	// Calls returns the calls to extensions for a pod or a persistent volume; nil: there are none.
	Calls func(resource, namespace, name string) []trace.Call
}

// Recorder keeps traces. A nil Recorder keeps none.
type Recorder struct {
	started    time.Time
	now        func() time.Time
	bound      int64
	large      int          // larger contents are not kept
	key        [32]byte     // of marks
	numbers    atomic.Int64 // of traces
	validators []string
	watched    map[string]bool     // resources that a built-in plug-in changes
	changes    map[string][]string // resources by plug-in, as in the table
	foreign    bool                // there are plug-ins with unknown effects
	calls      func(resource, namespace, name string) []trace.Call

	full, refused, brief ring
	buffers              sync.Pool // for encoding records
}

// New makes a recorder.
func New(o Options) *Recorder {
	if o.Bytes <= 0 {
		o.Bytes = DefaultBytes
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &Recorder{started: o.Started, now: o.Now, bound: o.Bytes, large: int(min(o.Bytes/16, 1<<20)), validators: o.Validators,
		calls: o.Calls}
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

// buffer returns memory for encodings, which [Recorder.release] takes back.
func (r *Recorder) buffer() *[]byte {
	b, _ := r.buffers.Get().(*[]byte)
	if b == nil {
		return new([]byte)
	}
	*b = (*b)[:0]
	return b
}

// release takes memory back that nobody reads any more; nil: there is none.
func (r *Recorder) release(b *[]byte) {
	const most = 1 << 20
	if b != nil && cap(*b) <= most {
		r.buffers.Put(b)
	}
}

// Traces reports whether a request is one whose trace is kept: a write, or a connection, on which admission decides too.
func (r *Recorder) Traces(info *request.RequestInfo) bool {
	return r != nil && (requestinfo.Writes(info) || requestinfo.Connects(info))
}

// Begin begins the trace of a request that arrived at the given time.
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

// With returns a context that carries a trace.
func With(ctx context.Context, t *Trace) context.Context { return context.WithValue(ctx, key{}, t) }

// From returns the trace of the write that ctx belongs to; nil: it is not traced.
func From(ctx context.Context) *Trace {
	t, _ := ctx.Value(key{}).(*Trace)
	return t
}

// Trace is the trace of one write in progress. It is safe for concurrent use.
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
	name                      string // of the created object
	by, why                   string
	schema, level             string
	manager, operation, media string
	body                      []byte
	commits                   []commit
	first                     [1]commit // most writes are of one object
	changes, denials          int32     // reported steps
	seen                      [2]int32  // those of them that the plug-ins are known by
	ran                       int32     // how many of the plug-ins validated
	more                      int
	odd                       *odd // rare data; nil for most writes
}

// odd is the data that few traces have.
type odd struct {
	steps   []step
	patched [3][]byte // the object before a webhook's patch, after it, and with defaults
	plugins watching
	reason  metav1.StatusReason
	message string
}

// oddly returns the rare data, and allocates it if necessary.
func (t *Trace) oddly() *odd {
	if t.odd == nil {
		t.odd = new(odd)
	}
	return t.odd
}

// Enter records that the request has reached a stage.
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
		t.by = "" // the decision about impersonation is a separate one
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

// DecidedBy records the authorizer that decided.
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

// Decided records the decision of authorization and its reason.
func (t *Trace) Decided(allowed bool, why string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.decided, t.allowed, t.why = true, allowed, why
	t.mu.Unlock()
}

// Queued records the flow schema and priority level of the request.
func (t *Trace) Queued(schema, level string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.schema, t.level = schema, level
	t.mu.Unlock()
}

// Body records the request's body. The bytes must not change any more.
func (t *Trace) Body(media string, body []byte) {
	if t == nil || t.secret || t.brief || len(body) > t.recorder.large {
		return
	}
	t.mu.Lock()
	t.media, t.body = media, body
	t.mu.Unlock()
}

// Managed records the field manager of the write.
func (t *Trace) Managed(manager, operation string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.manager, t.operation = manager, operation
	t.mu.Unlock()
}

// DryRun records that the request stores nothing.
func (t *Trace) DryRun() {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.dryRun = true
	t.mu.Unlock()
}

// Refused records the response to a write that was refused.
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

// Step is a step that may change or reject a write.
type Step struct {
	Phase, Kind, Configuration, Name, Result, Reason string // as in [trace.Step]
	Took                                             time.Duration
	Before, After                                    []byte // JSON, if the step changed the object
}

// Step records the result of a step. The last call of [Trace.Patched] belongs to it.
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

// contents returns a step with the contents that are kept.
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

// Patched records the object before and after a webhook's patch, and with the defaults that were filled in then, all in JSON. A call of
// [Trace.Step] follows.
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

// form is the format of recorded contents.
type form uint8

const (
	nothing  form = iota
	inJSON        // in the request's version
	stored        // as the kind stores it
	tooLarge      // omitted because of their size
	hidden        // omitted because they were secret
	bound         // a core/v1 Binding as protobuf
)

// read reports whether the bytes can be read later.
func (f form) read() bool { return f == inJSON || f == stored || f == bound }
