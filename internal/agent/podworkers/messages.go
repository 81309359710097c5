// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
	"github.com/mortise-dev/mortise/internal/agent/safepath"
)

// The bounds of a termination message.
const (
	maxMessage     = 4096
	maxLogMessage  = 2048
	maxMessageLine = 80
)

// messageFile makes the file that the container may write its last words to.
func (m *Manager) messageFile(pod *corev1.Pod, c *corev1.Container) (string, error) {
	dir := m.Volumes.ContainerDir(pod.UID, c.Name)
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
	if pod == nil { // known from the runtime only: nobody is told
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
				text = head(m.HostPath, maxMessage)
			}
		}
	}
	if text == "" && c.Note.MessagePolicy == corev1.TerminationMessageFallbackToLogsOnError && c.ExitCode != 0 && ownLog {
		text = logTail(c.LogPath)
	}
	return text
}

// head is the beginning of a file that the container wrote, if it is a file: it may have mounted something else there.
func head(path string, limit int64) string {
	text, err := safepath.ReadRegular(path, limit)
	if err != nil {
		return ""
	}
	return string(text)
}

// logTail is the end of a container's log, without what CRI puts before each line.
func logTail(path string) string {
	f, err := safepath.OpenRegular(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > 4*maxLogMessage {
		if _, err := f.Seek(-4*maxLogMessage, io.SeekEnd); err != nil {
			return ""
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, 4*maxLogMessage))
	if err != nil {
		return ""
	}
	var lines []string
	for l := range strings.Lines(string(text)) {
		// 2026-01-02T03:04:05.678901234Z stdout F words
		if fields := strings.SplitN(l, " ", 4); len(fields) == 4 {
			lines = append(lines, fields[3])
		}
	}
	lines = lines[max(len(lines)-maxMessageLine, 0):]
	out := strings.Join(lines, "")
	return out[max(len(out)-maxLogMessage, 0):]
}
