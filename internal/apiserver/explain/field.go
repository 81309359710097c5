// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/extension/trace"
)

// maxSettings is the maximum number of reported writes that set a field.
const maxSettings = 20

// settings are the writes that changed a field of an object, the newest first.
//
// Worked example: a pod was created without an image tag, a webhook added one, and a user changed it later. The newest
// setting is the user's request; before it the create, by the webhook, and before that in the same write the request.
//
// The marks are those that the newest has for values of secrets; without any, marks of no write.
func (r *Recorder) settings(q *question, path trace.Path, objects Objects) ([]trace.Setting, marks, error) {
	m := marks{key: &r.key, write: r.numbers.Add(1)}
	found, _ := r.find(&question{object: true, group: q.group, resource: q.resource, namespace: q.namespace, name: q.name})
	type write struct {
		rec *record
		c   commit
	}
	var writes []write
	for _, rec := range found {
		cs, err := rec.eachCommit(q.is)
		if err != nil {
			return nil, m, err
		}
		for _, c := range cs {
			if c.form.read() {
				writes = append(writes, write{rec, c})
			}
		}
	}
	slices.SortStableFunc(writes, func(a, b write) int { return int(min(max(b.c.revision-a.c.revision, -1), 1)) })
	out := []trace.Setting{}
	gr := schema.GroupResource{Group: q.group, Resource: q.resource}
	for _, w := range writes {
		if len(out) == maxSettings {
			break
		}
		version := ""
		if w.rec.text(textGroup) == q.group && w.rec.text(textResource) == q.resource {
			version = w.rec.text(textVersion)
		}
		before, err := state(objects, gr, version, w.c.form, w.c.before)
		if err != nil {
			return nil, m, err
		}
		after, err := state(objects, gr, version, w.c.form, w.c.after)
		if err != nil {
			return nil, m, err
		}
		was, had := path.In(before)
		is, has := path.In(after)
		if had == has && reflect.DeepEqual(was, is) {
			continue
		}
		s := trace.Setting{
			AuditID: w.rec.text(textID), Time: w.rec.time().UTC().Format(time.RFC3339Nano), User: w.rec.text(textUser), As: w.rec.text(textAs),
			Verb: w.rec.text(textVerb), Resource: w.rec.text(textResource), UserAgent: w.rec.text(textAgent), Manager: w.rec.text(textManager),
			Operation: w.rec.text(textOperation), Revision: w.c.revision, Present: has, Value: is, WasPresent: had, Was: was,
		}
		if sub := w.rec.text(textSubresource); sub != "" {
			s.Resource += "/" + sub
		}
		if s.By, s.Before, err = r.hands(w.rec, &w.c, path, objects, s); err != nil {
			return nil, m, err
		}
		if len(out) == 0 {
			m.write, m.nth = w.rec.numbers[numNumber], w.c.nth
		}
		out = append(out, s)
	}
	return out, m, nil
}

// hands are the steps of a write that touched a field: the last, and those before it.
func (r *Recorder) hands(rec *record, c *commit, path trace.Path, objects Objects, s trace.Setting) (trace.Hand, []trace.Hand, error) {
	own := trace.Hand{Kind: trace.Request, Present: s.Present, Value: s.Value}
	if rec.text(textResource) != c.resource || rec.text(textGroup) != c.group {
		own.Kind = trace.Server // the object was written on behalf of another
		return own, nil, nil
	}
	w, err := r.walk(rec, objects)
	if err != nil {
		return own, nil, err
	}
	var all []trace.Hand
	had, was := s.WasPresent, s.Was
	for _, h := range w.hands {
		if h.after == nil {
			continue
		}
		v, has := path.In(h.after)
		if has == had && reflect.DeepEqual(v, was) {
			continue
		}
		if h.before != nil && h.kind != trace.Request { // what it found may be in another version
			if found, ok := path.In(h.before); ok == has && reflect.DeepEqual(found, v) {
				continue
			}
		}
		all = append(all, trace.Hand{Kind: h.kind, Configuration: h.configuration, Name: h.name, Present: has, Value: v})
		had, was = has, v
	}
	if len(all) == 0 {
		return own, nil, nil
	}
	slices.Reverse(all)
	return all[0], all[1:], nil
}

// managers are the entries of an object's managedFields that a field is booked to.
func managers(obj map[string]any, path trace.Path) []trace.Manager {
	meta, _ := obj["metadata"].(map[string]any)
	entries, _ := meta["managedFields"].([]any)
	var out []trace.Manager
	for _, e := range entries {
		entry, _ := e.(map[string]any)
		fields, _ := entry["fieldsV1"].(map[string]any)
		if !owns(fields, obj, path) {
			continue
		}
		text := func(name string) string { s, _ := entry[name].(string); return s }
		out = append(out, trace.Manager{Manager: text("manager"), Operation: text("operation"), Subresource: text("subresource"),
			Time: text("time")})
	}
	slices.SortStableFunc(out, func(a, b trace.Manager) int { return strings.Compare(b.Time, a.Time) })
	return out
}

// owns reports whether a set of fields has the one that the path leads to, one above it that is owned as a whole, or some below it.
//
// Of a list whose elements have keys, a set names them by their keys: {"f:containers": {"k:{\"name\":\"web\"}": {"f:image": {}}}}.
func owns(fields map[string]any, at any, path trace.Path) bool {
	for _, e := range path {
		if len(fields) == 0 {
			return false
		}
		var next any
		var ok bool
		if !e.List {
			next, ok = fields["f:"+e.Name]
			m, _ := at.(map[string]any)
			at = m[e.Name]
		} else {
			l, _ := at.([]any)
			v, there := trace.Path{e}.In(at)
			if !there {
				return false
			}
			next, ok = fieldsOf(fields, slices.IndexFunc(l, func(x any) bool { return reflect.DeepEqual(x, v) }), v)
			at = v
		}
		if !ok {
			return false
		}
		below, _ := next.(map[string]any)
		if len(below) == 0 {
			return true // a leaf, or owned as a whole
		}
		fields = below
	}
	return true
}

// fieldsOf finds a list's element in a set of fields: by its key, by its value, by its index.
func fieldsOf(fields map[string]any, index int, v any) (any, bool) {
	for name, below := range fields {
		switch {
		case strings.HasPrefix(name, "k:"):
			var keys map[string]any
			m, ok := v.(map[string]any)
			if !ok || json.Unmarshal([]byte(name[2:]), &keys) != nil {
				continue
			}
			all := true
			for k, want := range keys {
				all = all && fmt.Sprint(m[k]) == fmt.Sprint(want)
			}
			if all {
				return below, true
			}
		case strings.HasPrefix(name, "v:"):
			var want any
			if json.Unmarshal([]byte(name[2:]), &want) == nil && reflect.DeepEqual(want, v) {
				return below, true
			}
		case name == "i:"+strconv.Itoa(index):
			return below, true
		}
	}
	return nil, false
}
