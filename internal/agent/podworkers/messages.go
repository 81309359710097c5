// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/containerlog"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
	"github.com/mortise-dev/mortise/internal/agent/safepath"
)

// maxMessage is the maximum length of a termination message in bytes.
const maxMessage = 4096

// messageFile creates the file for the container's termination message.
func (m *Manager) messageFile(pod *corev1.Pod, c *corev1.Container) (string, error) {
	dir := m.Mounts.ContainerDir(pod.UID, c.Name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("make directory of container %s: %w", c.Name, err)
	}
	f, err := os.CreateTemp(dir, "")
	if err != nil {
		return "", fmt.Errorf("make termination message of container %s: %w", c.Name, err)
	}
	if err := errors.Join(f.Chmod(0o666), f.Close()); err != nil {
		return "", fmt.Errorf("open termination message of container %s: %w", c.Name, err)
	}
	return f.Name(), nil
}

// lastWords are the termination messages of containers, by container ID.
type lastWords map[string]string

// fillIn sets the termination messages of the pod's ended containers. It reads each file once, because the pod's directory goes away.
func (l lastWords) fillIn(pod *corev1.Pod, state *podstate.Pod, logs *runconfig.Node) {
	if pod == nil { // known from the runtime only: the API server has no status of it
		return
	}
	for i := range state.Containers {
		c := &state.Containers[i]
		if c.State != podstate.Exited {
			continue
		}
		message, ok := l[c.ID]
		if !ok {
			message = termination(c, logs.OwnLog(pod, c.Name, c.LogPath))
			l[c.ID] = message
		}
		if message != "" {
			if c.Message != "" {
				message = c.Message + ": " + message
			}
			c.Message = message
		}
	}
}

// termination returns the message of an ended container. ownLog reports whether the container's log is its own.
func termination(c *podstate.Container, ownLog bool) string {
	text := ""
	if c.Note.MessagePath != "" {
		for _, m := range c.Mounts {
			if m.ContainerPath == c.Note.MessagePath {
				text = messageIn(m.HostPath)
			}
		}
	}
	if text == "" && c.Note.MessagePolicy == corev1.TerminationMessageFallbackToLogsOnError && c.ExitCode != 0 && ownLog {
		text, _ = containerlog.Tail(c.LogPath) // an unreadable log has no message
	}
	return text
}

// messageIn returns the end of the container's file. The container may have mounted something else there, so the file may be missing.
func messageIn(path string) string {
	text, err := safepath.ReadRegularEnd(path, maxMessage)
	if err != nil {
		return ""
	}
	return string(text)
}
