// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package doctor diagnoses a node from outside: the prerequisites of pods, and leftovers of deleted pods.
//
// [Examine] runs the table of checks, each of which returns findings:
//
//	runtime.go      the container runtime responds; its conditions; its cgroup driver
//	dns.go          the cluster DNS of a running node
//	network.go      the CNI configuration and its plug-ins, through CNI's own verbs
//	kernel.go       cgroups, namespaces, file systems, settings, programs
//	attachments.go  leases and results of CNI without a sandbox
//	rules.go        rules of CNI plug-ins without a sandbox
//	left.go         network namespaces, mounts and cgroups of pods that the runtime does not have
//
// Apparent leftovers may belong to a pod that is being created: its network exists before the runtime lists its sandbox. So the doctor
// ignores everything that is younger than Options.Older, or that a process uses.
//
// An examination changes nothing, except with Options.Fix: then it repairs each finding that has a repair, in the order of the table, in
// which the node also tears down a pod.
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

// State is the severity of a finding.
type State string

// The states of findings. Only Wrong needs attention.
const (
	OK    State = "ok"
	Note  State = "note"  // works, but not as well as it could
	Wrong State = "wrong" // breaks pods, or leaks something
	Fixed State = "fixed" // was wrong
)

// Finding is the result of one check of one thing.
type Finding struct {
	Check string // a row of the table of checks
	State State
	What  string
	Do    string // what the operator should do; empty: nothing

	fix func(ctx context.Context) error // nil: the doctor cannot repair it
}

// Options select what to examine. DataDir, RootDir and Socket are required.
type Options struct {
	DataDir string // of Mortise, which locks it while it runs
	RootDir string // the parent directory of pods' volumes
	Socket  string // CRI socket, with or without unix://
	// CgroupRoot is the parent of the cgroups of pods, and CgroupDriver (cgroupfs, systemd) the driver that the node uses if the runtime does
	// not report one: cgroupRoot and cgroupDriver of the node's configuration.
	CgroupRoot, CgroupDriver string
	// Older is the minimum age of leftovers: five minutes if zero, any if negative.
	Older time.Duration
	Fix   bool
	Clock clock.PassiveClock
}

// youngest is the default of Options.Older: creating a sandbox may take four minutes.
const youngest = 5 * time.Minute

// examination is one run of the checks.
type examination struct {
	Options
	runtime *runtime // nil: it does not respond
	network *network // nil: there is none
	inUse   bool     // a process has the data directory open
}

// checks is the table, in the order in which findings are shown and repaired.
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

// Examine runs all checks and, with Fix, repairs what it can.
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

// mend repairs what is wrong, and explains why the rest cannot be repaired.
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

// old reports whether something with this modification time is old enough to be a leftover.
func (e *examination) old(t time.Time) bool { return e.Clock.Since(t) > e.Older }

// oldFile reports the same for a file; a missing file is not old.
func (e *examination) oldFile(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && e.old(info.ModTime())
}

// unread returns the finding for something that could not be read.
func unread(what string, err error) Finding {
	return Finding{State: Note, What: fmt.Sprintf("could not check %s: %v", what, err)}
}

// errNoRuntime keeps checks from treating everything as a leftover.
var errNoRuntime = errors.New("the runtime does not list its pods")

// locked reports whether a process holds the lock of a data directory.
func locked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// gone turns the error of a removal into nil if the file did not exist.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
