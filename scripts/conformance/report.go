// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// result is what became of one test.
type result struct {
	name    string
	state   string // passed, failed or skipped
	message string // the first line of the failure
}

type results []result

// suiteReport is what is read of ginkgo's JSON report.
type suiteReport struct {
	PreRunStats                struct{ SpecsThatWillRun int }
	SpecialSuiteFailureReasons []string
	SpecReports                []specReport
}

type specReport struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	Failure                 struct{ Message string }
}

// cut is how many of the selected tests did not run, and why: ginkgo's words, such as "Suite Timeout Elapsed".
type cut struct {
	tests int
	why   string
}

// readReport reads a report. Tests that were not selected are no results; what is not a test, such as the preparation of the suite, is one
// only if it failed.
func readReport(r io.Reader) (out results, unrun cut, err error) {
	var suites []suiteReport
	if err := json.NewDecoder(r).Decode(&suites); err != nil {
		return nil, cut{}, fmt.Errorf("read the suite's report: %w", err)
	}
	for _, suite := range suites {
		unrun.tests += suite.PreRunStats.SpecsThatWillRun
		unrun.why = strings.Join(append([]string{unrun.why}, suite.SpecialSuiteFailureReasons...), " ")
		for _, s := range suite.SpecReports {
			one := result{name: strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " "), state: s.State,
				message: firstLine(s.Failure.Message)}
			switch s.State {
			case "passed":
			case "pending":
				continue
			case "skipped":
				if one.message == "" {
					continue // not selected
				}
			default:
				one.state = "failed"
			}
			if s.LeafNodeType != "It" {
				if one.state != "failed" {
					continue
				}
				one.name = strings.TrimSpace(s.LeafNodeType + " " + one.name)
			} else {
				unrun.tests--
			}
			out = append(out, one)
		}
	}
	return out, cut{max(unrun.tests, 0), strings.TrimSpace(unrun.why)}, nil
}

// passed returns a regular expression of the names of the tests that passed; "" if none has.
func (rs results) passed() string {
	var names []string
	for _, r := range rs {
		if r.state == "passed" {
			names = append(names, regexp.QuoteMeta(r.name)+"$")
		}
	}
	return strings.Join(names, "|")
}

// firstLine is the first line that says something: ginkgo begins some messages with an empty one.
func firstLine(s string) string {
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			return line
		}
	}
	return ""
}

// known are the known failures of a run: causes by a part of the test's name.
type known map[string]map[string]string

// readKnown reads the table: run, part of a name, cause, separated by tabs.
func readKnown(table string) (known, error) {
	out := known{}
	for line := range strings.Lines(table) {
		line = strings.TrimRight(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 3 || f[0] == "" || f[1] == "" || f[2] == "" {
			return nil, fmt.Errorf("known.tsv: %q has not three fields", line)
		}
		if out[f[0]] == nil {
			out[f[0]] = map[string]string{}
		}
		out[f[0]][f[1]] = f[2]
	}
	return out, nil
}

// cause is why a test is known to fail in a run; "" if it is not.
func (k known) cause(run, test string) (part, cause string) {
	for _, part := range slices.Sorted(maps.Keys(k[run])) {
		if strings.Contains(test, part) {
			return part, k[run][part]
		}
	}
	return "", ""
}

// print writes the failures and the counts of a run, and reports whether every selected test ran and every failure is known. A run without
// any test has failed too.
func (rs results) print(w io.Writer, run string, k known, unrun cut, took time.Duration) bool {
	counts := map[string]int{}
	unknown := 0
	for _, r := range rs {
		counts[r.state]++
		part, cause := k.cause(run, r.name)
		switch {
		case r.state == "failed" && part == "":
			unknown++
			fmt.Fprintf(w, "FAILED: %s\n  %s\n", r.name, r.message)
		case r.state == "failed":
			counts["known"]++
			fmt.Fprintf(w, "failed, as known: %s\n  %s\n  %s\n", r.name, r.message, cause)
		case r.state == "passed" && part != "":
			fmt.Fprintf(w, "passes now, known.tsv has it: %s\n", r.name)
		case r.state == "skipped":
			fmt.Fprintf(w, "skipped: %s\n  %s\n", r.name, r.message)
		}
	}
	fmt.Fprintf(w, "%s: %d passed, %d failed (%d as known), %d skipped, in %.0f s\n", run, counts["passed"], counts["failed"],
		counts["known"], counts["skipped"], took.Seconds())
	if unrun.tests > 0 {
		fmt.Fprintf(w, "%s: %d selected tests did not run: %s\n", run, unrun.tests, cmp.Or(unrun.why, "ginkgo gives no reason"))
	}
	return unknown == 0 && len(rs) > 0 && unrun.tests == 0
}
