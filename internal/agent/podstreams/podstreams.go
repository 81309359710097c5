// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podstreams serves clients of containers: logs, exec, attach and port-forward. The runtime serves the streams: the package
// prepares them, and returns the runtime's URLs.
package podstreams

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/logs"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
	"github.com/mortise-dev/mortise/internal/agent/safepath"
)

// Pods are the pods of the node.
type Pods interface {
	// FindPod returns the pod of a target. The error is an API status error.
	FindPod(target podspec.Target) (*corev1.Pod, error)
	// Status returns the newest status that the node has computed of the pod, or nil. The caller must not change it.
	Status(pod types.UID) *corev1.PodStatus
}

// Config configures a Server. All fields are required.
type Config struct {
	Runtime *cri.Client
	Pods    Pods
	Logs    runconfig.Node // locates the logs
	RootDir string         // the node's directory, for checkpoints
	Clock   clock.PassiveClock
}

// Server serves clients of containers. It has no state but its configuration.
type Server struct{ Config }

// New makes the server.
func New(c Config) *Server { return &Server{c} }

// instance returns the newest instance of the target's container, or the previous one.
func (s *Server) instance(ctx context.Context, t podspec.Target, previous bool) (*corev1.Pod, *podstate.Container, error) {
	pod, err := s.Pods.FindPod(t)
	if err != nil {
		return nil, nil, err
	}
	if t.Container == "" && len(pod.Spec.Containers) == 1 {
		t.Container = pod.Spec.Containers[0].Name
	}
	if podspec.Container(pod, t.Container) == nil {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", t.Container, t.Pod))
	}
	state, err := s.Runtime.Observe(ctx, pod.UID)
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
		// If the container waits to restart, its last instance is the previous one.
		if len(found) == 1 && found[0].State == podstate.Exited && s.waits(pod, t.Container) {
			return pod, found[0], nil
		}
		if len(found) < 2 {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("previous terminated container %q in pod %q not found", t.Container, t.Pod))
		}
		return pod, found[1], nil
	}
	if len(found) == 0 {
		reason := "ContainerCreating"
		if status := s.Pods.Status(pod.UID); status != nil {
			for _, c := range slices.Concat(status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses) {
				if c.Name == t.Container && c.State.Waiting != nil && c.State.Waiting.Reason != "" {
					reason = c.State.Waiting.Reason
				}
			}
		}
		text := "waiting to start: " + reason
		if reason == "ErrImagePull" || reason == "ImagePullBackOff" {
			text = "waiting to start: trying and failing to pull image"
		}
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("container %q in pod %q is %s", t.Container, t.Pod, text))
	}
	return pod, found[0], nil
}

func (s *Server) waits(pod *corev1.Pod, name string) bool {
	status := s.Pods.Status(pod.UID)
	return status != nil && slices.ContainsFunc(status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.Name == name && c.State.Waiting != nil
	})
}

// ContainerLogs writes the log of a container to the writers.
func (s *Server) ContainerLogs(ctx context.Context, t podspec.Target, options *corev1.PodLogOptions, stdout, stderr io.Writer) error {
	if t.Container == "" {
		t.Container = options.Container
	}
	pod, c, err := s.instance(ctx, t, options.Previous)
	if err != nil {
		return err
	}
	// A client that follows the log of an ended container must not wait for it.
	o := &logs.LogOptions{
		TailLines: options.TailLines, LimitBytes: options.LimitBytes, Timestamp: options.Timestamps,
		Follow: options.Follow && c.State != podstate.Exited,
	}
	switch {
	case options.SinceSeconds != nil:
		o.Since = s.Clock.Now().Add(-time.Duration(*options.SinceSeconds) * time.Second)
	case options.SinceTime != nil:
		o.Since = options.SinceTime.Time
	}
	if stdout == nil {
		stdout = io.Discard
	}
	if stderr == nil {
		stderr = io.Discard
	}
	if !s.Logs.OwnLog(pod, c.Name, c.LogPath) {
		return fmt.Errorf("read log of container %s: the runtime has it outside of the container's log directory", c.Name)
	}
	if info, err := os.Lstat(c.LogPath); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("read log of container %s: %w", c.Name, safepath.ErrNotRegular)
	}
	if err := logs.ReadLogs(cri.Quiet(ctx), c.LogPath, c.ID, o, s.Runtime.Runtime, stdout, stderr); err != nil {
		return fmt.Errorf("read log of container %s: %w", c.Name, err)
	}
	return nil
}

func (s *Server) runningID(ctx context.Context, t podspec.Target) (string, error) {
	_, c, err := s.instance(ctx, t, false)
	if err != nil {
		return "", err
	}
	if c.State != podstate.Running {
		return "", apierrors.NewBadRequest(fmt.Sprintf("cannot exec into a container in a completed pod; current phase is %s", c.State))
	}
	return c.ID, nil
}

// ownStream checks that the runtime serves a stream on this machine: the node never sends its clients' data to other machines.
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
	addresses, err := net.InterfaceAddrs() // a runtime may be configured to serve streams on one of these
	return err == nil && slices.ContainsFunc(addresses, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(ip)
	})
}

// Exec prepares a command in a container, and returns the runtime's URL of its streams.
func (s *Server) Exec(ctx context.Context, t podspec.Target, command []string, o podspec.Streams) (*url.URL, error) {
	id, err := s.runningID(ctx, t)
	if err != nil {
		return nil, err
	}
	resp, err := s.Runtime.Runtime.Exec(cri.Quiet(ctx), &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: command, Tty: o.TTY, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr && !o.TTY,
	})
	if err != nil {
		return nil, fmt.Errorf("prepare exec: %w", err)
	}
	return ownStream(resp.Url)
}

// Attach is Exec for the container's main process.
func (s *Server) Attach(ctx context.Context, t podspec.Target, o podspec.Streams) (*url.URL, error) {
	id, err := s.runningID(ctx, t)
	if err != nil {
		return nil, err
	}
	resp, err := s.Runtime.Runtime.Attach(cri.Quiet(ctx), &runtimeapi.AttachRequest{
		ContainerId: id, Tty: o.TTY, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr && !o.TTY,
	})
	if err != nil {
		return nil, fmt.Errorf("prepare attach: %w", err)
	}
	return ownStream(resp.Url)
}

// PortForward prepares forwarding to ports of a pod.
func (s *Server) PortForward(ctx context.Context, t podspec.Target, ports []int32) (*url.URL, error) {
	pod, err := s.Pods.FindPod(t)
	if err != nil {
		return nil, err
	}
	state, err := s.Runtime.Observe(ctx, pod.UID)
	if err != nil {
		return nil, err
	}
	sandbox := state.ReadySandbox()
	if sandbox == nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s is not running", t.Pod))
	}
	resp, err := s.Runtime.Runtime.PortForward(cri.Quiet(ctx), &runtimeapi.PortForwardRequest{PodSandboxId: sandbox.ID, Port: ports})
	if err != nil {
		return nil, fmt.Errorf("prepare port-forward: %w", err)
	}
	return ownStream(resp.Url)
}

// Run runs a command in a container to its end.
func (s *Server) Run(ctx context.Context, t podspec.Target, command []string, timeout time.Duration) ([]byte, int32, error) {
	id, err := s.runningID(ctx, t)
	if err != nil {
		return nil, 0, err
	}
	return s.Runtime.ExecSync(ctx, id, command, timeout)
}
