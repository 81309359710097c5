// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package cri is the node's client of the container runtime, CRI v1 over a unix
// socket.
//
// It stands on k8s.io/cri-client, whose deadlines it takes over: two minutes a call,
// four for RunPodSandbox, the grace and two minutes for StopContainer, the command's
// own time and two minutes for ExecSync, none for PullImage. The connection
// underneath is made again after the runtime has gone away (waiting at most three
// seconds between tries), so a restart of the runtime shows as failed calls and
// then as none.
//
// What is added here: finding all of one pod (Observe), and the classes of errors.
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

	// Name and Version are the runtime's own, as of Dial.
	Name, Version string
}

// Dial connects to the runtime at the endpoint, a path of a unix socket with or
// without "unix://", and asks for its version.
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

// ContainerID is the ID with its scheme, as pod status shows it.
func (c *Client) ContainerID(id string) string {
	return c.Name + "://" + id
}

// Quiet is ctx with the client library's own logging off: failures come back as errors, and the code that handles them logs
// them once.
func Quiet(ctx context.Context) context.Context {
	return klog.NewContext(ctx, klog.Logger{})
}

// IsNotFound says whether a sandbox, container or image is not there.
func IsNotFound(err error) bool {
	return status.Code(err) == codes.NotFound
}

// IsUnimplemented says whether the runtime does not know the call.
func IsUnimplemented(err error) bool {
	return status.Code(err) == codes.Unimplemented
}

// Message is the runtime's own text of an error, without the RPC's dressing.
func Message(err error) string {
	s, _ := status.FromError(err)
	return s.Message()
}

// CgroupDriver asks the runtime for its cgroup driver; a runtime too old to say has
// the fallback.
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

// ExecSync runs a command in a container and returns what it wrote, and its exit code.
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
