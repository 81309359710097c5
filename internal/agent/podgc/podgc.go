// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podgc removes what deleted pods have left on the node: their directories, their logs, and containers of ended pods.
package podgc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// Pods are the pods of the node.
type Pods interface {
	// Known returns the pods that have a worker, and whether these are all: only when all sources of pods have been read.
	Known() (pods map[types.UID]bool, all bool)
	// Over returns for each pod with a worker whether it has ended for good.
	Over() map[types.UID]bool
	// TearDown frees the node's resources of the pod.
	TearDown(ctx context.Context, pod types.UID) error
}

// Config configures a Manager. All fields are required.
type Config struct {
	Runtime *cri.Client
	Pods    Pods
	PodsDir string // has a directory for each pod
	LogDir  string // has a directory of logs for each pod
	Clock   clock.WithTicker
	Logger  *slog.Logger
}

// Manager removes leftovers while Run runs.
type Manager struct {
	Config
	failures backoff.Failures
}

// New makes the manager.
func New(c Config) *Manager { return &Manager{Config: c} }

// Run checks every minute for directories of pods that are gone, until ctx is done.
func (m *Manager) Run(ctx context.Context) error {
	ticker := m.Clock.NewTicker(time.Minute)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		switch err := m.removeDirs(ctx); {
		case err == nil:
			m.failures.Clear()
		case ctx.Err() == nil:
			m.failures.Log(m.Clock.Now(), m.Logger.Warn, "Could not collect garbage, retrying", "err", err)
		}
	}
}

// removeDirs removes directories and logs of pods without a worker, from times when the node did not run. Other nodes on the machine may
// share the directory of logs, so it removes only logs of pods that had a directory of ours.
func (m *Manager) removeDirs(ctx context.Context) error {
	known, all := m.Pods.Known()
	if !all {
		return nil
	}
	entries, err := os.ReadDir(m.PodsDir)
	if err != nil {
		return fmt.Errorf("list pod directories: %w", err)
	}
	var failed []error
	for _, e := range entries {
		if uid := types.UID(e.Name()); !known[uid] {
			failed = append(failed, m.Pods.TearDown(ctx, uid), m.RemoveLogs(uid))
		}
	}
	return errors.Join(failed...)
}

// RemoveLogs removes the logs of a pod of which only the UID is known.
func (m *Manager) RemoveLogs(uid types.UID) error {
	entries, err := os.ReadDir(m.LogDir)
	if err != nil {
		return fmt.Errorf("list logs: %w", err)
	}
	var failed []error
	for _, e := range entries {
		// Namespaces, names and UIDs have no underscore.
		if parts := strings.Split(e.Name(), "_"); len(parts) == 3 && parts[2] == string(uid) {
			failed = append(failed, os.RemoveAll(filepath.Join(m.LogDir, e.Name())))
		}
	}
	return errors.Join(failed...)
}

// DeleteDeadContainers removes the containers of ended pods that the API server still has.
func (m *Manager) DeleteDeadContainers(ctx context.Context) error {
	over := m.Pods.Over()
	exited := &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_EXITED}}
	dead, err := m.Runtime.Runtime.ListContainers(cri.Quiet(ctx), exited)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, c := range dead {
		if !over[types.UID(c.Labels[podstate.LabelPodUID])] {
			continue
		}
		if err := m.Runtime.Runtime.RemoveContainer(cri.Quiet(ctx), c.Id); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("remove container %s: %w", c.Id, err)
		}
	}
	return nil
}
