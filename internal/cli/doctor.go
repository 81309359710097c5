// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/embed/options"
)

// DoctorOptions are the flags of `mortise node doctor`.
type DoctorOptions struct {
	DataDir, CRISocket string
	Kubelet            options.Node
	Older              time.Duration
	Fix                bool
}

// Symptom is the result of one check on a node. State is ok, note, wrong or fixed; only wrong needs attention.
type Symptom struct {
	Check string `json:"check"`
	State string `json:"state"`
	What  string `json:"what"`
	Do    string `json:"do,omitempty"`
}

// Examine examines the node of this machine, and repairs what it can if the options request that.
type Examine func(ctx context.Context, o DoctorOptions) ([]Symptom, error)

// runDoctor examines the node of this machine.
func runDoctor(ctx context.Context, p Program, args []string) int {
	f := pflag.NewFlagSet("node doctor", pflag.ContinueOnError)
	f.SetOutput(p.Err)
	f.SortFlags = false
	var o DoctorOptions
	f.StringVar(&o.DataDir, "data-dir", defaultDataDir(), "Data directory of the node, or of mortise up.")
	f.StringVar(&o.CRISocket, "cri-socket", "", "Socket of the container runtime. Default: the one that the node uses.")
	o.Kubelet.AddFlags(f)
	f.DurationVar(&o.Older, "older", 5*time.Minute, "Minimum age of leftovers. Younger ones may belong to a pod that is being created.")
	f.BoolVar(&o.Fix, "fix", false, "Remove leftovers of deleted pods, and repair settings.")
	output := f.StringP("output", "o", "", "Output format: json.")
	f.Usage = func() {
		fmt.Fprintf(f.Output(), `Usage: mortise node doctor [flags]

Diagnoses the node of this machine: container runtime, pod network and its plug-ins, cgroups, kernel, settings, programs, and leftovers
of deleted pods. Without --fix it changes nothing. Exit codes: 0 if nothing is wrong (any more), 1 if something is, 2 if the
command line is invalid.

%s`, f.FlagUsages())
	}
	if code, done := parse(p, f, "node doctor", args); done {
		return code
	}
	if f.NArg() > 0 || *output != "" && *output != "json" || o.Older < 0 {
		f.Usage()
		return 2
	}
	if o.Older == 0 {
		o.Older = -1 // any age
	}
	var err error
	if o.DataDir, err = filepath.Abs(o.DataDir); err != nil {
		return fail(p, fmt.Errorf("find data directory: %w", err))
	}
	if o.Kubelet.RootDir, err = filepath.Abs(o.Kubelet.Root(o.DataDir)); err != nil {
		return fail(p, fmt.Errorf("find directory of volumes: %w", err))
	}
	if p.Examine == nil {
		return fail(p, errNeedsLinux)
	}
	found, err := p.Examine(ctx, o)
	if err != nil {
		return fail(p, err)
	}
	return reportSymptoms(p, found, *output)
}

// reportSymptoms prints symptoms as a table or as JSON, and returns the exit code: 1 if something is wrong.
func reportSymptoms(p Program, found []Symptom, output string) int {
	write := printSymptoms
	if output == "json" {
		write = func(w io.Writer, found []Symptom) error { return printJSON(w, found) }
	}
	if err := write(p.Out, found); err != nil {
		return fail(p, fmt.Errorf("write findings: %w", err))
	}
	for _, s := range found {
		if s.State == "wrong" {
			return 1
		}
	}
	return 0
}

func printSymptoms(w io.Writer, found []Symptom) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CHECK\tSTATE\tFOUND\tDO")
	for _, s := range found {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", s.Check, s.State, line(s.What, true), s.Do)
	}
	return t.Flush()
}
