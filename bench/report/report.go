// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package report holds measurements beside the budgets of the design, and prints them as rows of Markdown. It is pure but
// for [Report.Add], which also shows progress on standard error.
package report

import (
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
)

// Value is one number of a measurement, with the bound that the design sets.
type Value struct {
	Name   string // "CPU", "p50"; empty for the row's own figure
	Unit   string
	Number float64
	Bound  Bound
	Text   string // instead of a number
}

// Bound is a budget: absolute, or a share of upstream's figure. The zero value is none.
type Bound struct {
	Least    bool    // the number must be at least the bound, not at most
	Limit    float64 // what stands in the design, upstream's figure times the factor
	factor   float64 // share of what the peer does; 0: the limit is absolute
	Budgeted bool
}

func AtMost(limit float64) Bound { return Bound{Limit: limit, Budgeted: true} }

// ShareOf is at most a factor of upstream's figure; timesOf is at least a multiple of it. An upstream of 0 is not known
// without a peer.
func ShareOf(upstream, factor float64) Bound {
	return Bound{Limit: upstream * factor, factor: factor, Budgeted: true}
}

func TimesOf(upstream, factor float64) Bound {
	return Bound{Least: true, Limit: upstream * factor, factor: factor, Budgeted: true}
}

// Line is one row as it is printed.
type Line struct {
	What       string
	Mine, peer []Value
}

// Report is the lines so far.
type Report struct{ lines []Line }

func (r *Report) Add(what string, mine, peer []Value) {
	r.lines = append(r.lines, Line{what, mine, peer})
	fmt.Fprintf(os.Stderr, "%s: %s\n", what, numbers(mine))
	if peer != nil {
		fmt.Fprintf(os.Stderr, "    peer: %s\n", numbers(peer))
	}
}

// Print writes the rows as Markdown. other is what was measured beside the server, if anything was.
func (r *Report) Print(w io.Writer, other string) {
	if other != "" {
		fmt.Fprintf(w, "| what | measured | %[1]s | mortise / %[1]s | budget | met? |\n|---|---|---|---|---|---|\n", other)
	} else {
		fmt.Fprintln(w, "| what | measured | budget | met? |\n|---|---|---|---|")
	}
	for _, l := range r.lines {
		cells := []string{l.What, numbers(l.Mine)}
		if other != "" {
			cells = append(cells, numbers(l.peer), ratios(l.Mine, l.peer))
		}
		budget, met := budgets(l.Mine, l.peer)
		fmt.Fprintf(w, "| %s |\n", strings.Join(append(cells, budget, met), " | "))
	}
}

func numbers(values []Value) string {
	if len(values) == 0 {
		return "–"
	}
	var parts []string
	for _, v := range values {
		parts = append(parts, v.String())
	}
	return strings.Join(parts, ", ")
}

// String is the value as it is printed: "CPU 0.094 ms".
func (v Value) String() string {
	if v.Text != "" {
		return v.Text
	}
	return strings.TrimSpace(v.Name + " " + Number(v.Number) + unit(v.Unit))
}

func unit(u string) string {
	if u == "" || strings.HasPrefix(u, "/") {
		return u
	}
	return " " + u
}

// Number is n with three digits that count, and commas.
func Number(n float64) string {
	switch a := math.Abs(n); {
	case a < 0.9995 && a > 0:
		return strconv.FormatFloat(n, 'f', 3, 64)
	case a < 99.95 && n != math.Trunc(n):
		return strconv.FormatFloat(n, 'f', 1, 64)
	}
	s := strconv.FormatInt(int64(math.Round(n)), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func find(values []Value, name string) *Value {
	for i := range values {
		if values[i].Name == name && values[i].Text == "" {
			return &values[i]
		}
	}
	return nil
}

// ratios is each bounded number divided by the peer's.
func ratios(mine, peer []Value) string {
	var parts []string
	for _, v := range mine {
		if p := find(peer, v.Name); p != nil && p.Number > 0 && v.Text == "" && v.Number > 0 {
			r := v.Number / p.Number
			text := Number(r) + "×"
			if r < 1 {
				text = "1/" + Number(1/r)
			}
			parts = append(parts, strings.TrimSpace(v.Name+" "+text))
		}
	}
	if len(parts) == 0 {
		return "–"
	}
	return strings.Join(parts, ", ")
}

// budgets says what the budgets are, and whether all are met.
func budgets(mine, peer []Value) (text, met string) {
	var parts []string
	all := true
	for _, v := range mine {
		b := v.Bound
		if !b.Budgeted {
			continue
		}
		if p := find(peer, v.Name); p != nil && b.factor > 0 {
			b.Limit = p.Number * b.factor
		}
		if b.factor > 0 && b.Limit == 0 {
			parts = append(parts, strings.TrimSpace(v.Name+" "+Number(b.factor)+" of upstream's"))
			continue
		}
		sign, ok := "≤", v.Number <= b.Limit
		if b.Least {
			sign, ok = "≥", v.Number >= b.Limit
		}
		if v.Text == "" {
			parts = append(parts, strings.TrimSpace(v.Name+" "+sign+" "+Number(b.Limit)+unit(v.Unit)))
		}
		all = all && ok
	}
	switch {
	case !all:
		return strings.Join(parts, ", "), "**no**"
	case len(parts) == 0:
		return "–", "–"
	}
	return strings.Join(parts, ", "), "yes"
}
