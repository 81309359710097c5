// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/mortise-dev/mortise/extension/trace"
)

// widestValue is the maximum length of a printed value.
const widestValue = 160

// printed returns a value as compact JSON.
func printed(v any) string {
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

// plain replaces control characters, so that text of clients and webhooks cannot move the reader's cursor.
func plain(s string) string {
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

func printChanges(w io.Writer, indent string, changes []trace.Change) {
	for _, c := range changes {
		switch c.Op {
		case trace.Add:
			fmt.Fprintf(w, "%s+ %s: %s\n", indent, plain(c.Field), plain(printed(c.Value)))
		case trace.Remove:
			fmt.Fprintf(w, "%s- %s: %s\n", indent, plain(c.Field), plain(printed(c.Was)))
		default:
			fmt.Fprintf(w, "%s~ %s: %s → %s\n", indent, plain(c.Field), plain(printed(c.Was)), plain(printed(c.Value)))
		}
	}
}

// step returns the description of a step: "webhook a.example.com of inject".
func stepName(kind, configuration, name string) string {
	switch {
	case name == "":
		return kind
	case configuration == "":
		return kind + " " + plain(name)
	case kind == trace.Policy:
		return kind + " " + plain(name) + ", bound by " + plain(configuration)
	}
	return kind + " " + plain(name) + " of " + plain(configuration)
}

func who(user, as string) string {
	if as == "" {
		return plain(cmp.Or(user, "(unknown)"))
	}
	return plain(as) + ", impersonated by " + plain(user)
}

func resourceName(group, resource, subresource, name string) string {
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
	return plain(s)
}

func inNamespace(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " in namespace " + plain(namespace)
}

// printTraces prints the traces of writes.
func printTraces(w io.Writer, traces []trace.Trace) error {
	for i := range traces {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := printTrace(w, &traces[i]); err != nil {
			return err
		}
	}
	return nil
}

func printTrace(to io.Writer, t *trace.Trace) error {
	var w bytes.Buffer
	line := func(name, format string, args ...any) {
		if name != "" {
			name += ":"
		}
		fmt.Fprintf(&w, "%-15s%s\n", name, fmt.Sprintf(format, args...))
	}
	line("Audit ID", "%s", plain(t.AuditID))
	line("Time", "%s", t.Time)
	line("User", "%s", who(t.User, t.As))
	line("Client", "%s from %s", plain(cmp.Or(t.UserAgent, "(unnamed)")), plain(cmp.Or(t.Source, "(nowhere known)")))
	dry := ""
	if t.DryRun {
		dry = " (dry run)"
	}
	line("Request", "%s %s%s%s", t.Verb, resourceName(t.Group, t.Resource, t.Subresource, t.Name), inNamespace(t.Namespace), dry)
	line("", "%s %s", plain(t.Method), plain(t.URI))
	if t.Manager != "" {
		line("Field manager", "%s (%s)", plain(t.Manager), t.Operation)
	}
	line("Answer", "%d in %s", t.Code, short(t.Seconds))
	if t.Refused != "" {
		line("Refused", "by %s: %s", t.Refused, plain(cmp.Or(t.Message, t.Reason, "(no reason given)")))
	}
	if d := t.Decision; d != nil {
		word := "denied"
		if d.Allowed {
			word = "allowed"
		}
		if d.By != "" && !strings.HasPrefix(d.Reason, d.By+": ") {
			word += " by " + plain(d.By)
		}
		if d.Reason != "" {
			word += ": " + plain(d.Reason)
		}
		line("Authorization", "%s", word)
	}
	if t.Flow != nil {
		line("Flow control", "flow schema %s, priority level %s", plain(t.Flow.Schema), plain(t.Flow.Level))
	}
	if t.Brief {
		line("Contents", "not recorded for such writes")
	}
	if t.Redacted {
		line("Contents", "redacted; equal values have the same mark within a write")
	}
	fmt.Fprintln(&w, "Stages:")
	for _, s := range t.Stages {
		fmt.Fprintf(&w, "  %-13s%s\n", s.Name, short(s.Seconds))
	}
	printSteps(&w, t.Steps)
	if len(t.Objects) > 0 {
		fmt.Fprintln(&w, "Objects:")
	}
	for _, o := range t.Objects {
		fmt.Fprintf(&w, "  %s %s%s, revision %d, uid %s\n", o.Action, resourceName(o.Group, o.Resource, "", o.Name), inNamespace(o.Namespace),
			o.Revision, o.UID)
		printChanges(&w, "    ", o.Changes)
	}
	if t.MoreObjects > 0 {
		fmt.Fprintf(&w, "  and %d more\n", t.MoreObjects)
	}
	_, err := to.Write(w.Bytes())
	return err
}

func printSteps(w io.Writer, steps []trace.Step) {
	if slices.ContainsFunc(steps, func(s trace.Step) bool { return s.Phase == trace.Mutate }) {
		fmt.Fprintln(w, "Mutation:")
	}
	for _, s := range steps {
		if s.Phase != trace.Mutate {
			continue
		}
		printStep(w, &s)
	}
	if slices.ContainsFunc(steps, func(s trace.Step) bool { return s.Phase == trace.Validate }) {
		fmt.Fprintln(w, "Validation:")
	}
	var allowed []string
	for _, s := range steps {
		if s.Phase == trace.Validate && s.Kind == trace.Plugin && s.Result == trace.Allowed {
			allowed = append(allowed, s.Name)
		}
	}
	if len(allowed) > 0 {
		fmt.Fprintf(w, "  plug-ins %s: %s\n", strings.Join(allowed, ", "), trace.Allowed)
	}
	for _, s := range steps {
		if s.Phase == trace.Validate && (s.Kind != trace.Plugin || s.Result != trace.Allowed) {
			printStep(w, &s)
		}
	}
}

func printStep(w io.Writer, s *trace.Step) {
	fmt.Fprintf(w, "  %s: %s", stepName(s.Kind, s.Configuration, s.Name), s.Result)
	if s.Seconds > 0 {
		fmt.Fprintf(w, " (%s)", short(s.Seconds))
	}
	if s.Reason != "" {
		fmt.Fprintf(w, ": %s", plain(s.Reason))
	}
	if s.Untold != "" {
		fmt.Fprintf(w, " (its changes are hidden: %s)", s.Untold)
	}
	fmt.Fprintln(w)
	printChanges(w, "    ", s.Changes)
}

// printWrites prints one line for each write.
func printWrites(w io.Writer, v *trace.View) error {
	err := printListed(w, v)
	if err != nil || len(v.Calls) == 0 {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nTIME\tPLUG-IN\tNAME\tCALL\tTOOK\tERROR")
	for _, c := range v.Calls {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", second(c.Time), plain(c.Point), plain(c.Extension), plain(cmp.Or(c.Method, "-")),
			short(c.Seconds), plain(cmp.Or(c.Error, "-")))
	}
	return t.Flush()
}

// printListed prints the writes.
func printListed(w io.Writer, v *trace.View) error {
	if len(v.Traces) == 0 {
		return nothingKept(w, "No writes", v.Kept.Started, v.Kept.Oldest)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TIME\tUSER\tVERB\tOBJECT\tNAMESPACE\tCODE\tTOOK\tCHANGED BY\tAUDIT ID")
	for _, x := range v.Traces {
		var by []string
		for _, s := range x.Steps {
			if s.Result == trace.Changed && s.Name != "" && !slices.Contains(by, plain(s.Name)) {
				by = append(by, plain(s.Name))
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", second(x.Time), plain(cmp.Or(x.As, x.User, "-")), x.Verb,
			resourceName(x.Group, x.Resource, x.Subresource, x.Name),
			plain(cmp.Or(x.Namespace, "-")), x.Code, short(x.Seconds), cmp.Or(strings.Join(by, ","), "-"), plain(x.AuditID))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return more(w, v)
}

// printRejected prints rejected writes with the component that rejected them, and the reason.
func printRejected(w io.Writer, v *trace.View) error {
	if len(v.Traces) == 0 {
		return nothingKept(w, "No refused writes", v.Kept.Started, v.Kept.OldestRejected)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TIME\tUSER\tVERB\tOBJECT\tNAMESPACE\tCODE\tSTAGE\tBY\tAUDIT ID\tREASON")
	for _, x := range v.Traces {
		by := "-"
		for _, s := range x.Steps {
			if s.Result == trace.Denied || s.Result == trace.Failed {
				by = stepName(s.Kind, s.Configuration, s.Name)
			}
		}
		if d := x.Decision; by == "-" && d != nil && !d.Allowed && d.By != "" {
			by = plain(d.By)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", second(x.Time), plain(cmp.Or(x.As, x.User, "-")), x.Verb,
			resourceName(x.Group, x.Resource, x.Subresource, x.Name),
			plain(cmp.Or(x.Namespace, "-")), x.Code, x.Refused, by, plain(x.AuditID), plain(cmp.Or(x.Message, x.Reason, "-")))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return more(w, v)
}

// second returns a time without its fraction.
func second(t string) string {
	if i := strings.IndexByte(t, '.'); i > 0 {
		return t[:i] + "Z"
	}
	return t
}

func more(w io.Writer, v *trace.View) error {
	if !v.More {
		return nil
	}
	_, err := fmt.Fprintln(w, "There are more; raise --limit to show them.")
	return err
}

func nothingKept(w io.Writer, what, started, oldest string) error {
	if oldest == "" {
		_, err := fmt.Fprintf(w, "%s match. The server started at %s.\n", what, started)
		return err
	}
	_, err := fmt.Fprintf(w, "%s match. The oldest trace is of %s.\n", what, oldest)
	return err
}

// value returns the value of a field.
func value(present bool, v any) string {
	if !present {
		return "(absent)"
	}
	return plain(printed(v))
}

// printField prints who set a field.
func printField(to io.Writer, f *trace.Field) error {
	var w bytes.Buffer
	fmt.Fprintf(&w, "Object:   %s%s\n", resourceName(f.Group, f.Resource, "", f.Name), inNamespace(f.Namespace))
	fmt.Fprintf(&w, "Field:    %s\n", plain(f.Field))
	fmt.Fprintf(&w, "Value:    %s\n", value(f.Present, f.Value))
	for i, s := range f.Settings {
		head := "Set by:   "
		if i > 0 {
			head = "Earlier:  "
		}
		verb := s.Verb
		if s.Operation == "Apply" {
			verb = "apply"
		}
		fmt.Fprintf(&w, "%s%s\n", head, stepName(s.By.Kind, s.By.Configuration, s.By.Name))
		fmt.Fprintf(&w, "          in the %s of %s by %s at %s\n", verb, plain(s.Resource), who(s.User, s.As), s.Time)
		if s.Manager != "" {
			fmt.Fprintf(&w, "          with field manager %s\n", plain(s.Manager))
		}
		fmt.Fprintf(&w, "          %s → %s\n", value(s.WasPresent, s.Was), value(s.Present, s.Value))
		for _, h := range s.Before {
			fmt.Fprintf(&w, "          before that, in the same write, %s: %s\n", stepName(h.Kind, h.Configuration, h.Name),
				value(h.Present, h.Value))
		}
		fmt.Fprintf(&w, "          revision %d, audit ID %s\n", s.Revision, plain(s.AuditID))
	}
	for i, m := range f.Managers {
		head := "Managers: "
		if i > 0 {
			head = "          "
		}
		sub := ""
		if m.Subresource != "" {
			sub = ", " + plain(m.Subresource)
		}
		fmt.Fprintf(&w, "%s%s (%s%s) at %s\n", head, plain(m.Manager), m.Operation, sub, m.Time)
	}
	if f.Note != "" {
		fmt.Fprintf(&w, "Note:     %s\n", f.Note)
	}
	_, err := to.Write(w.Bytes())
	return err
}
