// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podstreams

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// Checkpoint has the runtime write a checkpoint of a running container below the node's directory, and returns its path. A runtime that
// cannot returns an error. The timeout is in seconds; 0: the runtime's.
func (s *Server) Checkpoint(ctx context.Context, t podspec.Target, timeout int64) (string, error) {
	id, err := s.runningID(ctx, t)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(s.RootDir, "checkpoints")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make directory of checkpoints: %w", err)
	}
	path := filepath.Join(dir, fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", t.Pod, t.Namespace, t.Container, s.Clock.Now().Format(time.RFC3339)))
	return path, s.Runtime.Runtime.CheckpointContainer(cri.Quiet(ctx), &runtimeapi.CheckpointContainerRequest{
		ContainerId: id, Location: path, Timeout: timeout,
	})
}
