// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// tally is what a run of a suite came to.
type tally struct {
	specs, passed int
	seconds       float64
	failures      []string
}

// Lines of Ginkgo's report.
var (
	ran    = regexp.MustCompile(`Ran (\d+) of \d+ Specs in ([\d.]+) seconds`)
	passed = regexp.MustCompile(`-- (\d+) Passed \|`)
	failed = regexp.MustCompile(`^\[FAIL\] (.*)`)
	colors = regexp.MustCompile(`\x1b\[[\d;]*m`)
)

// String is a cell of the table.
func (t *tally) String() string { return fmt.Sprintf("%d (%.0f s)", t.passed, t.seconds) }

// read reads the events of `go test -json`. A package without specs of Ginkgo counts its tests, those below other tests not. It returns
// the output of the tests.
func (t *tally) read(events []byte) []byte {
	var said bytes.Buffer
	ginkgo := false
	tests := 0
	good := 0
	for line := range bytes.Lines(events) {
		var e struct {
			Action, Test, Output string
			Elapsed              float64
		}
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		said.WriteString(e.Output)
		text := colors.ReplaceAllString(e.Output, "")
		switch {
		case e.Action == "output":
			if m := ran.FindStringSubmatch(text); m != nil {
				n, _ := strconv.Atoi(m[1])
				took, _ := strconv.ParseFloat(m[2], 64)
				t.specs, t.seconds, ginkgo = t.specs+n, t.seconds+took, true
			}
			if m := passed.FindStringSubmatch(text); m != nil {
				n, _ := strconv.Atoi(m[1])
				t.passed += n
			}
			if m := failed.FindStringSubmatch(strings.TrimSpace(text)); m != nil {
				t.failures = append(t.failures, m[1])
			}
		case e.Test == "" && !ginkgo && (e.Action == "pass" || e.Action == "fail"):
			t.seconds = e.Elapsed
		case strings.Contains(e.Test, "/"):
		case e.Action == "pass":
			tests, good = tests+1, good+1
		case e.Action == "fail" && e.Test != "":
			tests++
			if !ginkgo {
				t.failures = append(t.failures, e.Test)
			}
		}
	}
	if !ginkgo {
		t.specs, t.passed = tests, good
	}
	return said.Bytes()
}
