// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
)

// What is kept and printed of the output of a test that failed, and of all of them.
const (
	keptLines  = 200 // the first half, and the last
	keptWidth  = 600
	keptInAll  = 3000
	keptOwn    = 20      // lines in which a test says what is wrong
	keptSource = 4 << 20 // the longest line that is read
)

// event is one of `go test -json`: cmd/test2json tells of its fields.
type event struct {
	Action     string
	Package    string
	ImportPath string // of what is compiled
	Test       string
	Elapsed    float64
	Output     string
}

// said is the output of a test, or of a package outside its tests.
type said struct {
	first, last []string
	left        int      // lines between them that were dropped
	own         []string // the first of those that a test itself has said
}

// ownLine is a line of testing.T's, such as "    x_test.go:12: got 1, want 2": others are of the programs and libraries under test.
var ownLine = regexp.MustCompile(`^ *\w+_test\.go:\d+: `)

func (s *said) add(line string) {
	if len(line) > keptWidth {
		line = line[:keptWidth] + "…"
	}
	if len(s.own) < keptOwn && ownLine.MatchString(line) {
		s.own = append(s.own, strings.TrimSpace(line))
	}
	if len(s.first) < keptLines/2 {
		s.first = append(s.first, line)
		return
	}
	if s.last = append(s.last, line); len(s.last) > keptLines/2 {
		s.last = s.last[1:]
		s.left++
	}
}

func (s *said) lines() []string {
	out := append([]string(nil), s.first...)
	if s.left > 0 {
		out = append(out, fmt.Sprintf("    … %d lines …", s.left))
	}
	return append(out, s.last...)
}

// failure is a test or a package that failed, with what it said.
type failure struct {
	name  string
	own   []string // what the test itself said; the first lines
	lines []string
}

// tally counts what the events say, of several streams at a time.
type tally struct {
	mu                      sync.Mutex // held while an event is counted, and what it leads to is printed
	to                      io.Writer
	keep                    io.Writer // gets what is read, too
	passed, failed, skipped int
	results                 map[string]bool // "package test" to whether it ran; false: it was skipped
	output                  map[[2]string]*said
	failedIn                map[string]int // failing tests a package
	failures                []failure
	skips                   []string
	log                     string // the file that the events are kept in; empty: none
}

func newTally(to io.Writer) *tally {
	return &tally{to: to, keep: io.Discard, results: map[string]bool{}, output: map[[2]string]*said{}, failedIn: map[string]int{}}
}

// read reads events to the stream's end, and returns how many failures they told of. A line that is none is printed.
func (t *tally) read(from io.Reader) (failed int) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, keptSource)
	for lines.Scan() {
		failed += t.line(lines.Bytes())
	}
	if err := lines.Err(); err != nil {
		t.broken("the events of go test", err)
		failed++
	}
	return failed
}

// line reads a line of a stream, and returns how many failures it told of.
func (t *tally) line(line []byte) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = fmt.Fprintf(t.keep, "%s\n", line)
	var e event
	if !bytes.HasPrefix(line, []byte("{")) || json.Unmarshal(line, &e) != nil {
		fmt.Fprintf(t.to, "%s\n", line)
		return 0
	}
	before := t.failed
	t.event(e)
	return t.failed - before
}

// printf prints between the lines of the events.
func (t *tally) printf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.to, format, args...)
}

