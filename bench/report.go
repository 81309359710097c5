// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
)

// value is one number of a measurement, with the bound that the design sets.
type value struct {
	name   string // "CPU", "p50"; empty for the row's own figure
	unit   string
	number float64
	bound  bound
	text   string // instead of a number
}

// bound is a budget: absolute, or a share of upstream's figure. The zero value is none.
type bound struct {
	least    bool    // the number must be at least the bound, not at most
	limit    float64 // what stands in the design, upstream's figure times the factor
	factor   float64 // share of what the peer does; 0: the limit is absolute
	budgeted bool
}

func atMost(limit float64) bound { return bound{limit: limit, budgeted: true} }

// shareOf is at most a factor of upstream's figure; timesOf is at least a multiple of it. An upstream of 0 is not known
// without a peer.
func shareOf(upstream, factor float64) bound {
	return bound{limit: upstream * factor, factor: factor, budgeted: true}
}

func timesOf(upstream, factor float64) bound {
	return bound{least: true, limit: upstream * factor, factor: factor, budgeted: true}
}

// line is one row as it is printed.
type line struct {
	what       string
	mine, peer []value
}

// report is the lines so far.
type report struct{ lines []line }

func (r *report) add(what string, mine, peer []value) {
	r.lines = append(r.lines, line{what, mine, peer})
	fmt.Fprintf(os.Stderr, "%s: %s\n", what, numbers(mine))
	if peer != nil {
		fmt.Fprintf(os.Stderr, "    peer: %s\n", numbers(peer))
	}
}

// print writes the rows as Markdown.
func (r *report) print(w io.Writer, peer bool) {
	if peer {
		fmt.Fprintln(w, "| what | measured | peer | mortise / peer | budget | met? |\n|---|---|---|---|---|---|")
	} else {
		fmt.Fprintln(w, "| what | measured | budget | met? |\n|---|---|---|---|")
	}
	for _, l := range r.lines {
		cells := []string{l.what, numbers(l.mine)}
		if peer {
			cells = append(cells, numbers(l.peer), ratios(l.mine, l.peer))
		}
		budget, met := budgets(l.mine, l.peer)
		fmt.Fprintf(w, "| %s |\n", strings.Join(append(cells, budget, met), " | "))
	}
}

func numbers(values []value) string {
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
func (v value) String() string {
	if v.text != "" {
		return v.text
	}
	return strings.TrimSpace(v.name + " " + number(v.number) + unit(v.unit))
}

func unit(u string) string {
	if u == "" || strings.HasPrefix(u, "/") {
		return u
	}
	return " " + u
}

// number is n with three digits that count, and commas.
func number(n float64) string {
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

func find(values []value, name string) *value {
	for i := range values {
		if values[i].name == name && values[i].text == "" {
			return &values[i]
		}
	}
	return nil
}

// ratios is each bounded number divided by the peer's.
func ratios(mine, peer []value) string {
	var parts []string
	for _, v := range mine {
		if p := find(peer, v.name); p != nil && p.number > 0 && v.text == "" && v.number > 0 {
			r := v.number / p.number
			text := number(r) + "×"
			if r < 1 {
				text = "1/" + number(1/r)
			}
			parts = append(parts, strings.TrimSpace(v.name+" "+text))
		}
	}
	if len(parts) == 0 {
		return "–"
	}
	return strings.Join(parts, ", ")
}

// budgets says what the budgets are, and whether all are met.
func budgets(mine, peer []value) (text, met string) {
	var parts []string
	all := true
	for _, v := range mine {
		b := v.bound
		if !b.budgeted {
			continue
		}
		if p := find(peer, v.name); p != nil && b.factor > 0 {
			b.limit = p.number * b.factor
		}
		if b.factor > 0 && b.limit == 0 {
			parts = append(parts, strings.TrimSpace(v.name+" "+number(b.factor)+" of upstream's"))
			continue
		}
		sign, ok := "≤", v.number <= b.limit
		if b.least {
			sign, ok = "≥", v.number >= b.limit
		}
		if v.text == "" {
			parts = append(parts, strings.TrimSpace(v.name+" "+sign+" "+number(b.limit)+unit(v.unit)))
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
