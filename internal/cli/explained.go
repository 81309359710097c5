// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/tracetext"
)

// printTraces prints the traces of writes.
func printTraces(w io.Writer, traces []trace.Trace) error {
	for i := range traces {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := tracetext.Write(w, &traces[i]); err != nil {
			return err
		}
	}
	return nil
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

// The words of package tracetext, which writes a whole trace, for what else is explained.

func plain(s string) string { return tracetext.Plain(s) }

func printed(v any) string { return tracetext.Value(v) }

func short(seconds float64) string { return tracetext.Duration(seconds) }

func who(user, as string) string { return tracetext.Who(user, as) }

func inNamespace(namespace string) string { return tracetext.InNamespace(namespace) }

func stepName(kind, configuration, name string) string {
	return tracetext.Step(kind, configuration, name)
}

func resourceName(group, resource, subresource, name string) string {
	return tracetext.Resource(group, resource, subresource, name)
}
