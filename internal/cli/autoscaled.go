// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mortise-dev/mortise/extension/trace"
)

// printAutoscaling prints the last decisions about a HorizontalPodAutoscaler.
func printAutoscaling(to io.Writer, a *trace.Autoscaling) error {
	var w bytes.Buffer
	fmt.Fprintf(&w, "Autoscaler: %s%s%s\n", plain(a.Name), inNamespace(a.Namespace), prefixed(", uid ", plain(a.UID)))
	for i := range a.Decisions {
		fmt.Fprintln(&w)
		if err := printScaling(&w, &a.Decisions[i]); err != nil {
			return err
		}
	}
	_, err := to.Write(w.Bytes())
	return err
}

func printScaling(w io.Writer, s *trace.Scaling) error {
	fmt.Fprintf(w, "Decision:   %s about %s, in %s\n", second(plain(s.Time)), plain(s.Target), short(s.Seconds))
	if s.Evaluations > 1 {
		fmt.Fprintf(w, "            the same in %d evaluations since %s\n", s.Evaluations, second(plain(s.Since)))
	}
	fmt.Fprintf(w, "  Outcome:  %s%s\n", plain(s.Outcome), prefixed(": ", plain(s.Message)))
	fmt.Fprintf(w, "  Replicas: %d found", s.Replicas)
	if s.Proposed != nil {
		fmt.Fprintf(w, ", %d proposed", *s.Proposed)
	}
	if s.Desired != nil {
		fmt.Fprintf(w, ", %d desired", *s.Desired)
	}
	fmt.Fprintln(w)
	for i, l := range s.Limits {
		head := "  Limits:   "
		if i > 0 {
			head = "            "
		}
		fmt.Fprintf(w, "%s%d → %d by %s (%s)\n", head, l.From, l.To, plain(l.Detail), plain(l.Reason))
	}
	return printMetrics(w, s)
}

func printMetrics(w io.Writer, s *trace.Scaling) error {
	if len(s.Metrics) == 0 {
		return nil
	}
	fmt.Fprintln(w, "  Metrics:")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  TYPE\tNAME\tVALUE\tTARGET\tRATIO\tAGE\tPROPOSES\tPODS")
	for _, m := range s.Metrics {
		ratio, age, proposes := "-", "-", "-"
		if m.Ratio != nil {
			ratio = strconv.FormatFloat(*m.Ratio, 'g', 4, 64)
		}
		if m.AgeSeconds != nil {
			age = time.Duration(*m.AgeSeconds * float64(time.Second)).Round(100 * time.Millisecond).String()
		}
		if m.Proposed != nil {
			proposes = strconv.Itoa(int(*m.Proposed))
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", plain(m.Type), plain(m.Name), cmp.Or(plain(m.Value), "-"), plain(m.Target), ratio,
			age, proposes, podsOf(m.Pods))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if s.MoreMetrics > 0 {
		fmt.Fprintf(w, "  and %d more\n", s.MoreMetrics)
	}
	for _, m := range s.Metrics {
		of := prefixed(" of service ", plain(m.Service))
		if m.BuiltIn {
			of = " of this server"
		}
		fmt.Fprintf(w, "  %s: read in %s at %s%s\n", plain(m.Name), short(m.Seconds), cmp.Or(plain(m.Path), "(nowhere)"), of)
		if m.Kept != "" {
			fmt.Fprintf(w, "    keeps the replicas: %s\n", plain(m.Kept))
		}
		if m.Error != "" {
			fmt.Fprintf(w, "    error: %s\n", plain(m.Error))
		}
	}
	return nil
}

// podsOf counts pods in words.
func podsOf(p *trace.ScalingPods) string {
	if p == nil {
		return "-"
	}
	var words []string
	for _, of := range []struct {
		n    int
		word string
	}{{p.Ready, "ready"}, {p.Unready, "not ready"}, {p.Missing, "without sample"}, {p.Ignored, "ignored"}} {
		if of.n > 0 {
			words = append(words, fmt.Sprintf("%d %s", of.n, of.word))
		}
	}
	return strings.Join(words, ", ")
}
