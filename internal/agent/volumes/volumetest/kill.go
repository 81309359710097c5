// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumetest

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"

	"github.com/mortise-dev/mortise/internal/agent/volumes/disktest"
)

// unixStat is the type of a file's Sys.
type unixStat = syscall.Stat_t

var errKilled = errors.New("the agent was killed")

// kernel records mounts, and counts the steps of an agent that will be killed.
type kernel struct {
	mu      sync.Mutex
	mounted Kernel
	mounts  int // calls that mounted something
	steps   int // remaining ones; used if limited
	limited bool
	dead    bool
}

// diesAfter runs an agent that is killed after the given number of steps: system calls that change the disk, and mounts. Later steps have
// no effect. It returns whether the agent was killed before it was done. It is an error if an agent survives and fails.
func (k *kernel) diesAfter(t *testing.T, steps int, run func() error) bool {
	t.Helper()
	k.mu.Lock()
	k.steps, k.limited, k.dead = steps, true, false
	k.mu.Unlock()
	err := disktest.Supervised(t, k.step, run)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.limited = false
	if err != nil && !k.dead {
		t.Fatal(err)
	}
	return k.dead
}

// step reports whether the agent may make one more step.
func (k *kernel) step() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.limited {
		return true
	}
	if k.steps == 0 {
		k.dead = true
		return false
	}
	k.steps--
	return true
}

// change makes a step that changes mounts.
func (k *kernel) change(how func(Kernel) error) error {
	if !k.step() {
		return errKilled
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return how(k.mounted)
}

func (k *kernel) mount(how func(Kernel) error) error {
	return k.change(func(m Kernel) error { k.mounts++; return how(m) })
}

func (k *kernel) Tmpfs(dir string, size int64) error {
	return k.mount(func(m Kernel) error { return m.Tmpfs(dir, size) })
}

func (k *kernel) Huge(dir string, page int64) error {
	return k.mount(func(m Kernel) error { return m.Huge(dir, page) })
}

func (k *kernel) Mount(ctx context.Context, source, dir, kind string, options []string) error {
	return k.mount(func(m Kernel) error { return m.Mount(ctx, source, dir, kind, options) })
}

func (k *kernel) Bind(source, target string) error {
	return k.mount(func(m Kernel) error { return m.Bind(source, target) })
}

func (k *kernel) Unmount(dir string) error {
	return k.change(func(m Kernel) error { return m.Unmount(dir) })
}

func (k *kernel) IsMountPoint(dir string) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mounted.IsMountPoint(dir)
}

func (k *kernel) Below(dir string) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mounted.Below(dir)
}
