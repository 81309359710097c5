// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package tracetext writes traces of writes as text: for `mortise explain`, and for the log of a test that failed.
package tracetext

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/mortise-dev/mortise/extension/trace"
)

// widestValue is the maximum length of a printed value.
const widestValue = 160

// Value returns a value as compact JSON, cut to 160 bytes.
func Value(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Sprint(v)
	}
	s := strings.TrimSuffix(b.String(), "\n")
	if len(s) > widestValue {
		return strings.ToValidUTF8(s[:widestValue], "") + "…"
	}
	return s
}

// Plain replaces control characters, so that text of clients and webhooks cannot move the reader's cursor.
func Plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '\uFFFD'
		}
		return r
	}, s)
}

// changes writes what a step or a write changed, a line each.
func changes(w io.Writer, indent string, changes []trace.Change) {
	for _, c := range changes {
		switch c.Op {
		case trace.Add:
			fmt.Fprintf(w, "%s+ %s: %s\n", indent, Plain(c.Field), Plain(Value(c.Value)))
		case trace.Remove:
			fmt.Fprintf(w, "%s- %s: %s\n", indent, Plain(c.Field), Plain(Value(c.Was)))
		default:
			fmt.Fprintf(w, "%s~ %s: %s → %s\n", indent, Plain(c.Field), Plain(Value(c.Was)), Plain(Value(c.Value)))
		}
	}
}

// Step returns the description of a step: "webhook a.example.com of inject".
func Step(kind, configuration, name string) string {
	switch {
	case name == "":
		return kind
	case configuration == "":
		return kind + " " + Plain(name)
	case kind == trace.Policy:
		return kind + " " + Plain(name) + ", bound by " + Plain(configuration)
	}
	return kind + " " + Plain(name) + " of " + Plain(configuration)
}

// Who returns a user, and who impersonates it.
func Who(user, as string) string {
	if as == "" {
		return Plain(cmp.Or(user, "(unknown)"))
	}
	return Plain(as) + ", impersonated by " + Plain(user)
}

// Resource returns the name of an object as kubectl takes it, with the subresource of a request.
func Resource(group, resource, subresource, name string) string {
	s := resource
	if group != "" {
		s += "." + group
	}
	if name != "" {
		s += "/" + name
	}
	if subresource != "" {
		s += ", " + subresource
	}
	return Plain(s)
}

// InNamespace returns the words for a namespace; nothing for none.
func InNamespace(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " in namespace " + Plain(namespace)
}

// Write writes all that is known of a write.
func Write(to io.Writer, t *trace.Trace) error {
	var w bytes.Buffer
	line := func(name, format string, args ...any) {
		if name != "" {
			name += ":"
		}
		fmt.Fprintf(&w, "%-15s%s\n", name, fmt.Sprintf(format, args...))
	}
	line("Audit ID", "%s", Plain(t.AuditID))
	line("Time", "%s", t.Time)
	line("User", "%s", Who(t.User, t.As))
	line("Client", "%s from %s", Plain(cmp.Or(t.UserAgent, "(unnamed)")), Plain(cmp.Or(t.Source, "(nowhere known)")))
	dry := ""
	if t.DryRun {
		dry = " (dry run)"
	}
	line("Request", "%s %s%s%s", t.Verb, Resource(t.Group, t.Resource, t.Subresource, t.Name), InNamespace(t.Namespace), dry)
	line("", "%s %s", Plain(t.Method), Plain(t.URI))
	if t.Manager != "" {
		line("Field manager", "%s (%s)", Plain(t.Manager), t.Operation)
	}
	line("Answer", "%d in %s", t.Code, Duration(t.Seconds))
	if t.Refused != "" {
		line("Refused", "by %s: %s", t.Refused, Plain(cmp.Or(t.Message, t.Reason, "(no reason given)")))
	}
	if d := t.Decision; d != nil {
		word := "denied"
		if d.Allowed {
			word = "allowed"
		}
		if d.By != "" && !strings.HasPrefix(d.Reason, d.By+": ") {
			word += " by " + Plain(d.By)
		}
		if d.Reason != "" {
			word += ": " + Plain(d.Reason)
		}
		line("Authorization", "%s", word)
	}
	if t.Flow != nil {
		line("Flow control", "flow schema %s, priority level %s", Plain(t.Flow.Schema), Plain(t.Flow.Level))
	}
	if t.Brief {
		line("Contents", "not recorded for such writes")
	}
	if t.Redacted {
		line("Contents", "redacted; equal values have the same mark within a write")
	}
	fmt.Fprintln(&w, "Stages:")
	for _, s := range t.Stages {
		fmt.Fprintf(&w, "  %-13s%s\n", s.Name, Duration(s.Seconds))
	}
	steps(&w, t.Steps)
	if len(t.Objects) > 0 {
		fmt.Fprintln(&w, "Objects:")
	}
	for _, o := range t.Objects {
		fmt.Fprintf(&w, "  %s %s%s, revision %d, uid %s\n", o.Action, Resource(o.Group, o.Resource, "", o.Name), InNamespace(o.Namespace),
			o.Revision, o.UID)
		changes(&w, "    ", o.Changes)
	}
	if t.MoreObjects > 0 {
		fmt.Fprintf(&w, "  and %d more\n", t.MoreObjects)
	}
	_, err := to.Write(w.Bytes())
	return err
}

// steps writes the steps of both phases.
func steps(w io.Writer, all []trace.Step) {
	if slices.ContainsFunc(all, func(s trace.Step) bool { return s.Phase == trace.Mutate }) {
		fmt.Fprintln(w, "Mutation:")
	}
	for _, s := range all {
		if s.Phase != trace.Mutate {
			continue
		}
		step(w, &s)
	}
	if slices.ContainsFunc(all, func(s trace.Step) bool { return s.Phase == trace.Validate }) {
		fmt.Fprintln(w, "Validation:")
	}
	var allowed []string
	for _, s := range all {
		if s.Phase == trace.Validate && s.Kind == trace.Plugin && s.Result == trace.Allowed {
			allowed = append(allowed, s.Name)
		}
	}
	if len(allowed) > 0 {
		fmt.Fprintf(w, "  plug-ins %s: %s\n", strings.Join(allowed, ", "), trace.Allowed)
	}
	for _, s := range all {
		if s.Phase == trace.Validate && (s.Kind != trace.Plugin || s.Result != trace.Allowed) {
			step(w, &s)
		}
	}
}

func step(w io.Writer, s *trace.Step) {
	fmt.Fprintf(w, "  %s: %s", Step(s.Kind, s.Configuration, s.Name), s.Result)
	if s.Seconds > 0 {
		fmt.Fprintf(w, " (%s)", Duration(s.Seconds))
	}
	if s.Reason != "" {
		fmt.Fprintf(w, ": %s", Plain(s.Reason))
	}
	if s.Untold != "" {
		fmt.Fprintf(w, " (its changes are hidden: %s)", s.Untold)
	}
	fmt.Fprintln(w)
	changes(w, "    ", s.Changes)
}

// Duration formats seconds with three digits.
func Duration(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d == 0:
		return "-"
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}
