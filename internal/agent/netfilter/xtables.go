// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/mortise-dev/mortise/internal/agent/program"
)

// XTables writes the rules of one IP family with the iptables programs: the legacy ones, or those that write nftables. Both take the same
// text.
type XTables struct{ restore, save string }

// OpenXTables finds the programs of a family.
func OpenXTables(v6 bool) (*XTables, error) {
	name := "iptables"
	if v6 {
		name = "ip6tables"
	}
	restore, err := exec.LookPath(name + "-restore")
	if err != nil {
		return nil, fmt.Errorf("find program: %w", err)
	}
	save, err := exec.LookPath(name + "-save")
	if err != nil {
		return nil, fmt.Errorf("find program: %w", err)
	}
	return &XTables{restore: restore, save: save}, nil
}

// Check makes the program check rules of the kinds that we write, without applying them. It fails for rules that need a later program than
// 1.6.2.
func (x *XTables) Check(ctx context.Context) error {
	return x.run(ctx, "*nat\n:MORTISE-CHECK - [0:0]\n-A MORTISE-CHECK -m statistic --mode random --probability 0.5 -j MASQUERADE --random-fully\nCOMMIT\n", "--test")
}

// Restore writes the rules of a text for iptables-restore, and leaves all others. Each of its tables is one transaction.
func (x *XTables) Restore(ctx context.Context, text string) error { return x.run(ctx, text) }

// The time limits of the programs for the largest rule sets: they wait 10 seconds for each other, and rewrite whole tables.
const (
	rulesTime  = 5 * time.Minute
	rulesBytes = 256 << 20
)

func (x *XTables) run(ctx context.Context, text string, options ...string) error {
	c := program.Command{Name: x.restore, Args: append([]string{"--noflush", "-w", "10"}, options...), Input: text, Time: rulesTime}
	if _, err := c.Run(ctx); err != nil {
		return fmt.Errorf("run %s: %w", x.restore, err)
	}
	return nil
}

// Save lists all rules of all tables.
func (x *XTables) Save(ctx context.Context) (string, error) { return SavedBy(ctx, x.save) }

// SavedBy lists all rules of all tables with a program such as iptables-save.
func SavedBy(ctx context.Context, save string) (string, error) {
	out, err := program.Command{Name: save, Time: rulesTime, Output: rulesBytes}.Run(ctx)
	if err != nil {
		return "", fmt.Errorf("list rules by %s: %w", save, err)
	}
	return string(out), nil
}

// Found is the part of a table that belongs to one owner.
type Found struct {
	Chains []string // their names
	Jumps  []string // rules in chains of others that jump to them: "PREROUTING ..."
}

// Find returns the chains for which ours is true, and the jumps to them, for each table of a list of all rules.
func Find(saved string, ours func(chain string) bool) map[string]Found {
	out := map[string]Found{}
	table := ""
	for line := range strings.Lines(saved) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		switch line[0] {
		case '*':
			table = line[1:]
		case ':':
			if name, _, _ := strings.Cut(line[1:], " "); ours(name) {
				f := out[table]
				f.Chains = append(f.Chains, name)
				out[table] = f
			}
		case '-':
			if rule, is := strings.CutPrefix(line, "-A "); is && leadsTo(rule, ours) {
				f := out[table]
				f.Jumps = append(f.Jumps, rule)
				out[table] = f
			}
		}
	}
	return out
}

// leadsTo reports whether a rule of others ends with a jump to one of ours.
func leadsTo(rule string, ours func(string) bool) bool {
	if chain, _, _ := strings.Cut(rule, " "); ours(chain) {
		return false
	}
	last := strings.LastIndexByte(rule, ' ')
	return last > 0 && ours(rule[last+1:]) && (strings.HasSuffix(rule[:last], " -j") || strings.HasSuffix(rule[:last], " -g"))
}

// Hook returns lines for Restore that make chains of others contain some jumps, each once. It inserts a missing jump at the beginning of
// its chain, and removes unwanted ones. A jump has the form of iptables-save: "PREROUTING ...".
func (f Found) Hook(jumps ...string) (lines []string) {
	for i, j := range f.Jumps {
		if !slices.Contains(jumps, j) || slices.Contains(f.Jumps[:i], j) {
			lines = append(lines, "-D "+j)
		}
	}
	for _, j := range jumps {
		if !slices.Contains(f.Jumps, j) {
			lines = append(lines, "-I "+j)
		}
	}
	return lines
}

// Remove deletes all chains for which ours is true, and the jumps to them.
func (x *XTables) Remove(ctx context.Context, ours func(chain string) bool) error {
	saved, err := x.Save(ctx)
	if err != nil {
		return err
	}
	var text strings.Builder
	all := Find(saved, ours)
	for _, table := range []string{"filter", "mangle", "nat"} {
		f, is := all[table]
		if !is {
			continue
		}
		text.WriteString("*" + table + "\n")
		for _, c := range f.Chains {
			text.WriteString(":" + c + " - [0:0]\n")
		}
		for _, line := range f.Hook() {
			text.WriteString(line + "\n")
		}
		for _, c := range f.Chains {
			text.WriteString("-X " + c + "\n")
		}
		text.WriteString("COMMIT\n")
	}
	if text.Len() == 0 {
		return nil
	}
	return x.Restore(ctx, text.String())
}

// RemoveChains does so in both families. Without the programs there is nothing to remove.
func RemoveChains(ctx context.Context, ours func(chain string) bool) error {
	var errs []error
	for _, v6 := range []bool{false, true} {
		x, err := OpenXTables(v6)
		if errors.Is(err, exec.ErrNotFound) {
			continue
		}
		if err == nil {
			err = x.Remove(ctx, ours)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
