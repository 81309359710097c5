// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podgc removes what pods that are no more have left on the node: their directories, their logs, and containers of pods that have
// ended.
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
	// Known are the pods that have a worker, and whether they are all that there are: not before all sources of pods have spoken.
	Known() (pods map[types.UID]bool, all bool)
	// Over says of each pod with a worker whether it has ended for good.
	Over() map[types.UID]bool
	// TearDown gives back what the pod has of the node.
	TearDown(ctx context.Context, pod types.UID) error
}

// Config is what a Manager is made from. All of it is required.
type Config struct {
	Runtime *cri.Client
	Pods    Pods
	PodsDir string // with a directory for each pod
	LogDir  string // with a directory of logs for each pod
	Clock   clock.WithTicker
	Logger  *slog.Logger
}

// Manager removes what is left; Run does its work.
type Manager struct {
	Config
	failures backoff.Failures
}

// New makes the manager.
func New(c Config) *Manager { return &Manager{Config: c} }

// Run looks every minute for directories of pods that are no more, until ctx is done.
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

// removeDirs removes directories and logs of pods that no worker knows: they are left from a time when the node was not looking. The
// directory of logs may be shared with other nodes on the machine; only logs of pods that had a directory of ours are removed.
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
		// Namespace, name and UID hold no underscore.
		if parts := strings.Split(e.Name(), "_"); len(parts) == 3 && parts[2] == string(uid) {
			failed = append(failed, os.RemoveAll(filepath.Join(m.LogDir, e.Name())))
		}
	}
	return errors.Join(failed...)
}

// DeleteDeadContainers removes the containers of pods that have ended and are still in the API server.
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
