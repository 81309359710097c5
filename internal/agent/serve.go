// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/logs"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/safepath"
	"github.com/mortise-dev/mortise/internal/agent/stats"
)

var _ Node = (*node)(nil)

// Name implements Node.
func (n *node) Name() string { return n.NodeName }

// find returns the pod that a target names.
func (n *node) find(t podspec.Target) (*corev1.Pod, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.workers {
		if p := w.spec; p != nil && !w.gone && p.Namespace == t.Namespace && p.Name == t.Pod && (t.UID == "" || t.UID == p.UID || n.static.IsMirror(p, t.UID)) {
			return p, nil
		}
	}
	return nil, apierrors.NewNotFound(corev1.Resource("pods"), t.Pod)
}

// instance returns the newest instance of the target's container, or the one before it.
func (n *node) instance(ctx context.Context, t podspec.Target, previous bool) (*corev1.Pod, *podstate.Container, error) {
	pod, err := n.find(t)
	if err != nil {
		return nil, nil, err
	}
	if t.Container == "" && len(pod.Spec.Containers) == 1 {
		t.Container = pod.Spec.Containers[0].Name
	}
	if podspec.Container(pod, t.Container) == nil {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", t.Container, t.Pod))
	}
	state, err := n.cri.Observe(ctx, pod.UID)
	if err != nil {
		return nil, nil, err
	}
	var found []*podstate.Container
	for i := range state.Containers {
		if state.Containers[i].Name == t.Container {
			found = append(found, &state.Containers[i])
		}
	}
	if previous {
		// A container that waits to be started again: its last instance is the previous one.
		if len(found) == 1 && found[0].State == podstate.Exited && n.waits(pod, t.Container) {
			return pod, found[0], nil
		}
		if len(found) < 2 {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("previous terminated container %q in pod %q not found", t.Container, t.Pod))
		}
		return pod, found[1], nil
	}
	if len(found) == 0 {
		reason := "ContainerCreating"
		n.mu.Lock()
		if w := n.workers[pod.UID]; w != nil && w.status != nil {
			for _, s := range slices.Concat(w.status.InitContainerStatuses, w.status.ContainerStatuses, w.status.EphemeralContainerStatuses) {
				if s.Name == t.Container && s.State.Waiting != nil && s.State.Waiting.Reason != "" {
					reason = s.State.Waiting.Reason
				}
			}
		}
		n.mu.Unlock()
		text := "waiting to start: " + reason
		if reason == "ErrImagePull" || reason == "ImagePullBackOff" {
			text = "waiting to start: trying and failing to pull image"
		}
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("container %q in pod %q is %s", t.Container, t.Pod, text))
	}
	return pod, found[0], nil
}

func (n *node) waits(pod *corev1.Pod, name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := n.workers[pod.UID]
	if w == nil || w.status == nil {
		return false
	}
	return slices.ContainsFunc(w.status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == name && s.State.Waiting != nil })
}

// ContainerLogs implements Node.
func (n *node) ContainerLogs(ctx context.Context, t podspec.Target, options *corev1.PodLogOptions, stdout, stderr io.Writer) error {
	if t.Container == "" {
		t.Container = options.Container
	}
	pod, c, err := n.instance(ctx, t, options.Previous)
	if err != nil {
		return err
	}
	// A follower of a container that has ended must not wait for it.
	o := &logs.LogOptions{
		TailLines: options.TailLines, LimitBytes: options.LimitBytes, Timestamp: options.Timestamps,
		Follow: options.Follow && c.State != podstate.Exited,
	}
	switch {
	case options.SinceSeconds != nil:
		o.Since = n.Clock.Now().Add(-time.Duration(*options.SinceSeconds) * time.Second)
	case options.SinceTime != nil:
		o.Since = options.SinceTime.Time
	}
	if stdout == nil {
		stdout = io.Discard
	}
	if stderr == nil {
		stderr = io.Discard
	}
	if !n.ownLog(pod, c) {
		return fmt.Errorf("read log of container %s: the runtime has it outside of the container's log directory", c.Name)
	}
	if info, err := os.Lstat(c.LogPath); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("read log of container %s: %w", c.Name, safepath.ErrNotRegular)
	}
	if err := logs.ReadLogs(cri.Quiet(ctx), c.LogPath, c.ID, o, n.cri.Runtime, stdout, stderr); err != nil {
		return fmt.Errorf("read log of container %s: %w", c.Name, err)
	}
	return nil
}

