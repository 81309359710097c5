// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/cri"
)

// rotateLogs keeps the logs of running containers within their bounds.
func (n *node) rotateLogs(ctx context.Context) error {
	if n.settings.logBytes < 0 {
		return nil
	}
	ticker := n.Clock.NewTicker(n.Kubelet.ContainerLogMonitorInterval.Duration)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		if err := n.rotateAll(ctx); err != nil && ctx.Err() == nil {
			n.Logger.Warn("rotate logs", "err", err)
		}
	}
}

// rotateAll looks at the log directories, which costs no call of the runtime, and asks the
// runtime only about containers whose logs are too large.
func (n *node) rotateAll(ctx context.Context) error {
	var large []string
	for _, pod := range n.Pods() {
		files, err := filepath.Glob(filepath.Join(n.config.PodLogDir(pod), "*", "*.log"))
		if err != nil {
			return fmt.Errorf("list logs: %w", err)
		}
		for _, file := range files {
			if info, err := os.Lstat(file); err == nil && info.Mode().IsRegular() && info.Size() > n.settings.logBytes {
				large = append(large, file)
			}
		}
	}
	if len(large) == 0 {
		return nil
	}
	list, err := n.cri.Runtime.ListContainers(cri.Quiet(ctx), &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	var failed []error
	for _, c := range list {
		resp, err := n.cri.Runtime.ContainerStatus(cri.Quiet(ctx), c.Id, false)
		if err != nil || !slices.Contains(large, resp.GetStatus().GetLogPath()) {
			continue
		}
		path := resp.Status.LogPath
		failed = append(failed, rotate(path, n.Clock.Now(), int(*n.Kubelet.ContainerLogMaxFiles), func() error {
			return n.cri.Runtime.ReopenContainerLog(cri.Quiet(ctx), c.Id)
		}))
	}
	return errors.Join(failed...)
}

// rotate gives the log another name and makes its writer begin a new file; if the writer
// cannot, the log has its name back. Of older files only the newest stay.
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
	slices.SortFunc(files, strings.Compare) // by time, as the names are
	for len(files) > keep-1 {
		if err := os.Remove(files[0]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove old log: %w", err)
		}
		files = files[1:]
	}
	return nil
}
