// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package fakecri is a container runtime without containers, for tests: it serves real gRPC over a real unix socket, with sandboxes and
// containers that exist only as records.
//
// A container runs until the test ends it (Exit) or the node stops it. Faults are functions that the test sets for calls by their names.
// The runtime can be stopped and started again on the same socket, and keeps its records, as containerd does.
package fakecri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is the fake runtime. Its methods may be called concurrently.
type Runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	socket string
	now    func() time.Time

	mu         sync.Mutex
	server     *grpc.Server
	next       int
	sandboxes  map[string]*sandbox
	containers map[string]*container
	images     map[string]bool
	users      map[string]imageUser
	ids        map[string]string // of images whose ID differs from their name
	private    map[string][]string
	pullable   map[string]bool
	faults     map[string]func() error
	network    func() error // nil: the network is ready
	calls      []string
	listeners  map[chan *runtimeapi.ContainerEventResponse]bool
	exec       func(command []string) (output string, code int32)
	uses       map[string]uint64 // memory usage by pod
	handlers   []*runtimeapi.RuntimeHandler
	streams    bool // lists are streamed
	streamed   int  // number of streamed lists
}

// imageUser is the user in an image's configuration.
type imageUser struct {
	uid  *int64
	name string
}

type sandbox struct {
	config  *runtimeapi.PodSandboxConfig
	created time.Time
	ready   bool
	ip      string
}

type container struct {
	sandbox                    string
	config                     *runtimeapi.ContainerConfig
	logPath                    string
	state                      runtimeapi.ContainerState
	created, started, finished time.Time
	code                       int32
	reason                     string
}

// New makes a runtime that will listen in dir and has the given images.
func New(dir string, now func() time.Time, images ...string) *Runtime {
	r := &Runtime{
		socket: filepath.Join(dir, "cri.sock"), now: now,
		sandboxes: map[string]*sandbox{}, containers: map[string]*container{}, images: map[string]bool{}, users: map[string]imageUser{},
		ids: map[string]string{}, private: map[string][]string{}, pullable: map[string]bool{},
		faults: map[string]func() error{}, listeners: map[chan *runtimeapi.ContainerEventResponse]bool{},
	}
	for _, i := range images {
		r.images[i] = true
	}
	return r
}

// Socket returns the path of the socket.
func (r *Runtime) Socket() string { return r.socket }

// Start starts to listen.
func (r *Runtime) Start() error {
	if err := os.Remove(r.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	listener, err := net.Listen("unix", r.socket)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo,
		handler grpc.UnaryHandler) (any, error) {
		name := filepath.Base(info.FullMethod)
		r.mu.Lock()
		fault := r.faults[name]
		r.calls = append(r.calls, name)
		r.mu.Unlock()
		if fault != nil {
			if err := fault(); err != nil {
				return nil, err
			}
		}
		return handler(ctx, request)
	}))
	runtimeapi.RegisterRuntimeServiceServer(server, r)
	runtimeapi.RegisterImageServiceServer(server, r)
	r.mu.Lock()
	r.server = server
	r.mu.Unlock()
	go server.Serve(listener) //nolint:errcheck // it ends with Stop
	return nil
}

// Stop breaks all connections; the records stay.
func (r *Runtime) Stop() {
	r.mu.Lock()
	server := r.server
	r.mu.Unlock()
	server.Stop()
}

// Fault sets the function that returns the error of a call; nil removes it.
func (r *Runtime) Fault(call string, fault func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults[call] = fault
}

// Network sets a function; while it returns an error, the runtime reports that it has no network.
func (r *Runtime) Network(ready func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.network = ready
}

// Pullable adds an image to the registry.
func (r *Runtime) Pullable(image string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pullable[image] = true
}

// Private adds an image to the registry that only these users can pull, each with the password "secret".
func (r *Runtime) Private(image string, users ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pullable[image], r.private[image] = true, users
}

// Move makes the name refer to another image, like a pull of a tag that has moved.
func (r *Runtime) Move(image, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids[image] = id
}

