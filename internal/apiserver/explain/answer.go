// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/extension/trace"
)

// Objects read what traces keep of objects. The answers are decoded JSON.
type Objects interface {
	// Stored decodes an object as a kind stored it, in one of its versions.
	Stored(r schema.GroupResource, version string, data []byte) (map[string]any, error)
	// Sent decodes an object as a client sent it, and returns it also with the kind's defaults.
	Sent(r schema.GroupResource, version, media string, body []byte) (said, filled map[string]any, err error)
	// Live is an object as it is now, in the version that is stored.
	Live(ctx context.Context, r schema.GroupResource, namespace, name string) (obj map[string]any, version string, err error)
}

// kept says what there is.
func (r *Recorder) kept() trace.Kept {
	k := trace.Kept{Started: r.started.UTC().Format(time.RFC3339), Bound: r.bound}
	for _, from := range []*ring{&r.full, &r.refused, &r.brief} {
		n, size := from.totals()
		k.Traces += n
		k.Bytes += size
	}
	k.Oldest, k.OldestRejected = oldest(&r.full), oldest(&r.refused)
	return k
}

func oldest(from *ring) (at string) {
	from.each(func(b []byte) bool {
		if rec, err := read(b); err == nil {
			at = rec.time().UTC().Format(time.RFC3339)
		}
		return false
	})
	return at
}

func (r *record) time() time.Time { return time.Unix(0, r.numbers[numTime]) }

// question is what a client wants to know.
type question struct {
	id                                            string // empty: any
	rejected, brief                               bool
	since                                         time.Time // zero: any
	object                                        bool      // group, resource and name are an object's, which was written
	group, resource, namespace, name, subresource string    // empty: any, but for the group of a resource
	limit                                         int
}

// wants reports whether a record is one that is asked for.
func (q *question) wants(rec *record) bool {
	if q.id != "" && string(rec.texts[textID]) != q.id || !q.since.IsZero() && rec.time().Before(q.since) {
		return false
	}
	if q.subresource != "" && string(rec.texts[textSubresource]) != q.subresource {
		return false
	}
	if q.object {
		cs, err := rec.eachCommit(q.is)
		if err == nil && len(cs) > 0 {
			return true
		}
	}
	return (q.namespace == "" || string(rec.texts[textNamespace]) == q.namespace) && (q.name == "" || string(rec.texts[textName]) == q.name) &&
		(q.resource == "" || string(rec.texts[textResource]) == q.resource && string(rec.texts[textGroup]) == q.group)
}

// is reports whether a commit is of the object that is asked for.
func (q *question) is(group, resource, namespace, name []byte) bool {
	return string(group) == q.group && string(resource) == q.resource && string(name) == q.name && string(namespace) == q.namespace
}

// find is the records that are asked for, the newest first, and whether there are more.
func (r *Recorder) find(q *question) (found []*record, more bool) {
	rings := []*ring{&r.full, &r.refused, &r.brief}
	switch {
	case q.rejected:
		rings = rings[1:2]
	case !q.brief && q.id == "" && !q.object:
		rings = rings[:2]
	}
	for _, from := range rings {
		from.each(func(b []byte) bool {
			if rec, err := read(b); err == nil && q.wants(rec) {
				found = append(found, rec)
			}
			return true
		})
	}
	slices.SortStableFunc(found, func(a, b *record) int { return b.time().Compare(a.time()) })
	if q.limit > 0 && len(found) > q.limit {
		return found[:q.limit], true
	}
	return found, false
}

