// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mortise-dev/mortise/internal/cli/manual"
)

// completeCommand is what cobra's completion scripts call with the words of a command line, the last of which is completed. It prints the
// candidates, a line each, with a tab and a description, and a line with a colon and a [cobra.ShellCompDirective].
const completeCommand = cobra.ShellCompRequestCmd

const completionUsage = `Usage: mortise completion bash|zsh|fish

Prints the completion script of a shell. It completes commands, their flags and, after "mortise kubectl", what kubectl completes. To load it:

  bash: source <(mortise completion bash)
  zsh:  mortise completion zsh > "${fpath[1]}/_mortise"
  fish: mortise completion fish > ~/.config/fish/completions/mortise.fish
`

// runCompletion prints the completion script of a shell.
func runCompletion(_ context.Context, p Program, args []string) int {
	root := &cobra.Command{Use: "mortise"}
	shell := ""
	if len(args) == 1 {
		shell = args[0]
	}
	var err error
	switch shell {
	case "bash":
		err = root.GenBashCompletionV2(p.Out, true)
	case "zsh":
		err = root.GenZshCompletion(p.Out)
	case "fish":
		err = root.GenFishCompletion(p.Out, true)
	case "help", "-h", "--help":
		fmt.Fprint(p.Out, completionUsage)
	default:
		fmt.Fprint(p.Err, completionUsage)
		return 2
	}
	if err != nil {
		return fail(p, fmt.Errorf("write completion: %w", err))
	}
	return 0
}

// complete prints the candidates for the last of the words.
func complete(ctx context.Context, p Program, words []string) int {
	if len(words) > 1 && words[0] == "kubectl" {
		return runKubectl(ctx, p, append([]string{completeCommand}, words[1:]...))
	}
	candidates, directive := candidates(ctx, p, words)
	for _, c := range candidates {
		fmt.Fprintln(p.Out, c)
	}
	fmt.Fprintf(p.Out, ":%d\n", directive)
	return 0
}

// candidates returns the candidates for the last of the words, and what the shell does with them.
func candidates(ctx context.Context, p Program, words []string) (out []string, d cobra.ShellCompDirective) {
	d = cobra.ShellCompDirectiveNoFileComp
	if len(words) == 0 {
		return nil, d
	}
	last := words[len(words)-1]
	add := func(word, about string) {
		if strings.HasPrefix(word, last) {
			out = append(out, word+"\t"+about)
		}
	}
	if len(words) == 1 {
		for _, v := range verbs() {
			add(v.name, v.about)
		}
		add("help", "list the commands")
		return out, d
	}
	for _, v := range verbs() {
		if v.name != words[0] {
			continue
		}
		help := page(ctx, p, v, "")
		for word := range strings.FieldsSeq(v.words) {
			word, own := strings.CutPrefix(word, "!")
			if own && len(words) > 2 && words[1] == word {
				help = page(ctx, p, v, word)
			}
			if len(words) == 2 && !strings.HasPrefix(last, "-") {
				add(word, "")
			}
		}
		if before := words[len(words)-2]; takesValue(help, before) || strings.Contains(last, "=") {
			return nil, cobra.ShellCompDirectiveDefault // a value, which may be a file
		}
		if strings.HasPrefix(last, "-") {
			for _, g := range help.Groups {
				for _, f := range g.Flags {
					add("--"+f.Long, f.Text)
				}
			}
			return out, d
		}
	}
	if len(out) > 0 {
		return out, d
	}
	return nil, cobra.ShellCompDirectiveDefault
}

// takesValue reports whether a word is a flag that takes the next word as its value.
func takesValue(p manual.Page, word string) bool {
	for _, g := range p.Groups {
		for _, f := range g.Flags {
			if word == "--"+f.Long || f.Short != "" && word == "-"+f.Short {
				return f.Takes()
			}
		}
	}
	return false
}