// idOf returns the ID for a name or an ID.
func (r *Runtime) idOf(image string) string {
	if id, ok := r.ids[image]; ok {
		return id
	}
	if strings.HasPrefix(image, "sha256:") {
		return image
	}
	return "sha256:" + image
}

// User sets the user in an image's configuration: a number, a name, or neither. By default, images have root.
func (r *Runtime) User(image string, uid *int64, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users[image] = imageUser{uid, name}
}

// Handlers sets the runtime handlers that the runtime reports; before, it reports none, as old runtimes do.
func (r *Runtime) Handlers(handlers ...*runtimeapi.RuntimeHandler) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handlers = handlers
}

// Made returns the requested configurations of a pod's newest sandbox and container of the name.
func (r *Runtime) Made(pod, name string) (s *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, has := range r.sandboxes {
		if m := has.config.Metadata; m.Name == pod && (s == nil || m.Attempt > s.Metadata.Attempt) {
			s = has.config
		}
	}
	for _, has := range r.containers {
		if m := has.config.Metadata; m.Name == name && r.sandboxes[has.sandbox].config.Metadata.Name == pod &&
			(c == nil || m.Attempt > c.Metadata.Attempt) {
			c = has.config
		}
	}
	return s, c
}

// OnExec sets the function that runs commands in containers.
func (r *Runtime) OnExec(f func(command []string) (string, int32)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.exec = f
}

// Calls returns the number of calls with the name so far.
func (r *Runtime) Calls(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, c := range r.calls {
		if c == name {
			n++
		}
	}
	return n
}

// Exit ends the running container of the name in the pod with the exit code. It returns whether there was one.
func (r *Runtime) Exit(pod, name string, code int32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, c := range r.containers {
		if c.config.Metadata.Name == name && r.sandboxes[c.sandbox].config.Metadata.Name == pod &&
			c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
			r.exit(id, c, code)
			return true
		}
	}
	return false
}

func (r *Runtime) exit(id string, c *container, code int32) {
	c.state, c.finished, c.code, c.reason = runtimeapi.ContainerState_CONTAINER_EXITED, r.now(), code, "Completed"
	if code != 0 {
		c.reason = "Error"
	}
	r.tell(id, c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

func (r *Runtime) tell(id, sandboxID string, kind runtimeapi.ContainerEventType) {
	s := r.sandboxes[sandboxID]
	if s == nil {
		return
	}
	e := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: r.now().UnixNano(),
		PodSandboxStatus: &runtimeapi.PodSandboxStatus{Id: sandboxID, Metadata: s.config.Metadata}}
	for l := range r.listeners {
		select {
		case l <- e:
		default: // a slow listener will relist
		}
	}
}

// GetContainerEvents implements the runtime service.
func (r *Runtime) GetContainerEvents(_ *runtimeapi.GetEventsRequest,
	stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	events := make(chan *runtimeapi.ContainerEventResponse, 256)
	r.mu.Lock()
	r.listeners[events] = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.listeners, events)
		r.mu.Unlock()
	}()
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case e := <-events:
			if err := stream.Send(e); err != nil {
				return err
			}
		}
	}
}

func (r *Runtime) id(kind string) string {
	r.next++
	return fmt.Sprintf("%s-%d", kind, r.next)
}

func notFound(what, id string) error {
	return status.Errorf(codes.NotFound, "%s %q: not found", what, id)
}

// Version implements the runtime service.
func (r *Runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "fake", RuntimeVersion: "1.0", RuntimeApiVersion: "v1"}, nil
}

// Status implements the runtime service.
func (r *Runtime) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	network := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: true}
	if r.network != nil {
		if err := r.network(); err != nil {
			network.Status, network.Reason, network.Message = false, "NetworkPluginNotReady", err.Error()
		}
	}
	return &runtimeapi.StatusResponse{RuntimeHandlers: r.handlers,
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true}, network,
		}}}, nil
}