// view is a record in words.
func (r *Recorder) view(rec *record, objects Objects) (trace.Trace, error) {
	t := trace.Trace{
		AuditID: rec.text(textID), Time: rec.time().UTC().Format(time.RFC3339Nano), User: rec.text(textUser), As: rec.text(textAs),
		UserAgent: rec.text(textAgent), Source: rec.text(textSource), Method: rec.text(textMethod), URI: rec.text(textURI),
		Verb:  rec.text(textVerb),
		Group: rec.text(textGroup), Version: rec.text(textVersion), Resource: rec.text(textResource), Subresource: rec.text(textSubresource),
		Namespace: rec.text(textNamespace), Name: rec.text(textName), DryRun: rec.flag(flagDryRun), Manager: rec.text(textManager),
		Operation: rec.text(textOperation), Code: int(rec.numbers[numCode]), Reason: rec.text(textReason), Message: rec.text(textMessage),
		Seconds: time.Duration(rec.numbers[numTook]).Seconds(), Brief: rec.flag(flagBrief), Redacted: rec.flag(flagSecret),
		MoreObjects: int(rec.numbers[numMore]),
	}
	if rec.flag(flagRefused) {
		t.Refused = Stage(rec.numbers[numRefusedAt]).String()
	}
	if rec.flag(flagDecided) {
		t.Decision = &trace.Decision{Allowed: rec.flag(flagAllowed), By: rec.text(textBy), Reason: rec.text(textWhy)}
	}
	if level := rec.text(textLevel); level != "" {
		t.Flow = &trace.Flow{Schema: rec.text(textSchema), Level: level}
	}
	for s := range stageCount {
		if took := rec.numbers[numStages+int(s)]; took > 0 {
			t.Stages = append(t.Stages, trace.Stage{Name: s.String(), Seconds: time.Duration(took).Seconds()})
		}
	}
	w, err := r.walk(rec, objects)
	if err != nil {
		return t, err
	}
	t.Steps = w.told(r.validators, int(rec.numbers[numRan]))
	t.Objects = w.written
	return t, nil
}

// walk is a record read through: the object's states one after the other.
type walk struct {
	rec     *record
	hands   []hand
	steps   []step
	written []trace.Object
	commits []commit // of the object that the request names first
}

// hand is what one step made of the object.
type hand struct {
	kind, configuration, name string
	before, after             map[string]any
	step                      *step // nil: it is not one that was told of
}

// state is contents as decoded JSON, without what every write changes.
func state(objects Objects, r schema.GroupResource, version string, f form, b []byte) (map[string]any, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var m map[string]any
	var err error
	switch f {
	case stored:
		m, err = objects.Stored(r, version, b)
	case bound:
		var binding corev1.Binding
		if err = binding.Unmarshal(b); err == nil {
			m, err = runtime.DefaultUnstructuredConverter.ToUnstructured(&binding)
		}
	default:
		err = json.Unmarshal(b, &m)
	}
	return clean(m), err
}

// clean takes away what is no news: managed fields, the revision, and what is not there.
func clean(m map[string]any) map[string]any {
	meta, ok := m["metadata"].(map[string]any)
	if !ok {
		return m
	}
	delete(meta, "managedFields")
	delete(meta, "resourceVersion")
	if v, ok := meta["creationTimestamp"]; ok && v == nil {
		delete(meta, "creationTimestamp")
	}
	for _, member := range []string{"spec", "status"} {
		if v, ok := m[member].(map[string]any); ok && len(v) == 0 {
			delete(m, member)
		}
	}
	return m
}

func (r *Recorder) walk(rec *record, objects Objects) (*walk, error) {
	w := &walk{rec: rec}
	var err error
	if w.steps, err = rec.eachStep(); err != nil {
		return nil, err
	}
	if w.commits, err = rec.eachCommit(nil); err != nil {
		return nil, err
	}
	gr := schema.GroupResource{Group: rec.text(textGroup), Resource: rec.text(textResource)}
	version := rec.text(textVersion)
	var old, final map[string]any
	found := false
	for _, c := range w.commits {
		at, v := schema.GroupResource{Group: c.group, Resource: c.resource}, version
		if at != gr {
			v = ""
		}
		before, err := state(objects, at, v, c.form, c.before)
		if err != nil {
			return nil, err
		}
		after, err := state(objects, at, v, c.form, c.after)
		if err != nil {
			return nil, err
		}
		o := trace.Object{Group: c.group, Resource: c.resource, Namespace: c.namespace, Name: c.name, UID: c.uid, Revision: c.revision}
		switch c.action {
		case created:
			o.Action = "created"
		case deleted:
			o.Action = "deleted"
		default:
			if o.Action = "changed"; before != nil && after != nil {
				o.Changes = trace.Diff(before, after)
			}
		}
		w.written = append(w.written, o)
		if at == gr && !found {
			old, final, found = before, after, true
		}
	}
	return w, w.follow(objects, gr, version, old, final)
}

