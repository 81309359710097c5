// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package doctor diagnoses a node from outside: the prerequisites of pods, and leftovers of deleted pods.
//
// [Examine] runs the table of checks, each of which returns findings:
//
//	runtime.go      the container runtime answers, its conditions, the driver of its cgroups
//	dns.go          the cluster DNS of a node that runs
//	network.go      the CNI configuration and its plug-ins, which are asked by CNI's own verbs
//	kernel.go       cgroups, namespaces, file systems, settings, programs
//	attachments.go  leases and results of CNI whose sandbox is no more
//	rules.go        rules of CNI plug-ins whose sandbox is no more
//	left.go         network namespaces, mounts and cgroups of pods that the runtime does not know
//
// Apparent leftovers may belong to a pod that is being created: its network exists before the runtime lists its sandbox. So
// the doctor ignores everything that is younger than Options.Older, or that a process uses.
//
// An examination changes nothing, but with Options.Fix: then each finding that knows how to be mended is, in the order
// of the table, which is that of taking a pod apart.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/cri"
)

// State is what a finding means.
type State string

// The states of findings. Only Wrong is a reason to worry.
const (
	OK    State = "ok"
	Note  State = "note"  // works, but not as well as it might
	Wrong State = "wrong" // pods fail by it, or something leaks
	Fixed State = "fixed" // was wrong
)

// Finding is one thing that was looked at.
type Finding struct {
	Check string // a row of the table of checks
	State State
	What  string
	Do    string // empty: nothing

	fix func(ctx context.Context) error // nil: it cannot be mended from here
}

// Options say what is examined. DataDir, RootDir and Socket are required.
type Options struct {
	DataDir string // of Mortise, which holds it while it runs
	RootDir string // the node keeps the volumes of pods below it
	Socket  string // CRI socket, with or without unix://
	// CgroupRoot is above the cgroups of pods, and CgroupDriver (cgroupfs, systemd) what the node uses where the runtime does
	// not say: cgroupRoot and cgroupDriver of the node's configuration.
	CgroupRoot, CgroupDriver string
	// Older is the age from which on things are left over: five minutes if zero, any if negative.
	Older time.Duration
	Fix   bool
	Clock clock.PassiveClock
}

// youngest is the default of Options.Older: a sandbox may take four minutes to be made.
const youngest = 5 * time.Minute

// examination is one examination under way.
type examination struct {
	Options
	runtime *runtime // nil: it does not answer
	network *network // nil: there is none
	inUse   bool     // a process has the data directory open
}

// checks is the table, in the order in which findings are shown and mended.
func checks() []struct {
	name string
	look func(ctx context.Context, e *examination) []Finding
} {
	return []struct {
		name string
		look func(ctx context.Context, e *examination) []Finding
	}{
		{"runtime", checkRuntime},
		{"network", checkNetwork},
		{"cluster DNS", checkDNS},
		{"cgroups", checkCgroups},
		{"kernel", checkKernel},
		{"settings", checkSettings},
		{"programs", checkPrograms},
		{"attachments", checkAttachments},
		{"rules", checkRules},
		{"network namespaces", checkNamespaces},
		{"mounts", checkMounts},
		{"pods' cgroups", checkPodCgroups},
	}
}

// Examine looks at everything and, with Fix, mends what it can.
func Examine(ctx context.Context, o Options) []Finding {
	if o.Older == 0 {
		o.Older = youngest
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	e := &examination{Options: o, inUse: locked(filepath.Join(o.DataDir, "lock"))}
	ctx = cri.Quiet(ctx)
	var out []Finding
	for _, c := range checks() {
		for _, f := range c.look(ctx, e) {
			f.Check = c.name
			out = append(out, f)
		}
	}
	if o.Fix {
		mend(ctx, out)
	}
	return out
}

// mend mends what is wrong and can be mended, and says of the rest why not.
func mend(ctx context.Context, found []Finding) {
	for i := range found {
		f := &found[i]
		if f.State != Wrong || f.fix == nil {
			continue
		}
		if err := f.fix(ctx); err != nil {
			f.What += "; could not fix it: " + err.Error()
			continue
		}
		f.State, f.Do = Fixed, ""
	}
}

// old says whether something with that time of change is old enough to be left over.
func (e *examination) old(t time.Time) bool { return e.Clock.Since(t) > e.Older }

// oldFile says the same of a file; one that is gone is not.
func (e *examination) oldFile(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && e.old(info.ModTime())
}

// unread is the finding of what could not be looked at.
func unread(what string, err error) Finding {
	return Finding{State: Note, What: fmt.Sprintf("could not check %s: %v", what, err)}
}

// errNoRuntime keeps checks from taking everything for left over.
var errNoRuntime = errors.New("the runtime does not list its pods")

// locked says whether a process holds the lock of a data directory.
func locked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// gone turns the error of a removal into nil where there was nothing to remove.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
