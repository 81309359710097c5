// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"encoding/binary"
	"errors"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/resource"
)

// record is a trace as bytes: numbers as varints, texts after their length, then steps and commits. The texts of a
// decoded record are slices of its bytes.
type record struct {
	numbers [numberCount]int64
	texts   [textCount][]byte
	body    []byte
	steps   []byte // see eachStep and eachCommit
	commits []byte
}

// The numbers of a record; the stages follow them.
const (
	numTime = iota
	numFlags
	numCode
	numRefusedAt
	numRan
	numMore
	numTook
	numSteps
	numCommits
	numNumber
	numStages
	numberCount = numStages + int(stageCount)
)

// The flags.
const (
	flagDryRun = 1 << iota
	flagBrief
	flagSecret
	flagRefused
	flagDecided
	flagAllowed
)

// The texts of a record.
const (
	textID = iota
	textUser
	textAs
	textAgent
	textSource
	textMethod
	textURI
	textVerb
	textGroup
	textVersion
	textResource
	textSubresource
	textNamespace
	textName
	textManager
	textOperation
	textReason
	textMessage
	textBy
	textWhy
	textSchema
	textLevel
	textMedia
	textCount
)

// commit is one written object.
type commit struct {
	group, resource, namespace, name, uid string
	revision                              int64
	action                                byte
	form                                  form
	before, after                         []byte
	nth                                   int // among the objects of the write
}

// The actions.
const (
	created byte = iota
	changed
	deleted
)

// maxCommits is the maximum number of objects of one write that are recorded individually.
const maxCommits = 64

// Committed records that an object was stored or deleted: old is nil for a new one, obj for a deleted one. before and after
// are the stored bytes, which never change.
func (t *Trace) Committed(d *resource.Descriptor, old, obj resource.Object, before, after []byte, revision int64) {
	if t == nil {
		return
	}
	now := t.recorder.now()
	is := obj
	c := commit{group: d.Group, resource: d.Resource, revision: revision, action: changed, form: stored, before: before, after: after}
	switch {
	case obj == nil:
		is, c.action, c.form, c.before, c.after = old, deleted, nothing, nil, nil
	case old == nil:
		c.action = created
	}
	c.namespace, c.name, c.uid = is.GetNamespace(), is.GetName(), string(is.GetUID())
	t.mu.Lock()
	defer t.mu.Unlock()
	t.enter(Respond, now)
	if t.ended || len(t.commits) == maxCommits {
		t.more++
		return
	}
	switch {
	case t.brief || c.action == deleted:
		c.form, c.before, c.after = nothing, nil, nil
	case len(before) > t.recorder.large || len(after) > t.recorder.large:
		c.form, c.before, c.after = tooLarge, nil, nil
	case secret(d.Group, d.Resource, ""):
		c.before, c.after, c.form = nil, nil, hidden
		is, ok := obj.(*corev1.Secret)
		if !ok {
			break
		}
		m := t.marks(len(t.commits))
		if c.after, c.form = m.redactSecret(d.Storage, is); old != nil {
			if was, ok := old.(*corev1.Secret); ok {
				c.before, _ = m.redactSecret(d.Storage, was)
			}
		}
	}
	if t.commits == nil {
		t.commits = t.first[:0]
	}
	t.commits = append(t.commits, c)
}

// Answer is the response to a request, with further data known at that time.
type Answer struct {
	ID     string
	Code   int
	Source string
	Took   time.Duration
}

// Finish stores the trace. Later changes of the trace have no effect.
func (t *Trace) Finish(r *http.Request, a Answer) {
	if t == nil {
		return
	}
	now := t.recorder.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return
	}
	t.enter(Respond, now)
	t.ended = true
	if refused := a.Code >= http.StatusBadRequest; refused {
		t.body, t.media = nil, ""
		if !t.refused { // the response had no status
			t.refusedAt, t.refused = lastOf(&t.took), true
		}
	} else {
		t.refused = false
	}
	b := t.recorder.buffer()
	*b = t.encode(*b, r, a)
	to := &t.recorder.full
	switch {
	case t.refused:
		to = &t.recorder.refused
	case t.brief:
		to = &t.recorder.brief
	}
	if !to.add(*b) {
		if t.body, t.commits = nil, nil; t.odd != nil { // larger than a ring: stored without its contents
			t.odd.steps = nil
		}
		*b = t.encode((*b)[:0], r, a)
		to.add(*b)
	}
	t.recorder.release(b)
	if t.odd != nil {
		t.recorder.release(t.odd.plugins.room)
		t.odd = nil // its contents are in that memory
	}
}

