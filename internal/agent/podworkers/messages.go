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

// maxMessage is how many bytes a termination message may have.
const maxMessage = 4096

// messageFile makes the file that the container may write its last words to.
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

// fillIn fills in the termination messages of the pod's containers that have ended. Each is read once: the file goes away with the pod.
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

// termination is what a container that has ended has said; ownLog says whether its log is its own.
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
		text, _ = containerlog.Tail(c.LogPath) // a log that is none says nothing
	}
	return text
}

// messageIn is the end of a file that the container wrote, if it is a file: it may have mounted something else there.
func messageIn(path string) string {
	text, err := safepath.ReadRegularEnd(path, maxMessage)
	if err != nil {
		return ""
	}
	return string(text)
}
