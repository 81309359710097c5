// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/mortise-dev/mortise/extension/trace"
)

// printScheduling prints where a pod is, and the scheduler's decisions about it.
func printScheduling(to io.Writer, s *trace.Scheduling) error {
	var w bytes.Buffer
	fmt.Fprintf(&w, "Pod:        %s%s%s\n", plain(s.Name), inNamespace(s.Namespace), prefixed(", uid ", plain(s.UID)))
	if p := s.Place; p != nil {
		fmt.Fprintf(&w, "Now:        %s\n", queueState(p))
		if p.Nominated != "" {
			fmt.Fprintf(&w, "            nominated to node %s: preemption frees resources for it there\n", plain(p.Nominated))
		}
	}
	if s.Note != "" {
		fmt.Fprintf(&w, "Note:       %s\n", plain(s.Note))
	}
	if len(s.Decisions) == 0 {
		fmt.Fprintln(&w, "Decisions:  none recorded")
	}
	for i := range s.Decisions {
		fmt.Fprintln(&w)
		if err := printDecided(&w, &s.Decisions[i]); err != nil {
			return err
		}
	}
	_, err := to.Write(w.Bytes())
	return err
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

func queueState(p *trace.Place) string {
	by := plain(strings.Join(p.Plugins, ", "))
	s := plain(p.Where)
	switch p.Where {
	case trace.PlaceActive:
		s += ": the scheduler tries it after the pods before it"
	case trace.PlaceBackoff, trace.PlaceErrorBackoff:
		s += " until " + plain(p.Until)
	case trace.PlaceUnschedulable:
		s += prefixed(", rejected by ", by) + ": waits for an event that may make it schedulable, until " + second(plain(p.Until)) +
			" at the latest"
	case trace.PlaceGated:
		s += prefixed(" by ", by)
	case trace.PlacePermit:
		s += prefixed(" of ", by)
	case trace.PlaceBound, trace.PlaceBinding:
		s += prefixed(" to node ", plain(p.Node))
	}
	if p.Since != "" {
		s += ", there since " + second(plain(p.Since))
	}
	if p.Attempts > 0 {
		s += fmt.Sprintf(", after %d attempts", p.Attempts)
	}
	return strings.Replace(s, "after 1 attempts", "after 1 attempt", 1)
}

func printDecided(w io.Writer, d *trace.Decided) error {
	fmt.Fprintf(w, "Decision:   %s, attempt %d, cycle %d of profile %s, in %s\n", plain(d.Time), d.Attempt, d.Cycle, plain(d.Profile),
		short(d.Seconds))
	outcome := plain(d.Outcome)
	if d.Node != "" {
		outcome += ", node " + plain(d.Node)
	}
	fmt.Fprintf(w, "  Outcome:  %s%s\n", outcome, prefixed(": ", plain(d.Message)))
	fmt.Fprintf(w, "  Nodes:    %d, evaluated %d, feasible %d\n", d.Nodes, d.Asked, d.Feasible)
	if d.Nominated != "" {
		fmt.Fprintf(w, "  Nominated to node %s\n", plain(d.Nominated))
	}
	for i, v := range d.Victims {
		head := "  Preempts: "
		if i > 0 {
			head = "            "
		}
		fmt.Fprintf(w, "%s%s/%s, uid %s\n", head, plain(v.Namespace), plain(v.Name), plain(v.UID))
	}
	if d.MoreVictims > 0 {
		fmt.Fprintf(w, "            and %d more\n", d.MoreVictims)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(d.Filtered) > 0 {
		fmt.Fprintln(w, "  Filtered out:")
		fmt.Fprintln(t, "  COUNT\tPLUG-IN\tREASON\tNODES")
		for _, f := range d.Filtered {
			names := plain(strings.Join(f.Nodes, ", "))
			if len(f.Nodes) > 0 && f.Count > len(f.Nodes) {
				names += ", …"
			}
			fmt.Fprintf(t, "  %d\t%s\t%s\t%s\n", f.Count, plain(cmp.Or(f.Plugin, "-")), plain(f.Reason), cmp.Or(names, "-"))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return printScores(w, d)
}

// printScores prints one line for each plug-in and one column for each node: there are few nodes.
func printScores(w io.Writer, d *trace.Decided) error {
	if len(d.Scores) == 0 {
		if d.Node == "" || d.Feasible != 1 {
			return nil
		}
		_, err := fmt.Fprintln(w, "  Scores:   none, as no other node was feasible")
		return err
	}
	fmt.Fprintln(w, "  Scores (as given → normalised and weighted):")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "  PLUG-IN")
	for _, n := range d.Scores {
		fmt.Fprintf(t, "\t%s", plain(n.Node))
	}
	fmt.Fprintln(t)
	var plugins []string
	of := map[string][]string{} // texts by plug-in and node
	for i, n := range d.Scores {
		for _, p := range n.Plugins {
			if of[p.Plugin] == nil {
				plugins = append(plugins, p.Plugin)
				of[p.Plugin] = make([]string, len(d.Scores))
			}
			of[p.Plugin][i] = fmt.Sprintf("%d → %d", p.Raw, p.Weighted)
		}
	}
	for _, p := range plugins {
		fmt.Fprint(t, "  ", plain(p))
		for _, text := range of[p] {
			fmt.Fprintf(t, "\t%s", cmp.Or(text, "0 → 0"))
		}
		fmt.Fprintln(t)
	}
	fmt.Fprint(t, "  total")
	for _, n := range d.Scores {
		fmt.Fprintf(t, "\t%d", n.Total)
	}
	fmt.Fprintln(t)
	return t.Flush()
}