func (n *node) runningID(ctx context.Context, t podspec.Target) (string, error) {
	_, c, err := n.instance(ctx, t, false)
	if err != nil {
		return "", err
	}
	if c.State != podstate.Running {
		return "", apierrors.NewBadRequest(fmt.Sprintf("cannot exec into a container in a completed pod; current phase is %s", c.State))
	}
	return c.ID, nil
}

// ownLog says whether the path that the runtime gives for a container's log is below the directory that the node made for it. The node
// reads it as root, and every user who may read the pod's logs gets it.
func (n *node) ownLog(pod *corev1.Pod, c *podstate.Container) bool {
	if !filepath.IsLocal(c.Name) {
		return false
	}
	rest, err := filepath.Rel(filepath.Join(n.config.PodLogDir(pod), c.Name), c.LogPath)
	return err == nil && rest != "." && filepath.IsLocal(rest)
}

// ownStream is the address at which the runtime serves a stream. It is one of this machine: the node sends what its client sends to no
// other.
func ownStream(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("read the runtime's streaming address: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || !ownHost(u.Hostname()) {
		return nil, fmt.Errorf("the runtime's streaming address %s://%s is not of this machine", u.Scheme, u.Host)
	}
	return u, nil
}

func ownHost(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	if ip == nil || ip.IsLoopback() {
		return ip != nil
	}
	addresses, err := net.InterfaceAddrs() // a runtime may be told to serve streams on one of these
	return err == nil && slices.ContainsFunc(addresses, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(ip)
	})
}

// Exec implements Node.
func (n *node) Exec(ctx context.Context, t podspec.Target, command []string, s Streams) (*url.URL, error) {
	id, err := n.runningID(ctx, t)
	if err != nil {
		return nil, err
	}
	resp, err := n.cri.Runtime.Exec(cri.Quiet(ctx), &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: command, Tty: s.TTY, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr && !s.TTY,
	})
	if err != nil {
		return nil, fmt.Errorf("prepare exec: %w", err)
	}
	return ownStream(resp.Url)
}

// Attach implements Node.
func (n *node) Attach(ctx context.Context, t podspec.Target, s Streams) (*url.URL, error) {
	id, err := n.runningID(ctx, t)
	if err != nil {
		return nil, err
	}
	resp, err := n.cri.Runtime.Attach(cri.Quiet(ctx), &runtimeapi.AttachRequest{
		ContainerId: id, Tty: s.TTY, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr && !s.TTY,
	})
	if err != nil {
		return nil, fmt.Errorf("prepare attach: %w", err)
	}
	return ownStream(resp.Url)
}

// PortForward implements Node.
func (n *node) PortForward(ctx context.Context, t podspec.Target, ports []int32) (*url.URL, error) {
	pod, err := n.find(t)
	if err != nil {
		return nil, err
	}
	state, err := n.cri.Observe(ctx, pod.UID)
	if err != nil {
		return nil, err
	}
	sandbox := state.ReadySandbox()
	if sandbox == nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s is not running", t.Pod))
	}
	resp, err := n.cri.Runtime.PortForward(cri.Quiet(ctx), &runtimeapi.PortForwardRequest{PodSandboxId: sandbox.ID, Port: ports})
	if err != nil {
		return nil, fmt.Errorf("prepare port-forward: %w", err)
	}
	return ownStream(resp.Url)
}

// Run implements Node.
func (n *node) Run(ctx context.Context, t podspec.Target, command []string, timeout time.Duration) ([]byte, int32, error) {
	id, err := n.runningID(ctx, t)
	if err != nil {
		return nil, 0, err
	}
	return n.execSync(ctx, id, command, timeout)
}

// Stats implements Node.
func (n *node) Stats(ctx context.Context, o stats.Options) (*stats.Usage, error) {
	return n.stats.Stats(ctx, o)
}
