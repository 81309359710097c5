// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package cri is the node's client of the container runtime: CRI v1 over a unix socket.
//
// It uses k8s.io/cri-client with its deadlines: two minutes for a call, four for RunPodSandbox, the grace period and two minutes for
// StopContainer, the command's timeout and two minutes for ExecSync, none for PullImage. The client connects again after the runtime has
// gone away (at most three seconds between attempts), so during a restart of the runtime calls fail, and then succeed again.
//
// This package adds queries for all objects of one pod (Observe), and classes of errors.
package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	criclient "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"
	utilexec "k8s.io/utils/exec"
)

// CallTimeout is the deadline of an ordinary call.
const CallTimeout = 2 * time.Minute

// Client is a connection to a runtime. It is safe for concurrent use.
type Client struct {
	Runtime internalapi.RuntimeService
	Images  internalapi.ImageManagerService

	// Name and Version are those that the runtime reported to Dial.
	Name, Version string
}

// Dial connects to the runtime at the endpoint, a path of a unix socket with or without "unix://", and queries its version.
func Dial(ctx context.Context, endpoint string) (*Client, error) {
	if !strings.Contains(endpoint, "://") {
		endpoint = "unix://" + endpoint
	}
	ctx = Quiet(ctx)
	runtime, err := criclient.NewRemoteRuntimeServiceBuilder().WithEndpoint(endpoint).WithConnectionTimeout(CallTimeout).WithTracerProvider(
		nil).WithUseStreaming(true).Build(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to runtime %s: %w", endpoint, err)
	}
	images, err := criclient.NewRemoteImageServiceBuilder().WithEndpoint(endpoint).WithConnectionTimeout(CallTimeout).WithTracerProvider(
		nil).WithUseStreaming(true).Build(ctx)
	if err != nil {
		runtime.Close(ctx)
		return nil, fmt.Errorf("connect to image service %s: %w", endpoint, err)
	}
	version, err := runtime.Version(ctx, "v1")
	if err != nil {
		runtime.Close(ctx)
		images.Close(ctx)
		return nil, fmt.Errorf("ask version of %s: %w", endpoint, err)
	}
	return &Client{Runtime: runtime, Images: images, Name: version.RuntimeName, Version: version.RuntimeVersion}, nil
}

// Close ends the connections.
func (c *Client) Close(ctx context.Context) {
	c.Runtime.Close(Quiet(ctx))
	c.Images.Close(Quiet(ctx))
}

// ContainerID returns the ID with its scheme, as pod statuses have it.
func (c *Client) ContainerID(id string) string {
	return c.Name + "://" + id
}

// Quiet disables the client library's logging in ctx: failures are returned as errors, and the code that handles them logs them once.
func Quiet(ctx context.Context) context.Context {
	return klog.NewContext(ctx, klog.Logger{})
}

// IsNotFound reports whether a sandbox, container or image does not exist.
func IsNotFound(err error) bool {
	return status.Code(err) == codes.NotFound
}

// IsUnimplemented reports whether the runtime does not support the call.
func IsUnimplemented(err error) bool {
	return status.Code(err) == codes.Unimplemented
}

// Message returns the runtime's own text of an error, without the prefix of the RPC.
func Message(err error) string {
	s, _ := status.FromError(err)
	return s.Message()
}

// CgroupDriver queries the runtime's cgroup driver. It returns the fallback if the runtime is too old to report it.
func (c *Client) CgroupDriver(ctx context.Context, fallback runtimeapi.CgroupDriver) (runtimeapi.CgroupDriver, error) {
	resp, err := c.Runtime.RuntimeConfig(Quiet(ctx))
	switch {
	case IsUnimplemented(err):
		return fallback, nil
	case err != nil:
		return 0, fmt.Errorf("ask runtime's configuration: %w", err)
	case resp.GetLinux() == nil:
		return fallback, nil
	}
	return resp.GetLinux().GetCgroupDriver(), nil
}

// ErrTimeout is returned by ExecSync for a command that did not end in time.
var ErrTimeout = errors.New("command timed out")

// ExecSync runs a command in a container and returns its output and exit code.
func (c *Client) ExecSync(ctx context.Context, id string, command []string, timeout time.Duration) ([]byte, int32, error) {
	stdout, stderr, err := c.Runtime.ExecSync(Quiet(ctx), id, command, timeout)
	output := append(stdout, stderr...)
	var exit utilexec.ExitError
	switch {
	case errors.As(err, &exit):
		return output, int32(exit.ExitStatus()), nil
	case errors.Is(err, criclient.ErrCommandTimedOut):
		return output, 0, ErrTimeout
	case err != nil:
		return output, 0, err
	}
	return output, 0, nil
}
