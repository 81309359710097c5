// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	criclient "k8s.io/cri-client/pkg"
	utilexec "k8s.io/utils/exec"

	"github.com/mortise-dev/mortise/internal/agent/containerlog"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/probe"
	"github.com/mortise-dev/mortise/internal/agent/safepath"
)

// runHook runs a postStart or preStop handler to its end.
func (n *node) runHook(ctx context.Context, pod *corev1.Pod, c *corev1.Container, id string, podIPs []string, h *corev1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		output, code, err := n.execSync(ctx, id, h.Exec.Command, 0)
		if err != nil {
			return fmt.Errorf("run hook of container %s: %w", c.Name, err)
		}
		if code != 0 {
			return fmt.Errorf("command '%s' exited with %d: %s", strings.Join(h.Exec.Command, " "), code, output)
		}
		return nil
	case h.HTTPGet != nil:
		ip := ""
		if len(podIPs) > 0 {
			ip = podIPs[0]
		}
		request, err := probe.Request(ctx, h.HTTPGet, c, ip)
		if err != nil {
			return err
		}
		client := probe.HTTPClient(0)
		defer client.CloseIdleConnections()
		response, err := client.Do(request)
		if err != nil {
			return fmt.Errorf("run hook of container %s: %w", c.Name, err)
		}
		defer response.Body.Close()
		_, err = io.Copy(io.Discard, io.LimitReader(response.Body, 10<<10))
		return err
	case h.Sleep != nil:
		timer := n.Clock.NewTimer(time.Duration(h.Sleep.Seconds) * time.Second)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C():
			return nil
		}
	}
	return fmt.Errorf("invalid handler: %v", h)
}

// preStop runs the hook for at most as long as the grace lasts.
func (n *node) preStop(ctx context.Context, pod *corev1.Pod, c *corev1.Container, id string, limit time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		var ips []string
		if state, err := n.cri.Observe(ctx, pod.UID); err == nil {
			ips = n.podIPs(pod, state)
		}
		done <- n.runHook(ctx, pod, c, id, ips, c.Lifecycle.PreStop)
	}()
	timer := n.Clock.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		if err != nil && ctx.Err() == nil {
			n.containerEvent(pod, c, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
		}
	case <-timer.C():
		cancel()
		<-done
	}
}

// execSync runs a command and returns what it wrote, and its exit code.
func (n *node) execSync(ctx context.Context, id string, command []string, timeout time.Duration) ([]byte, int32, error) {
	stdout, stderr, err := n.cri.Runtime.ExecSync(cri.Quiet(ctx), id, command, timeout)
	output := append(stdout, stderr...)
	var exit utilexec.ExitError
	switch {
	case errors.As(err, &exit):
		return output, int32(exit.ExitStatus()), nil
	case errors.Is(err, criclient.ErrCommandTimedOut):
		return output, 0, probe.ErrTimeout
	case err != nil:
		return output, 0, err
	}
	return output, 0, nil
}

func (n *node) execForProbe(ctx context.Context, id string, command []string, timeout time.Duration) ([]byte, int32, error) {
	return n.execSync(ctx, id, command, timeout)
}

func (n *node) ensureProbed(pod *corev1.Pod, spec *corev1.Container, c *podstate.Container, ips []string) {
	in := probe.Instance{Pod: pod, Container: spec, ID: c.ID, Started: c.Started}
	if len(ips) > 0 {
		in.PodIP = ips[0]
	}
	n.probes.Ensure(n.ctx, in)
}

// reportProbe turns an attempt that was not a success into an event.
func (n *node) reportProbe(in probe.Instance, kind string, result probe.Result, output string, err error) {
	switch {
	case err != nil:
		n.containerEvent(in.Pod, in.Container, corev1.EventTypeWarning, "Unhealthy", fmt.Sprintf("%s probe errored and resulted in %s state: %s", kind, result, err))
	case result == probe.Warning:
		n.containerEvent(in.Pod, in.Container, corev1.EventTypeWarning, "ProbeWarning", fmt.Sprintf("%s probe warning: %s", kind, output))
	default:
		n.containerEvent(in.Pod, in.Container, corev1.EventTypeWarning, "Unhealthy", fmt.Sprintf("%s probe failed: %s", kind, output))
	}
}

// maxMessage is how many bytes a termination message may have.
const maxMessage = 4096

// messageFile makes the file that the container may write its last words to.
func (n *node) messageFile(pod *corev1.Pod, c *corev1.Container) (string, error) {
	dir := n.volumes.ContainerDir(pod.UID, c.Name)
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

// readMessages fills in the termination messages of containers that have ended. Each is read
// once: the file goes away with the pod.
func (w *worker) readMessages(state *podstate.Pod) {
	w.n.mu.Lock()
	pod := w.spec
	w.n.mu.Unlock()
	if pod == nil { // known from the runtime only: nobody is told
		return
	}
	for i := range state.Containers {
		c := &state.Containers[i]
		if c.State != podstate.Exited {
			continue
		}
		message, ok := w.messages[c.ID]
		if !ok {
			message = termination(c, w.n.ownLog(pod, c))
			w.messages[c.ID] = message
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

// sweepLogs removes the logs of a pod of which only the UID is known.
func (n *node) sweepLogs(uid types.UID) error {
	entries, err := os.ReadDir(n.LogDir)
	if err != nil {
		return fmt.Errorf("list logs: %w", err)
	}
	var failed []error
	for _, e := range entries {
		// Namespace, name and UID hold no underscore.
		if parts := strings.Split(e.Name(), "_"); len(parts) == 3 && parts[2] == string(uid) {
			failed = append(failed, os.RemoveAll(filepath.Join(n.LogDir, e.Name())))
		}
	}
	return errors.Join(failed...)
}
