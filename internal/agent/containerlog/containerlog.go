// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package containerlog rotates the logs of containers, as kubelet's container log manager does.
package containerlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
)

// Pods are the pods of the node.
type Pods interface {
	Pods() []*corev1.Pod
}

// Options configure a Manager. All are required.
type Options struct {
	Runtime  *cri.Client
	Pods     Pods
	Config   runconfig.Node // locates the logs of pods
	MaxBytes int64          // of one file; negative: no limit
	MaxFiles int            // of one container
	Period   time.Duration
	Clock    clock.WithTicker
	Logger   *slog.Logger
}

// Manager rotates logs. It has no state but its options.
type Manager struct{ Options }

// New makes the manager; Run does its work.
func New(o Options) *Manager { return &Manager{o} }

// Run keeps the logs of running containers within their limits.
func (m *Manager) Run(ctx context.Context) error {
	if m.MaxBytes < 0 {
		return nil
	}
	var failures backoff.Failures
	ticker := m.Clock.NewTicker(m.Period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		switch err := m.Rotate(ctx); {
		case err == nil:
			failures.Clear()
		case ctx.Err() == nil:
			failures.Log(m.Clock.Now(), m.Logger.Warn, "Could not rotate container logs, retrying", "err", err)
		}
	}
}

// Rotate checks the log directories, which needs no call of the runtime, and calls the runtime only for containers whose logs are too
// large.
func (m *Manager) Rotate(ctx context.Context) error {
	var large []string
	for _, pod := range m.Pods.Pods() {
		files, err := filepath.Glob(filepath.Join(m.Config.PodLogDir(pod), "*", "*.log"))
		if err != nil {
			return fmt.Errorf("list logs: %w", err)
		}
		for _, file := range files {
			if info, err := os.Lstat(file); err == nil && info.Mode().IsRegular() && info.Size() > m.MaxBytes {
				large = append(large, file)
			}
		}
	}
	if len(large) == 0 {
		return nil
	}
	running := &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}}
	list, err := m.Runtime.Runtime.ListContainers(cri.Quiet(ctx), running)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	var failed []error
	for _, c := range list {
		resp, err := m.Runtime.Runtime.ContainerStatus(cri.Quiet(ctx), c.Id, false)
		if err != nil || !slices.Contains(large, resp.GetStatus().GetLogPath()) {
			continue
		}
		path := resp.Status.LogPath
		failed = append(failed, rotate(path, m.Clock.Now(), m.MaxFiles, func() error {
			return m.Runtime.Runtime.ReopenContainerLog(cri.Quiet(ctx), c.Id)
		}))
	}
	return errors.Join(failed...)
}

// rotate renames the log and makes the runtime reopen it; if that fails, it renames the log back. Of older files it keeps only the newest.
func rotate(path string, now time.Time, keep int, reopen func() error) error {
	old := path + "." + now.UTC().Format("20060102-150405")
	if err := os.Rename(path, old); err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	if err := reopen(); err != nil {
		return errors.Join(fmt.Errorf("reopen log %s: %w", path, err), os.Rename(old, path))
	}
	files, err := filepath.Glob(path + ".*")
	if err != nil {
		return fmt.Errorf("list old logs: %w", err)
	}
	slices.SortFunc(files, strings.Compare) // their names sort by time
	for len(files) > keep-1 {
		if err := os.Remove(files[0]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove old log: %w", err)
		}
		files = files[1:]
	}
	return nil
}