// follow puts the object's states in order: what was asked for, what was filled in, what each step made of it, what was stored.
func (w *walk) follow(objects Objects, gr schema.GroupResource, version string, old, final map[string]any) error {
	var mutations []hand
	for i := range w.steps {
		s := &w.steps[i]
		h := hand{kind: s.Kind, configuration: s.Configuration, name: s.Name, step: s}
		if s.Result == trace.Changed && s.form.read() {
			var err error
			if h.before, err = state(objects, gr, version, s.form, s.Before); err != nil {
				return err
			}
			if h.after, err = state(objects, gr, version, s.form, s.After); err != nil {
				return err
			}
		}
		mutations = append(mutations, h)
	}
	given := final // what admission was given
	last := map[string]any(nil)
	for _, h := range mutations {
		if h.after != nil {
			if last == nil {
				given = h.before
			}
			last = h.after
		}
	}
	var said, filled map[string]any
	if len(w.rec.body) > 0 && w.rec.text(textSubresource) != "scale" {
		said, filled, _ = objects.Sent(gr, version, w.rec.text(textMedia), w.rec.body) // what cannot be read is not told of
		said, filled = clean(said), clean(filled)
	}
	whole := said != nil && old == nil && final != nil
	switch {
	case whole:
		w.hands = append(w.hands, hand{kind: trace.Request, after: said})
		if filled != nil {
			w.hands = append(w.hands, hand{kind: trace.Defaulting, before: said, after: filled})
		}
	case given != nil && final != nil:
		w.hands = append(w.hands, hand{kind: trace.Request, before: old, after: given})
	}
	w.hands = append(w.hands, mutations...)
	if last == nil && whole {
		last = filled
	}
	if last != nil && final != nil && same(last, final) {
		at := slices.IndexFunc(w.hands, func(h hand) bool { return h.step != nil && h.step.Phase == trace.Validate })
		if at < 0 {
			at = len(w.hands)
		}
		w.hands = slices.Insert(w.hands, at, hand{kind: trace.Server, before: last, after: final})
	}
	return nil
}

// same reports whether two states are of the same version, so that they can be compared.
func same(a, b map[string]any) bool {
	return a["apiVersion"] == b["apiVersion"] && a["kind"] == b["kind"]
}

// told are the steps in words, with the plug-ins that had nothing against the object.
func (w *walk) told(validators []string, ran int) []trace.Step {
	var out []trace.Step
	for _, h := range w.hands {
		if h.step == nil {
			var changes []trace.Change
			if h.before == nil {
				h.before = map[string]any{}
			}
			if changes = trace.Diff(h.before, h.after); len(changes) > 0 {
				out = append(out, trace.Step{Phase: trace.Mutate, Kind: h.kind, Result: trace.Changed, Changes: changes})
			}
			continue
		}
		s := trace.Step{
			Phase: h.step.Phase, Kind: h.kind, Configuration: h.configuration, Name: h.name, Result: h.step.Result, Reason: h.step.Reason,
			Seconds: h.step.Took.Seconds(),
		}
		if s.Result == trace.Changed {
			switch {
			case h.after != nil:
				if s.Changes = trace.Diff(h.before, h.after); len(s.Changes) == 0 && s.Kind == trace.Defaulting {
					continue // nothing was left out
				}
			case h.step.form == tooLarge:
				s.Untold = "it is too large to be kept"
			case h.step.form == hidden:
				s.Untold = "it carries a secret"
			default:
				s.Untold = "it was not kept"
			}
		}
		out = append(out, s)
	}
	denied := slices.IndexFunc(w.steps, func(s step) bool {
		return s.Phase == trace.Validate && (s.Result == trace.Denied || s.Result == trace.Failed)
	})
	at := len(out)
	for i, s := range out { // those that allowed came before the hooks, and the one that denied
		if s.Phase == trace.Validate {
			at = i
			break
		}
	}
	var allowed []trace.Step
	for i, name := range validators {
		if i < ran && !hooks(name) && (denied < 0 || w.steps[denied].Name != name) {
			allowed = append(allowed, trace.Step{Phase: trace.Validate, Kind: trace.Plugin, Name: name, Result: trace.Allowed})
		}
	}
	return slices.Insert(out, at, allowed...)
}
