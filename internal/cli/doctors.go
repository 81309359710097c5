// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/internal/cli/clusterdoctor"
)

// doctors is one run of `mortise doctor`.
type doctors struct {
	Program
	dataDir, kubeconfig string
	fix                 bool
}

// rounds are the examinations of `mortise doctor`, in the order of their findings. The tables of checks are those of package clusterdoctor
// for the cluster and of package doctor for the node.
func rounds() []func(ctx context.Context, d *doctors) ([]Symptom, error) {
	return []func(ctx context.Context, d *doctors) ([]Symptom, error){examineDataDir, examineCluster, examineNode}
}

// runDoctors examines this machine and the cluster.
func runDoctors(ctx context.Context, p Program, args []string) int {
	f := pflag.NewFlagSet("doctor", pflag.ContinueOnError)
	f.SetOutput(p.Err)
	f.SortFlags = false
	d := &doctors{Program: p}
	f.StringVar(&d.dataDir, "data-dir", defaultDataDir(), "Data directory of mortise up, or of the node.")
	f.StringVar(&d.kubeconfig, "kubeconfig", "",
		"File of an administrator's kubeconfig. Default: $KUBECONFIG, then that of the data directory.")
	f.BoolVar(&d.fix, "fix", false, "Remove leftovers of deleted pods, and repair settings of this machine.")
	output := f.StringP("output", "o", "", "Output format: json.")
	f.Usage = func() {
		fmt.Fprintf(f.Output(), `Usage: mortise doctor [flags]

Examines the data directory, the cluster and, as root, the node of this machine: what is missing or wrong, and the command that mends
it. Without --fix it changes nothing. "mortise node doctor" has more flags for the node. Exit codes: 0 if nothing is wrong (any
more), 1 if something is, 2 if the command line is invalid.

%s`, f.FlagUsages())
	}
	if code, done := parse(p, f, "doctor", args); done {
		return code
	}
	if f.NArg() > 0 || *output != "" && *output != "json" {
		f.Usage()
		return 2
	}
	var err error
	if d.dataDir, err = filepath.Abs(d.dataDir); err != nil {
		return fail(p, fmt.Errorf("find data directory: %w", err))
	}
	var found []Symptom
	for _, examine := range rounds() {
		more, err := examine(ctx, d)
		if err != nil {
			return fail(p, err)
		}
		found = append(found, more...)
	}
	return reportSymptoms(p, found, *output)
}

// examineDataDir examines the data directory.
func examineDataDir(_ context.Context, d *doctors) ([]Symptom, error) {
	s := Symptom{Check: "data directory", State: "ok", What: d.dataDir}
	info, err := os.Stat(d.dataDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.State, s.What, s.Do = "note", d.dataDir+" does not exist: no cluster was started here", "mortise up"
	case errors.Is(err, fs.ErrPermission):
		s.State, s.What, s.Do = "wrong", err.Error(), "run this command as the user who runs mortise up, or as root"
	case err != nil:
		return nil, fmt.Errorf("examine data directory: %w", err)
	case !info.IsDir():
		s.State, s.What, s.Do = "wrong", d.dataDir+" is not a directory", "mortise up --data-dir DIR with another one"
	default:
		free, total := space(d.dataDir)
		switch {
		case total > 0 && free < total/20:
			s.State, s.What = "wrong", fmt.Sprintf("%s is on a file system of which %d MB of %d MB are free", d.dataDir, free>>20, total>>20)
			s.Do = "df -h " + d.dataDir + ", and remove what is not needed: writes fail when it is full"
		case total > 0:
			s.What += fmt.Sprintf(", %d MB free", free>>20)
		}
	}
	return []Symptom{s}, nil
}

// examineCluster examines the cluster through its API.
func examineCluster(ctx context.Context, d *doctors) ([]Symptom, error) {
	config, err := clientConfig(d.kubeconfig, d.dataDir)
	if err != nil {
		return []Symptom{{Check: "API server", State: "wrong", What: err.Error(),
			Do: "mortise up, or systemctl start mortise; --kubeconfig FILE"}}, nil
	}
	found, err := clusterdoctor.Examine(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("examine cluster: %w", err)
	}
	out := make([]Symptom, len(found))
	for i, f := range found {
		out[i] = Symptom{Check: f.Check, State: string(f.State), What: f.What, Do: f.Do}
	}
	return out, nil
}

// examineNode examines the node of this machine, if it can run containers.
func examineNode(ctx context.Context, d *doctors) ([]Symptom, error) {
	if d.Examine == nil || os.Geteuid() != 0 {
		return []Symptom{{Check: "node", State: "note", What: "not examined: this user runs simulated nodes only", Do: "run this command as root"}}, nil
	}
	o := DoctorOptions{DataDir: d.dataDir, Fix: d.fix}
	o.Kubelet.RootDir = o.Kubelet.Root(d.dataDir)
	if _, err := os.Stat(o.Kubelet.RootDir); errors.Is(err, fs.ErrNotExist) {
		return []Symptom{{Check: "node", State: "note", What: "not examined: no node with containers has run with this data directory",
			Do: "mortise node doctor examines whether this machine can run one"}}, nil
	}
	found, err := d.Examine(ctx, o)
	if err != nil {
		return []Symptom{{Check: "node", State: "wrong", What: err.Error(), Do: "mortise node doctor --help lists its settings"}}, nil
	}
	return found, nil
}