// lastOf returns the stage that was entered last.
func lastOf(took *[stageCount]time.Duration) Stage {
	last := Receive
	for s := range Respond {
		if took[s] > 0 {
			last = s
		}
	}
	return last
}

func (t *Trace) encode(b []byte, r *http.Request, a Answer) []byte {
	o := t.odd
	if o == nil {
		o = &odd{}
	}
	n := [numberCount]int64{
		numTime: t.begun.UnixNano(), numCode: int64(a.Code), numRefusedAt: int64(t.refusedAt), numRan: int64(t.ran), numMore: int64(t.more),
		numTook: int64(a.Took), numSteps: int64(len(o.steps)), numCommits: int64(len(t.commits)), numNumber: t.number,
	}
	n[numFlags] = bit(t.dryRun, flagDryRun) | bit(t.brief, flagBrief) | bit(t.secret, flagSecret) | bit(t.refused, flagRefused) |
		bit(t.decided, flagDecided) | bit(t.allowed, flagAllowed)
	for i, d := range t.took {
		n[numStages+i] = int64(d)
	}
	for _, v := range n {
		b = binary.AppendVarint(b, v)
	}
	i := t.info
	name := i.Name
	if name == "" && i.Verb == "create" { // a create without a name: its commit has the generated one
		if at := slices.IndexFunc(t.commits, func(c commit) bool { return c.resource == i.Resource && c.group == i.APIGroup }); at >= 0 {
			name = t.commits[at].name
		} else {
			name = t.name
		}
	}
	texts := [textCount]string{
		textID: a.ID, textUser: t.user, textAs: t.as, textAgent: r.UserAgent(), textSource: a.Source, textMethod: r.Method,
		textURI:  uri(r, i.Subresource),
		textVerb: i.Verb, textGroup: i.APIGroup, textVersion: i.APIVersion, textResource: i.Resource, textSubresource: i.Subresource,
		textNamespace: i.Namespace, textName: name, textManager: t.manager, textOperation: t.operation, textReason: string(o.reason),
		textMessage: o.message, textBy: t.by, textWhy: t.why, textSchema: t.schema, textLevel: t.level, textMedia: t.media,
	}
	for _, s := range texts {
		b = appendText(b, s)
	}
	b = appendText(b, t.body)
	for i := range o.steps {
		s := &o.steps[i]
		for _, text := range [...]string{s.Phase, s.Kind, s.Configuration, s.Name, s.Result, s.Reason} {
			b = appendText(b, text)
		}
		b = binary.AppendVarint(b, int64(s.Took))
		b = appendContents(b, s.form, s.Before, s.After)
	}
	for i := range t.commits {
		c := &t.commits[i]
		for _, text := range [...]string{c.group, c.resource, c.namespace, c.name, c.uid} {
			b = appendText(b, text)
		}
		b = binary.AppendVarint(b, c.revision)
		b = append(b, c.action)
		b = appendContents(b, c.form, c.before, c.after)
	}
	return b
}

func bit(is bool, flag int64) int64 {
	if is {
		return flag
	}
	return 0
}

// uri returns the request's path and query. The query of a connection to a pod is left out.
func uri(r *http.Request, subresource string) string {
	switch subresource {
	case "exec", "attach", "portforward", "proxy":
		return r.URL.Path
	}
	return r.URL.RequestURI()
}

