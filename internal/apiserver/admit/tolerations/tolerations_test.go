// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package tolerations

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// parse reads a toleration that is written as "KEY OPERATOR VALUE EFFECT SECONDS"; "-" stands for a field that is not set.
func parse(t *testing.T, text string) corev1.Toleration {
	t.Helper()
	field := strings.Fields(text)
	if len(field) != 5 {
		t.Fatalf("%q has %d fields, want 5", text, len(field))
	}
	for i, f := range field {
		if f == "-" {
			field[i] = ""
		}
	}
	out := corev1.Toleration{Key: field[0], Operator: corev1.TolerationOperator(field[1]), Value: field[2],
		Effect: corev1.TaintEffect(field[3])}
	if seconds := map[string]int64{"30": 30, "60": 60}[field[4]]; seconds > 0 {
		out.TolerationSeconds = &seconds
	}
	return out
}

// TestCovers has each pair of tolerations in both directions: whether the first covers the second, and the second the first.
func TestCovers(t *testing.T) {
	for _, c := range []struct {
		name, first, second string
		covers, covered     bool
	}{
		{"the same", "a Equal v NoSchedule -", "a Equal v NoSchedule -", true, true},
		{"another key", "a Exists - - -", "b Exists - - -", false, false},
		{"every key", "- Exists - - -", "a Equal v NoSchedule -", true, false},
		{"an empty key that is compared by value", "- Equal v - -", "a Equal v - -", false, false},
		{"every value", "a Exists - - -", "a Equal v - -", true, false},
		{"another value", "a Equal v - -", "a Equal w - -", false, false},
		{"every effect", "a Exists - - -", "a Exists - NoSchedule -", true, false},
		{"another effect", "a Exists - NoSchedule -", "a Exists - NoExecute -", false, false},
		{"an operator that is left out is Equal", "a - v - -", "a Equal v - -", true, false},
		{"an operator that is left out, another value", "a - v - -", "a Equal w - -", false, false},
		{"Equal and every effect", "a Equal v - -", "a Equal v NoSchedule -", true, false},
		{"for ever", "a Exists - NoExecute -", "a Exists - NoExecute 30", true, false},
		{"for longer", "a Exists - NoExecute 60", "a Exists - NoExecute 30", true, false},
		{"for as long, every value", "a Exists - NoExecute 30", "a Equal v NoExecute 30", true, false},
		{"seconds count for NoExecute alone", "a Exists - NoSchedule 30", "a Equal v NoSchedule 60", true, false},
		{"a number that is compared", "a Gt 5 - -", "a Gt 7 - -", false, false},
	} {
		first, second := parse(t, c.first), parse(t, c.second)
		if got := Covers(first, second); got != c.covers {
			t.Errorf("%s: (%s) covers (%s): %t, want %t", c.name, c.first, c.second, got, c.covers)
		}
		if got := Covers(second, first); got != c.covered {
			t.Errorf("%s: (%s) covers (%s): %t, want %t", c.name, c.second, c.first, got, c.covered)
		}
	}
}

// TestMerge drops each toleration that another one makes needless, wherever it stands, and keeps the order of the rest.
func TestMerge(t *testing.T) {
	const narrow, wide, other, every = "a Equal v NoSchedule -", "a Exists - - -", "b Exists - - -", "- Exists - - -"
	for _, c := range []struct {
		name                string
		first, second, want []string
	}{
		{"none", nil, nil, nil},
		{"one list", []string{narrow, other}, nil, []string{narrow, other}},
		{"both lists", []string{other}, []string{narrow}, []string{other, narrow}},
		{"the same in both", []string{narrow, other}, []string{other, narrow}, []string{narrow, other}},
		{"covered by an earlier one", []string{wide, other}, []string{narrow}, []string{wide, other}},
		{"covered by a later one", []string{narrow, other}, []string{wide}, []string{other, wide}},
		{"covered by the next one", []string{narrow, wide}, nil, []string{wide}},
		{"all covered by the last", []string{narrow, wide, other}, []string{every}, []string{every}},
	} {
		lists := [3][]corev1.Toleration{}
		for i, said := range [][]string{c.first, c.second, c.want} {
			for _, text := range said {
				lists[i] = append(lists[i], parse(t, text))
			}
		}
		got := Merge(lists[0], lists[1])
		same := len(got) == len(lists[2])
		for i := range got {
			same = same && got[i] == lists[2][i]
		}
		if !same {
			t.Errorf("%s: got %v, want %v", c.name, got, lists[2])
		}
	}
}
