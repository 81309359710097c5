// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// stream is what `go test -json` says of packages that pass, that fail, that end amid a test, and that do not compile.
const stream = `{"Action":"run","Package":"m/good","Test":"TestA"}
{"Action":"output","Package":"m/good","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"m/good","Test":"TestA","Output":"what a good test says\n"}
{"Action":"output","Package":"m/good","Test":"TestA","Output":"    --- PASS: TestOfAChild (1.00s)\n"}
{"Action":"output","Package":"m/good","Test":"TestA","Output":"--- PASS: TestA (0.00s)\n"}
{"Action":"pass","Package":"m/good","Test":"TestA","Elapsed":0}
{"Action":"output","Package":"m/good","Test":"TestB","Output":"    b_test.go:1: not root\n"}
{"Action":"output","Package":"m/good","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"m/good","Test":"TestB","Elapsed":0}
{"Action":"pass","Package":"m/good","Elapsed":0.5}
{"Action":"output","Package":"m/bad","Test":"TestC/x","Output":"    c_test.go:1: wrong\n"}
{"Action":"output","Package":"m/bad","Test":"TestC","Output":"--- FAIL: TestC (0.10s)\n"}
{"Action":"output","Package":"m/bad","Test":"TestC/x","Output":"    --- FAIL: TestC/x (0.10s)\n"}
{"Action":"fail","Package":"m/bad","Test":"TestC/x","Elapsed":0.1}
{"Action":"fail","Package":"m/bad","Test":"TestC","Elapsed":0.1}
{"Action":"fail","Package":"m/bad","Elapsed":1}
{"Action":"output","Package":"m/ends","Test":"TestD","Output":"panic: at once\n"}
{"Action":"fail","Package":"m/ends","Elapsed":1}
{"ImportPath":"m/none [m/none.test]","Action":"build-output","Output":"none.go:1: undefined: x\n"}
{"ImportPath":"m/none [m/none.test]","Action":"build-fail"}
{"Action":"fail","Package":"m/none","Elapsed":0,"FailedBuild":"m/none [m/none.test]"}
no event
`

func TestTally(t *testing.T) {
	var out strings.Builder
	y := newTally(&out)
	y.read(strings.NewReader(stream))
	if y.close(false) {
		t.Error("all is well")
	}
	if got := []int{y.passed, y.failed, y.skipped}; !cmp.Equal(got, []int{2, 4, 1}) {
		t.Errorf("passed, failed, skipped: %v", got)
	}
	said := out.String()
	for _, want := range []string{
		"ok  \tm/good\t0.500s\n", "FAIL\tm/bad\t1.000s\n", "--- FAIL: TestC (0.10s)\n", "skipped: m/good TestB: b_test.go:1: not root\n",
		"FAILED: m/bad TestC/x\n    c_test.go:1: wrong\n", "FAILED: m/ends TestD did not end\npanic: at once\n",
		"FAILED: m/none\nnone.go:1: undefined: x\n", "no event\n",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in:\n%s", want, said)
		}
	}
	own := "what failed, in the tests' own words:\n   m/bad TestC/x\n       c_test.go:1: wrong\n"
	if i, j := strings.Index(said, "FAILED: "), strings.Index(said, own); i < 0 || j < i {
		t.Errorf("%q is not after what failed in:\n%s", own, said)
	}
	if !strings.HasSuffix(said, "\n2 passed, 4 failed, 1 skipped\n") {
		t.Errorf("the closing line is not the last:\n%s", said)
	}
	if strings.Contains(said, "what a good test says") {
		t.Errorf("what passed is printed:\n%s", said)
	}
}

func TestLongOutputIsCut(t *testing.T) {
	var s said
	for i := range 1000 {
		s.add(fmt.Sprint("line ", i))
	}
	s.add(strings.Repeat("x", 10_000))
	got := s.lines()
	if len(got) != keptLines+1 || got[0] != "line 0" || got[keptLines/2] != "    … 801 lines …" || len(got[keptLines]) > keptWidth+3 {
		t.Errorf("%d lines: %q", len(got), got)
	}
}

func TestClassesOfWhichNoneRan(t *testing.T) {
	of := []class{
		{"ran", "", regexp.MustCompile(`/good TestA$`)},
		{"skipped", "root", regexp.MustCompile(`/good TestB$`)},
		{"renamed", "root", regexp.MustCompile(`/good TestZ$`)},
		{"failed", "", regexp.MustCompile(`/bad TestC$`)},
	}
	y := newTally(new(strings.Builder))
	y.read(strings.NewReader(stream))
	want := []string{"skipped: no test of them ran; they want root", "renamed: no test of them ran; they want root"}
	if d := cmp.Diff(want, y.missing(of)); d != "" {
		t.Errorf("missing (-want +got):\n%s", d)
	}
}

// TestMissingClassesFailWhereDemanded reads a run in which all passed, and no class of the table ran.
func TestMissingClassesFailWhereDemanded(t *testing.T) {
	for demanded, well := range map[bool]bool{true: false, false: true} {
		if got := newTally(new(strings.Builder)).close(demanded); got != well {
			t.Errorf("demanded %v: well %v", demanded, got)
		}
	}
}

// TestPackages reads the tree of the module itself.
func TestPackages(t *testing.T) {
	t.Chdir("../..")
	if _, err := os.Stat("go.mod"); err != nil {
		t.Fatal(err)
	}
	got := packages([]string{
		"README.md", "store/wal/gone_before.go.txt", "internal/house/rules_test.go", "internal/house/doc.go", "scripts/suite/main.go",
		"internal/cli/testdata/script/a.txt", "test/helm/doc.go", "docs/x/y.go", "nowhere/gone.go",
	})
	if d := cmp.Diff([]string{"./internal/cli", "./internal/house", "./scripts/suite"}, got); d != "" {
		t.Errorf("packages (-want +got):\n%s", d)
	}
	all := targets([]string{"./scripts/suite", "./internal/apiserver/requestinfo"})
	for _, f := range all {
		if f[0] != "./internal/apiserver/requestinfo" || !strings.HasPrefix(f[1], "Fuzz") {
			t.Errorf("fuzz target %v", f)
		}
	}
}