func appendText[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendContents writes the contents before, and of the contents after only the part between their common prefix and
// suffix.
func appendContents(b []byte, f form, before, after []byte) []byte {
	b = append(b, byte(f))
	if !f.read() {
		return b
	}
	begin, end := 0, 0
	for begin < len(before) && begin < len(after) && before[begin] == after[begin] {
		begin++
	}
	for end < len(before)-begin && end < len(after)-begin && before[len(before)-1-end] == after[len(after)-1-end] {
		end++
	}
	b = appendText(b, before)
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(begin)), uint64(end))
	return appendText(b, after[begin:len(after)-end])
}

// reader decodes what the functions above encoded.
type reader struct {
	b   []byte
	bad bool
}

var errRecord = errors.New("read trace: it is no record")

func (r *reader) number() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.b, r.bad = nil, true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) size() int {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > uint64(len(r.b)) && v > 1<<31 {
		r.b, r.bad = nil, true
		return 0
	}
	r.b = r.b[n:]
	return int(v)
}

func (r *reader) text() []byte {
	n := r.size()
	if n > len(r.b) {
		r.b, r.bad = nil, true
		return nil
	}
	t := r.b[:n:n]
	r.b = r.b[n:]
	return t
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.bad = true
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *reader) contents() (f form, before, after []byte) {
	f = form(r.byte())
	if !f.read() {
		return f, nil, nil
	}
	before = r.text()
	begin, end := r.size(), r.size()
	middle := r.text()
	if r.bad || begin+end > len(before) {
		r.bad = true
		return nothing, nil, nil
	}
	after = make([]byte, 0, begin+len(middle)+end)
	after = append(append(append(after, before[:begin]...), middle...), before[len(before)-end:]...)
	return f, before, after
}

// skip skips contents.
func (r *reader) skip() {
	if f := form(r.byte()); !f.read() {
		return
	}
	r.text()
	r.size()
	r.size()
	r.text()
}

// read decodes a record except for its steps and commits.
func read(b []byte) (*record, error) {
	out, r := &record{}, &reader{b: b}
	for i := range out.numbers {
		out.numbers[i] = r.number()
	}
	for i := range out.texts {
		out.texts[i] = r.text()
	}
	out.body, out.steps = r.text(), r.b
	for range out.numbers[numSteps] {
		if r.bad {
			return nil, errRecord
		}
		for range 6 {
			r.text()
		}
		r.number()
		r.skip()
	}
	if r.bad {
		return nil, errRecord
	}
	out.commits = r.b
	return out, nil
}

func (r *record) flag(f int64) bool { return r.numbers[numFlags]&f != 0 }

func (r *record) text(i int) string { return string(r.texts[i]) }

// eachStep decodes the steps.
func (r *record) eachStep() ([]step, error) {
	in := &reader{b: r.steps}
	var out []step
	for range r.numbers[numSteps] {
		var s step
		for _, to := range []*string{&s.Phase, &s.Kind, &s.Configuration, &s.Name, &s.Result, &s.Reason} {
			*to = string(in.text())
		}
		s.Took = time.Duration(in.number())
		s.form, s.Before, s.After = in.contents()
		if in.bad {
			return nil, errRecord
		}
		out = append(out, s)
	}
	return out, nil
}

// eachCommit decodes the commits whose names want accepts; nil: all.
func (r *record) eachCommit(want func(group, resource, namespace, name []byte) bool) ([]commit, error) {
	in := &reader{b: r.commits}
	var out []commit
	for nth := range r.numbers[numCommits] {
		group, resource, namespace, name, uid := in.text(), in.text(), in.text(), in.text(), in.text()
		revision, action := in.number(), in.byte()
		if in.bad {
			return nil, errRecord
		}
		if want != nil && !want(group, resource, namespace, name) {
			in.skip()
			continue
		}
		c := commit{
			group: string(group), resource: string(resource), namespace: string(namespace), name: string(name), uid: string(uid),
			revision: revision, action: action, nth: int(nth),
		}
		if c.form, c.before, c.after = in.contents(); in.bad {
			return nil, errRecord
		}
		out = append(out, c)
	}
	return out, nil
}