// result is the line that a test ends with. One in the output of another test is that of a test which a process of its own has run.
var result = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (\S+) \(`)

func (t *tally) event(e event) {
	switch e.Action {
	case "output", "build-output":
		t.hear(e)
	case "pass", "skip", "fail":
		if e.Test != "" {
			t.test(e)
		} else {
			t.packaged(e)
		}
	}
}

func (t *tally) hear(e event) {
	line := strings.TrimSuffix(e.Output, "\n")
	if m := result.FindStringSubmatch(line); m != nil && e.Action == "output" {
		switch m[1] {
		case "PASS":
			t.passed++
		case "FAIL":
			t.failed++
			t.failedIn[e.Package]++
			fmt.Fprintln(t.to, line)
		case "SKIP":
			t.skipped++
			t.skips = append(t.skips, fmt.Sprintf("%s %s: %s", e.Package, m[2], t.reason(e)))
		}
		t.results[e.Package+" "+m[2]] = m[1] != "SKIP"
	}
	if strings.HasPrefix(line, "=== ") {
		return
	}
	key := [2]string{e.Package, e.Test}
	if e.Action == "build-output" {
		name, _, _ := strings.Cut(e.ImportPath, " ") // "path [path.test]"
		key = [2]string{strings.TrimSuffix(name, "_test"), ""}
	}
	if t.output[key] == nil {
		t.output[key] = &said{}
	}
	t.output[key].add(line)
}

// reason is the last thing that a test said before it was skipped.
func (t *tally) reason(e event) string {
	if s := t.output[[2]string{e.Package, e.Test}]; s != nil {
		if lines := s.lines(); len(lines) > 0 {
			return strings.TrimSpace(lines[len(lines)-1])
		}
	}
	return ""
}

func (t *tally) test(e event) {
	key := [2]string{e.Package, e.Test}
	if s := t.output[key]; e.Action == "fail" && s != nil {
		t.failures = append(t.failures, failure{e.Package + " " + e.Test, s.own, s.lines()})
	}
	delete(t.output, key)
}

func (t *tally) packaged(e event) {
	key := [2]string{e.Package, ""}
	switch e.Action {
	case "pass":
		fmt.Fprintf(t.to, "ok  \t%s\t%.3fs\n", e.Package, e.Elapsed)
	case "fail":
		fmt.Fprintf(t.to, "FAIL\t%s\t%.3fs\n", e.Package, e.Elapsed)
		if t.failedIn[e.Package] == 0 {
			t.failed++ // it does not compile, or ended in no test
		}
		if s := t.output[key]; s != nil {
			t.failures = append(t.failures, failure{e.Package, s.own, s.lines()})
		}
		// What ran when the process ended tells why it did.
		for k, s := range t.output {
			if k[0] == e.Package && k[1] != "" {
				t.failures = append(t.failures, failure{k[0] + " " + k[1] + " did not end", s.own, s.lines()})
			}
		}
	}
	for k := range t.output {
		if k[0] == e.Package {
			delete(t.output, k)
		}
	}
}

// broken counts a failure outside all tests.
func (t *tally) broken(what string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed++
	t.failures = append(t.failures, failure{name: what, lines: []string{err.Error()}})
}

// close prints what the reader needs of the whole run, and reports whether all is well. A class that is missing is an error where it is
// demanded, and a note otherwise.
func (t *tally) close(demanded bool) bool {
	for _, s := range t.skips {
		fmt.Fprintln(t.to, "skipped:", s)
	}
	missing := t.missing(classes)
	for _, m := range missing {
		if demanded {
			t.broken("classes of tests", fmt.Errorf("%s", m))
		} else {
			fmt.Fprintln(t.to, "not run:", m)
		}
	}
	if len(t.failures) > 0 {
		fmt.Fprintln(t.to, "what failed said:")
	}
	printed := 0
	for _, f := range t.failures {
		fmt.Fprintln(t.to, "FAILED:", f.name)
		for _, l := range f.lines {
			if printed++; printed <= keptInAll {
				fmt.Fprintln(t.to, l)
			}
		}
	}
	if printed > keptInAll {
		fmt.Fprintf(t.to, "… and %d lines more\n", printed-keptInAll)
	}
	if len(t.failures) > 0 {
		fmt.Fprintln(t.to, "what failed, in the tests' own words:")
	}
	for _, f := range t.failures {
		fmt.Fprintln(t.to, "  ", f.name)
		for _, l := range f.own {
			fmt.Fprintln(t.to, "      ", l)
		}
	}
	if t.log != "" {
		fmt.Fprintln(t.to, "the whole log, for scripts/suite -read:", t.log)
	}
	fmt.Fprintf(t.to, "%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
	return t.failed == 0
}
