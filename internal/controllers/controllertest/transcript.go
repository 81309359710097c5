// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllertest

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
)

// transcript collects writes.
type transcript struct {
	mu      sync.Mutex
	entries []entry
}

// entry is one write; it holds objects only where the transcript shows fields.
type entry struct {
	line          string
	before, after runtime.Object
}

// add appends a write. It shows several updates of one object as one, in the place of the last: their number depends on how many events a
// controller happens to see at once. It leaves out an update that changes no visible field.
func (t *transcript) add(line string, before, after runtime.Object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if strings.HasPrefix(line, "update") {
		if before != nil && after != nil && len(difference(before, after)) == 0 {
			return
		}
		if i := slices.IndexFunc(t.entries, func(e entry) bool { return e.line == line }); i >= 0 {
			before = t.entries[i].before
			t.entries = slices.Delete(t.entries, i, i+1)
		}
	}
	t.entries = append(t.entries, entry{line, before, after})
}

// take returns the writes since the last call, in order, except that it sorts neighbours of one verb and resource, which may have been
// written concurrently. Events come last, sorted.
func (t *transcript) take() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	entries := t.entries
	t.entries = nil
	var events []string
	var writes []entry
	for _, e := range entries {
		if strings.HasPrefix(e.line, "event ") {
			events = append(events, e.line)
		} else {
			writes = append(writes, e)
		}
	}
	for begin := 0; begin < len(writes); {
		end := begin
		for end < len(writes) && what(writes[end].line) == what(writes[begin].line) {
			end++
		}
		slices.SortStableFunc(writes[begin:end], func(a, b entry) int { return strings.Compare(a.line, b.line) })
		begin = end
	}
	sort.Strings(events)
	var b strings.Builder
	for _, e := range writes {
		var fields []string
		if e.after != nil {
			if fields = difference(e.before, e.after); len(fields) == 0 && e.before != nil {
				continue // changed and changed back
			}
		}
		fmt.Fprintln(&b, e.line)
		for _, f := range fields {
			fmt.Fprintln(&b, "  "+f)
		}
	}
	for _, e := range events {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

func what(line string) string {
	words := strings.SplitN(line, " ", 3)
	return words[0] + " " + words[1]
}

// noise are fields that the transcript leaves out.
var noise = []string{
	"metadata.resourceVersion", "metadata.uid", "metadata.creationTimestamp", "metadata.name", "metadata.namespace",
	"metadata.generateName", "metadata.generation", "spec.template", "spec.containers", "spec.initContainers", "kind", "apiVersion",
	"metadata.managedFields", "status.active[0].resourceVersion", // the version counts events, too, which come at any time
}

// difference lists the fields of after that differ from before, one a line.
func difference(before, after runtime.Object) []string {
	was, is := map[string]string{}, map[string]string{}
	flatten(before, was)
	flatten(after, is)
	var lines []string
	for path, value := range is {
		switch old, ok := was[path]; {
		case !ok:
			lines = append(lines, path+": "+value)
		case old != value:
			lines = append(lines, path+": "+old+" → "+value)
		}
	}
	for path, value := range was {
		if _, ok := is[path]; !ok {
			lines = append(lines, path+": "+value+" → nothing")
		}
	}
	sort.Strings(lines)
	return lines
}

func flatten(obj runtime.Object, into map[string]string) {
	if obj == nil {
		return
	}
	data, err := json.Marshal(obj)
	if err != nil {
		return
	}
	var tree map[string]any
	if json.Unmarshal(data, &tree) == nil {
		walk("", tree, into)
	}
}

func walk(path string, value any, into map[string]string) {
	for _, n := range noise {
		if path == n {
			return
		}
	}
	switch v := value.(type) {
	case map[string]any:
		for k, child := range v {
			walk(strings.TrimPrefix(path+"."+k, "."), child, into)
		}
	case []any:
		if path == "metadata.ownerReferences" {
			into[path] = owners(v)
			return
		}
		for i, child := range v {
			key := fmt.Sprintf("%s[%d]", path, i)
			if m, ok := child.(map[string]any); ok && m["type"] != nil {
				key = fmt.Sprintf("%s[%v]", path, m["type"])
				delete(m, "type")
			}
			walk(key, child, into)
		}
	case nil:
	default:
		into[path] = fmt.Sprint(v)
	}
}

// owners writes owner references in one line; the controller first.
func owners(refs []any) string {
	var names []string
	for _, r := range refs {
		ref, ok := r.(map[string]any)
		if !ok {
			continue
		}
		name := fmt.Sprintf("%v/%v", ref["kind"], ref["name"])
		if ref["controller"] == true {
			name += " (controller)"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}
