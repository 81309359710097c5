// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/mortise-dev/mortise/internal/agent/netfilter"
	"github.com/mortise-dev/mortise/internal/agent/program"
)

// rule is a line of iptables-save that a CNI plug-in wrote for a container.
type rule struct {
	table     string
	chain     string   // that contains the rule
	words     []string // after the chain, as arguments of iptables
	target    string   // the chain of the container, if the rule jumps to it
	container string
}

// ownedBy matches the container in a CNI plug-in's comment.
var ownedBy = regexp.MustCompile(`name: "[^"]*" id: "([^"]+)"`)

// rulesOf parses the output of iptables-save and returns the rules of CNI plug-ins.
func rulesOf(save string) []rule {
	var out []rule
	table := ""
	for line := range strings.Lines(save) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = name
			continue
		}
		words := split(line)
		if len(words) < 3 || words[0] != "-A" {
			continue
		}
		r := rule{table: table, chain: words[1], words: words[2:]}
		for i, word := range words[:len(words)-1] {
			if found := ownedBy.FindStringSubmatch(words[i+1]); word == "--comment" && found != nil {
				r.container = found[1]
			}
			if word == "-j" && strings.HasPrefix(words[i+1], "CNI-") {
				r.target = words[i+1]
			}
		}
		if r.container != "" {
			out = append(out, r)
		}
	}
	return out
}

// split splits a line of iptables-save into words: quoted words may contain spaces, and quotes after a backslash.
func split(line string) []string {
	var out []string
	var word strings.Builder
	quoted, escaped, any := false, false, false
	for _, c := range line {
		switch {
		case escaped:
			word.WriteRune(c)
			escaped = false
		case c == '\\' && quoted:
			escaped = true
		case c == '"':
			quoted, any = !quoted, true
		case c == ' ' && !quoted:
			if any || word.Len() > 0 {
				out = append(out, word.String())
			}
			word.Reset()
			any = false
		default:
			word.WriteRune(c)
		}
	}
	if any || word.Len() > 0 {
		out = append(out, word.String())
	}
	return out
}

// ruleSets are the commands that list and remove rules.
func ruleSets() [][2]string {
	return [][2]string{{"iptables-save", "iptables"}, {"ip6tables-save", "ip6tables"}}
}

func checkRules(ctx context.Context, e *examination) []Finding {
	if e.runtime == nil || e.network == nil {
		return []Finding{unread("rules", errNoRuntime)}
	}
	var out []Finding
	held, err := e.network.attachments(resultsDir)
	if err != nil {
		return []Finding{unread("rules", err)}
	}
	young := map[string]bool{} // sandboxes that may be in creation
	for _, a := range held {
		young[a.container] = !e.old(a.changed) || peopled(a.netns)
	}
	for _, set := range ruleSets() {
		save := find(set[0])
		if save == "" {
			continue // the check of programs reports it
		}
		text, err := netfilter.SavedBy(ctx, save)
		if err != nil {
			out = append(out, unread("rules of "+set[1], err))
			continue
		}
		left := map[string][]rule{}
		for _, r := range rulesOf(text) {
			if !e.runtime.sandboxes[r.container] && !young[r.container] {
				left[r.container] = append(left[r.container], r)
			}
		}
		for _, container := range sortedKeys(left) {
			out = append(out, Finding{
				State: Wrong, What: fmt.Sprintf("%d rules of %s for sandbox %s, which no longer exists", len(left[container]), set[1],
					container), Do: "--fix removes them",
				fix: func(ctx context.Context) error { return removeRules(ctx, find(set[1]), save, container) },
			})
		}
	}
	if len(out) == 0 {
		out = append(out, Finding{State: OK, What: "all rules of CNI plug-ins belong to a sandbox"})
	}
	return out
}

// removeRules removes those rules that still exist: the plug-ins may have removed them meanwhile.
func removeRules(ctx context.Context, iptables, save, container string) error {
	text, err := netfilter.SavedBy(ctx, save)
	if err != nil {
		return err
	}
	run := func(args ...string) error {
		if _, err := (program.Command{Name: iptables, Args: append([]string{"--wait", "10"}, args...)}).Run(ctx); err != nil {
			return fmt.Errorf("remove rule: %w", err)
		}
		return nil
	}
	chains := map[[2]string]bool{}
	var errs []error
	for _, r := range rulesOf(text) {
		if r.container != container {
			continue
		}
		errs = append(errs, run(slices.Concat([]string{"-t", r.table, "-D", r.chain}, r.words)...))
		if r.target != "" {
			chains[[2]string{r.table, r.target}] = true
		}
	}
	for chain := range chains {
		errs = append(errs, run("-t", chain[0], "-F", chain[1]), run("-t", chain[0], "-X", chain[1]))
	}
	return errors.Join(errs...)
}
