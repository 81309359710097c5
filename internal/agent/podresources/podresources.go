// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podresources serves the two gRPC APIs of a node that monitoring agents and device plug-ins read: which devices, CPUs and memory
// each container has (podresources/v1 and v1alpha1, at pod-resources/kubelet.sock), and the pods themselves with the status that the node
// has computed (pods/v1alpha1, at pods-api/pods-api.sock).
//
//	podresources.go  the sockets, and podresources v1 and v1alpha1
//	pods.go          pods v1alpha1
//	metrics.go       kubelet's metrics of both
package podresources

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	podresourcesv1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/plugins"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// The sockets, below the node's directory.
const (
	ResourcesSocket = "pod-resources/kubelet.sock"
	PodsSocket      = "pods-api/pods-api.sock"
)

// kubelet's limits of calls for each socket.
const (
	callsPerSecond = 100
	burst          = 10
)

// Pods are the pods of the node.
type Pods interface {
	// AdmittedPods returns the pods that have not ended.
	AdmittedPods() []*corev1.Pod
	// Pods returns all pods, with the newest status that the node has computed.
	Pods() []*corev1.Pod
	// FindPod returns a pod by its name.
	FindPod(t podspec.Target) (*corev1.Pod, error)
	// Synced reports whether the node has listed its pods.
	Synced() bool
	// Changed returns a channel that is closed when a pod or its status has changed.
	Changed() <-chan struct{}
}

// Resources say what containers have.
type Resources interface {
	// Describe adds what a container has.
	Describe(pod *corev1.Pod, container *corev1.Container, to *podresourcesv1.ContainerResources)
	// DescribePod adds what a pod has as a whole.
	DescribePod(pod *corev1.Pod, to *podresourcesv1.PodResources)
	// DescribeNode adds what the node can give.
	DescribeNode(to *podresourcesv1.AllocatableResourcesResponse)
}

// Options are the settings of Run. All fields but NoPodsAPI are required.
type Options struct {
	Dir       string // the node's directory
	Pods      Pods
	Resources Resources
	Metrics   *Metrics
	Logger    *slog.Logger
	NoPodsAPI bool // the pods API is not served: its feature gate is off
}

// Run serves the sockets until ctx ends. A socket that cannot be served is an error in the log: the node still runs its pods.
func Run(ctx context.Context, o Options) error {
	limited := func() grpc.ServerOption {
		limiter := rate.NewLimiter(callsPerSecond, burst)
		return grpc.UnaryInterceptor(func(ctx context.Context, q any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if !limiter.Allow() {
				return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit") // upstream's words
			}
			return next(ctx, q)
		})
	}
	resources := grpc.NewServer(limited())
	podresourcesv1.RegisterPodResourcesListerServer(resources, v1{Options: o})
	podresourcesv1alpha1.RegisterPodResourcesListerServer(resources, v1alpha1{Options: o})
	pods := grpc.NewServer(limited())
	podsapi.RegisterPodsServer(pods, podsServer{Options: o})
	var running sync.WaitGroup
	defer running.Wait()
	servers := map[string]*grpc.Server{ResourcesSocket: resources}
	if !o.NoPodsAPI {
		servers[PodsSocket] = pods
	} else if err := remove(filepath.Join(o.Dir, PodsSocket)); err != nil {
		o.Logger.Error("Could not end an API of a former process", "err", err)
	}
	for socket, server := range servers {
		path := filepath.Join(o.Dir, socket)
		listener, err := listen(ctx, path)
		if err != nil {
			o.Logger.Error("Could not serve an API of the node", "socket", path, "err", err)
			continue
		}
		running.Go(func() { _ = server.Serve(listener) })
		running.Go(func() {
			<-ctx.Done()
			server.Stop()
		})
	}
	<-ctx.Done()
	return nil
}

// listen listens on a socket in the place of one that a former process has left.
func listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("make directory of socket: %w", err)
	}
	if err := remove(path); err != nil {
		return nil, err
	}
	return plugins.Listen(ctx, path)
}

// remove removes a socket that a former process has left.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove former socket: %w", err)
	}
	return nil
}

// v1 is podresources/v1.
type v1 struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	Options
}

// List returns what the pods have that have not ended.
func (s v1) List(context.Context, *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	s.Metrics.count("v1", s.Metrics.list)
	out := &podresourcesv1.ListPodResourcesResponse{}
	for _, pod := range s.Pods.AdmittedPods() {
		out.PodResources = append(out.PodResources, s.describe(pod))
	}
	return out, nil
}

// Get returns what one pod has.
func (s v1) Get(_ context.Context, q *podresourcesv1.GetPodResourcesRequest) (*podresourcesv1.GetPodResourcesResponse, error) {
	s.Metrics.count("v1", s.Metrics.get)
	pod, err := s.Pods.FindPod(podspec.Target{Namespace: q.GetPodNamespace(), Pod: q.GetPodName()})
	if err != nil {
		s.Metrics.getErrors.WithLabelValues("v1").Inc()
		// upstream's words
		return nil, status.Errorf(codes.Unknown, "pod %s in namespace %s not found", q.GetPodName(), q.GetPodNamespace())
	}
	return &podresourcesv1.GetPodResourcesResponse{PodResources: s.describe(pod)}, nil
}

// GetAllocatableResources returns what the node can give.
func (s v1) GetAllocatableResources(
	context.Context, *podresourcesv1.AllocatableResourcesRequest,
) (*podresourcesv1.AllocatableResourcesResponse, error) {
	s.Metrics.count("v1", s.Metrics.allocatable)
	out := &podresourcesv1.AllocatableResourcesResponse{}
	s.Resources.DescribeNode(out)
	return out, nil
}

// describe returns what a pod's sidecars and containers have.
func (s v1) describe(pod *corev1.Pod) *podresourcesv1.PodResources {
	out := &podresourcesv1.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	s.Resources.DescribePod(pod, out)
	add := func(c *corev1.Container) {
		r := &podresourcesv1.ContainerResources{Name: c.Name}
		s.Resources.Describe(pod, c, r)
		out.Containers = append(out.Containers, r)
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; decide.Sidecar(c) {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return out
}

// v1alpha1 is podresources/v1alpha1.
type v1alpha1 struct {
	podresourcesv1alpha1.UnimplementedPodResourcesListerServer
	Options
}

// List returns the devices of all pods.
func (s v1alpha1) List(
	context.Context, *podresourcesv1alpha1.ListPodResourcesRequest,
) (*podresourcesv1alpha1.ListPodResourcesResponse, error) {
	s.Metrics.requests.WithLabelValues("v1alpha1").Inc()
	out := &podresourcesv1alpha1.ListPodResourcesResponse{}
	for _, pod := range s.Pods.Pods() {
		p := &podresourcesv1alpha1.PodResources{Name: pod.Name, Namespace: pod.Namespace}
		for i := range pod.Spec.Containers {
			c := &pod.Spec.Containers[i]
			var has podresourcesv1.ContainerResources
			s.Resources.Describe(pod, c, &has)
			r := &podresourcesv1alpha1.ContainerResources{Name: c.Name}
			for _, d := range has.GetDevices() {
				r.Devices = append(r.Devices, &podresourcesv1alpha1.ContainerDevices{ResourceName: d.GetResourceName(), DeviceIds: d.GetDeviceIds()})
			}
			p.Containers = append(p.Containers, r)
		}
		out.PodResources = append(out.PodResources, p)
	}
	return out, nil
}
