// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/internal/config"
)

// helpWidth is the number of columns that help is wrapped to.
const helpWidth = 120

// helpFlag is --help: empty unless it is given, otherwise basic or all.
type helpFlag string

// Set implements pflag.Value: --help, --help=basic and --help=all.
func (h *helpFlag) Set(s string) error {
	if s != "basic" && s != "all" {
		return fmt.Errorf("want basic or all")
	}
	*h = helpFlag(s)
	return nil
}

func (h *helpFlag) String() string { return string(*h) }

// Type returns the type of the flag's value for the help.
func (h *helpFlag) Type() string { return "string" }

func (h *helpFlag) add(f *pflag.FlagSet) {
	f.VarP(h, "help", "h", "Print the common flags; --help=all prints all flags.")
	f.Lookup("help").NoOptDefVal = "basic"
}

// flagGroup is a group of flags under one heading.
type flagGroup struct {
	heading string
	flags   []string
}

// upCommon are the flags of `up` that people type.
func upCommon() []flagGroup {
	return []flagGroup{
		{"Server", []string{"config", "data-dir", "listen", "kubeconfig", "store", "log-level", "help"}},
		{"Node", []string{"node", "nodes"}},
		{"Networking", []string{"pod-cidr", "service-cidr"}},
		{"API", []string{"runtime-config", "feature-gates", "controllers"}},
	}
}

const upUsage = `Usage: mortise up [flags]

Starts a cluster in the foreground. SIGTERM or Ctrl-C stops it; pods keep running.
`

const nodeUsage = `Usage: mortise node --join URL --token TOKEN [flags]

Joins this machine to a cluster as a node and runs the node in the foreground. SIGTERM or Ctrl-C stops it; pods keep running.
After the first time, the data directory is enough: --join and --token are not needed. "mortise node doctor" diagnoses the node,
"mortise node plugin-bench" tests a plug-in of nodes.
`

func (u *upFlags) printHelp(p Program) int {
	if u.set.Name() != "up" {
		fmt.Fprint(p.Out, configUsage)
		return 0
	}
	return u.help.print(p, u.set, upUsage, upFlagGroups)
}

// upFlagGroups returns the groups of the flags of `up`: the common ones, or all.
func upFlagGroups(f *pflag.FlagSet, all bool) []flagGroup {
	if !all {
		return upCommon()
	}
	groups := bySetting(f, flagGroup{"General", []string{"config", "join", "token", "help"}})
	return append(groups, flagGroup{"Names in kube-apiserver and kube-controller-manager", (&aliasFlags{}).names()})
}

// nodeFlags returns the groups of the flags of `node`: the common ones, or all.
func nodeFlags(f *pflag.FlagSet, all bool) []flagGroup {
	joining := flagGroup{"Joining", []string{"join", "token", "ca-cert-hash", "ca-file", "name", "address"}}
	if !all {
		return []flagGroup{joining, {"Node", []string{"data-dir", "node", "cri-socket", "kubelet-config", "pod-cidr", "log-level", "help"}}}
	}
	return bySetting(f, joining, flagGroup{"General", []string{"help"}})
}

// bySetting groups all flags that are not in first under the headings of their settings.
func bySetting(f *pflag.FlagSet, first ...flagGroup) []flagGroup {
	groups := first
	listed := map[string]bool{}
	for _, g := range first {
		for _, name := range g.flags {
			listed[name] = true
		}
	}
	for _, heading := range config.Headings() {
		g := flagGroup{heading: heading}
		f.VisitAll(func(flag *pflag.Flag) {
			if !listed[flag.Name] && config.Heading(flag) == heading {
				g.flags = append(g.flags, flag.Name)
			}
		})
		if len(g.flags) > 0 {
			groups = append(groups, g)
		}
	}
	return groups
}

// print prints usage and the groups of flags, and returns the exit code.
func (h helpFlag) print(p Program, f *pflag.FlagSet, usage string, groups func(f *pflag.FlagSet, all bool) []flagGroup) int {
	fmt.Fprint(p.Out, usage)
	for _, g := range groups(f, h == "all") {
		part := pflag.NewFlagSet(g.heading, pflag.ContinueOnError)
		part.SortFlags = false
		f.VisitAll(func(flag *pflag.Flag) {
			if slices.Contains(g.flags, flag.Name) {
				part.AddFlag(flag)
			}
		})
		fmt.Fprintf(p.Out, "\n%s:\n%s", g.heading, part.FlagUsagesWrapped(helpWidth))
	}
	if h != "all" {
		fmt.Fprintf(p.Out, "\n\"mortise %s --help=all\" prints all flags.\n", f.Name())
	}
	return 0
}
