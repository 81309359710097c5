// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/types"
	"slices"
	"strings"
)

// event is a row of the reference.
type event struct{ reason, kind, message, at string }

// recorders are the methods of tools/record that write an event, and where their arguments type, reason and message stand.
var recorders = map[string][3]int{"Event": {1, 2, 3}, "Eventf": {1, 2, 3}, "AnnotatedEventf": {2, 3, 4}}

// newRecorders are those of tools/events, which have a related object and an action too.
var newRecorders = map[string][3]int{"Event": {2, 3, 5}, "Eventf": {2, 3, 5}}

// eventsPage is the page of all events.
func eventsPage(s *source) (string, error) {
	all, err := s.events()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Events\n\nThe events that servers and nodes write, generated from the source code. “%s” and verbs such as `%%s` stand for parts that are "+
		"known only when the program runs.\n\n| Reason | Type | Written by | Message |\n|---|---|---|---|\n", unknown)
	for _, e := range all {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", e.reason, e.kind, e.at, cell(e.message))
	}
	return b.String(), nil
}

// events finds all events.
func (s *source) events() ([]event, error) {
	seen := map[event]bool{}
	var failures []error
	for _, c := range s.calls {
		sel, ok := c.expr.Fun.(*ast.SelectorExpr)
		if !ok || s.selections[sel] == nil || !isRecorder(s.constantsOf[sel.X].Type) {
			continue
		}
		places, ok := recorders[sel.Sel.Name]
		if f, is := s.selections[sel].Obj().(*types.Func); is && f.Signature().Params().Len() > 5 {
			places, ok = newRecorders[sel.Sel.Name]
		}
		if !ok || len(c.expr.Args) <= places[2] {
			continue
		}
		found := false
		for _, row := range s.ways([]ast.Expr{c.expr.Args[places[0]], c.expr.Args[places[1]], c.expr.Args[places[2]]}) {
			if row[1] != unknown && row[1] != "" {
				found = true
				seen[event{reason: row[1], kind: row[0], message: row[2], at: c.at}] = true
			}
		}
		if !found {
			failures = append(failures, fmt.Errorf("%s: an event without a reason", s.set.Position(c.expr.Pos())))
		}
	}
	out := make([]event, 0, len(seen))
	for e := range seen {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b event) int {
		return cmp.Or(strings.Compare(a.reason, b.reason), strings.Compare(a.at, b.at), strings.Compare(a.kind, b.kind),
			strings.Compare(a.message, b.message))
	})
	return out, errors.Join(failures...)
}

// isRecorder reports whether a type has the methods of a recorder of events.
func isRecorder(t types.Type) bool {
	for _, name := range []string{"Event", "Eventf"} {
		o, _, _ := types.LookupFieldOrMethod(t, true, nil, name)
		if f, ok := o.(*types.Func); ok && f.Signature().Params().Len() >= 3 {
			return true
		}
	}
	return false
}
