// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/config"
)

// addFlags are the flags that cmd/mortise has.
func addFlags(f *pflag.FlagSet, o *options.APIServer) { embed.AddFlags(f, o) }

var engines = []Engine{{"local", "keeps objects on disk"}, {"memory", "loses them when the process ends"}}

// flagSet are the flags of a command.
func flagSet(t *testing.T, command string) *pflag.FlagSet {
	t.Helper()
	switch command {
	case "up":
		return newUpFlags("up", Program{AddFlags: addFlags, Engines: engines}, &UpOptions{}).set
	case "node":
		f, _, _ := newNodeFlags(Program{}, &NodeOptions{})
		return f
	}
	t.Fatalf("no command %s", command)
	return nil
}

// banned are phrases that no help text has.
var banned = regexp.MustCompile(`(?i)\b(who has|who have|that which|is told|are told|says so|say so|those in|whom|unless told|of its own accord|in their stead|how many|how long|how often|how large)\b`)

func TestFlagTexts(t *testing.T) {
	for _, command := range []string{"up", "node"} {
		flagSet(t, command).VisitAll(func(f *pflag.Flag) {
			if f.Deprecated != "" {
				return
			}
			switch first := []rune(f.Usage); {
			case len(first) == 0:
				t.Errorf("mortise %s --%s has no text", command, f.Name)
				return
			case len(first) > 160:
				t.Errorf("mortise %s --%s: the text has %d characters, 160 is the most: move the rest to docs", command, f.Name, len(first))
			case unicode.IsLower(first[0]) && !strings.HasPrefix(f.Usage, "sha256:"):
				t.Errorf("mortise %s --%s: %q: begin with a capital letter", command, f.Name, f.Usage)
			case first[len(first)-1] != '.':
				t.Errorf("mortise %s --%s: %q: end with a full stop", command, f.Name, f.Usage)
			}
			if phrase := banned.FindString(f.Usage); phrase != "" {
				t.Errorf("mortise %s --%s: %q: %q: write an imperative or a noun phrase, units, and the default", command, f.Name, f.Usage, phrase)
			}
		})
	}
}

// TestHelp finds each flag once in --help=all, under a heading, and the common ones in --help.
func TestHelp(t *testing.T) {
	for command, common := range map[string][]string{
		"up":   {"config", "data-dir", "listen", "node", "pod-cidr", "controllers", "runtime-config", "help"},
		"node": {"join", "token", "data-dir", "address", "help"},
	} {
		groups, brief := upFlagGroups, upCommon()
		if command == "node" {
			groups, brief = nodeFlags, nodeFlags(nil, false)
		}
		f := flagSet(t, command)
		f.VisitAll(func(flag *pflag.Flag) {
			var under []string
			for _, g := range groups(f, true) {
				if slices.Contains(g.flags, flag.Name) {
					under = append(under, g.heading)
				}
			}
			if len(under) != 1 && flag.Deprecated == "" {
				t.Errorf("mortise %s --help=all has --%s under %q: add it to the table of internal/config", command, flag.Name, under)
			}
		})
		var listed []string
		for _, g := range brief {
			for _, name := range g.flags {
				if f.Lookup(name) == nil {
					t.Errorf("mortise %s --help lists --%s, which is no flag", command, name)
				}
			}
			listed = append(listed, g.flags...)
		}
		if len(listed) > 15 {
			t.Errorf("mortise %s --help lists %d flags: want those alone that people type", command, len(listed))
		}
		for _, name := range common {
			if !slices.Contains(listed, name) {
				t.Errorf("mortise %s --help lacks --%s", command, name)
			}
		}
		for _, arg := range []string{"--help", "-h", "--help=all"} {
			var out bytes.Buffer
			if code := Main(context.Background(), []string{command, arg},
				Program{Out: &out, Err: &out, AddFlags: addFlags, Engines: engines}); code != 0 {
				t.Errorf("mortise %s %s: exit code %d", command, arg, code)
			}
			text := out.String()
			if all := strings.Contains(text, "--masquerade-all"); all != (arg == "--help=all") || !strings.Contains(text, "\nNode:\n") {
				t.Errorf("mortise %s %s prints\n%s", command, arg, text)
			}
			for line := range strings.Lines(text) {
				if len(line) > helpWidth+40 {
					t.Errorf("mortise %s %s prints a line of %d columns: %s", command, arg, len(line), line)
				}
			}
		}
	}
}

// TestEachFlagHasAField walks the flags of `up`: each sets what a field of the configuration sets.
func TestEachFlagHasAField(t *testing.T) {
	f := flagSet(t, "up")
	c, err := config.Effective(f)
	if err != nil {
		t.Fatal(err)
	}
	if c.DataDir == "" || c.Store.Engine != "local" || *c.Controllers.NodeLifecycle.NodeEvictionRate != 0.1 {
		t.Errorf("defaults are %+v", c)
	}
	fields := map[string]string{}
	for _, s := range config.Settings(f) {
		if f.Lookup(s.Flag) == nil {
			t.Errorf("the table has --%s, which is no flag", s.Flag)
		}
		if fields[s.Flag] != "" {
			t.Errorf("the table has --%s twice", s.Flag)
		}
		fields[s.Flag] = s.Field
	}
	aliases := new(aliasFlags).names() // of flags with a field
	f.VisitAll(func(flag *pflag.Flag) {
		if slices.Contains(aliases, flag.Name) {
			return
		}
		if fields[flag.Name] == "" && flag.Deprecated == "" && !slices.Contains([]string{"config", "help", "join", "token"}, flag.Name) {
			t.Errorf("--%s has no field: add it to ServerConfiguration and to the table of internal/config", flag.Name)
		}
	})
}
