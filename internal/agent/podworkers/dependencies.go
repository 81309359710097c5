// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/environ"
	"github.com/mortise-dev/mortise/internal/agent/podresize"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// Addresses are the addresses at which clients reach the node.
type Addresses interface {
	// Texts returns the current addresses, the primary one first.
	Texts() []string
}

// NodeStatus is the status of the node.
type NodeStatus interface {
	// Resync makes the node query the runtime and write what has changed.
	Resync()
	// NetworkReady reports whether pods with their own network can start, and the reason if they cannot.
	NetworkReady() (ready bool, why string)
}

// Services lists the Services of the cluster, for the environment of containers.
type Services interface {
	List(selector labels.Selector) ([]*corev1.Service, error)
}

// References watch the objects that a pod refers to.
type References interface {
	RegisterPod(ctx context.Context, pod *corev1.Pod)
	UnregisterPod(pod types.UID)
}

// Objects reads the objects that a pod refers to.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// Volumes sets up volumes before a pod gets a sandbox, and tears them down after it has lost it.
type Volumes interface {
	SetUp(ctx context.Context, pod *corev1.Pod, podIPs []string) error
	TearDown(ctx context.Context, pod types.UID) error
	// NextRenewal returns when the pod's volumes must be set up again at the latest; zero: never.
	NextRenewal(pod types.UID) time.Time
}

// Mounts are the directories of the pod and its volumes that containers see.
type Mounts interface {
	Mounts(ctx context.Context, pod *corev1.Pod, c *corev1.Container, env []environ.Var,
		images map[string]*runtimeapi.ImageSpec) ([]*runtimeapi.Mount, error)
	// Devices returns the block devices of a container.
	Devices(ctx context.Context, pod *corev1.Pod, c *corev1.Container) ([]*runtimeapi.Device, error)
	PodDir(pod types.UID) string
	ContainerDir(pod types.UID, container string) string
}

// Images finds or pulls images. If it cannot, it returns why the container waits, and for how long.
type Images interface {
	EnsureVolumes(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (
		map[string]*runtimeapi.ImageSpec, time.Duration, *corev1.ContainerStateWaiting)
	Ensure(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (*runtimeapi.Image, time.Duration, *corev1.ContainerStateWaiting)
	// Forget drops the pod's failures.
	Forget(pod types.UID)
}

// Mirrors are the mirror pods of static pods.
type Mirrors interface {
	// Mirror finds or creates the mirror pod.
	Mirror(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error)
	MirrorSeen(mirror *corev1.Pod, gone bool)
	IsMirror(pod *corev1.Pod, uid types.UID) bool
}

// StaticSources are the sources of static pods.
type StaticSources interface {
	SourcesRead() bool
	LookForOrphans()
}

// Cgroups manages the cgroups of pods.
type Cgroups interface {
	Create(pod *corev1.Pod) error
	// Bound sets the limits of the pod's cgroup.
	Bound(pod *corev1.Pod) error
	Remove(ctx context.Context, pod types.UID) error
}

// Users allocates the ranges of user IDs for pods with user namespaces.
type Users interface {
	Give(pod *corev1.Pod, handler string) (*runtimeapi.UserNamespace, error)
	Of(pod *corev1.Pod) (*runtimeapi.UserNamespace, error)
	Release(ctx context.Context, pod types.UID) error
}

// Lifecycle runs postStart handlers.
type Lifecycle interface {
	Run(ctx context.Context, c *corev1.Container, id string, podIPs []string, h *corev1.LifecycleHandler) error
}

// Killer stops pods and containers.
type Killer interface {
	StopPod(ctx context.Context, pod *corev1.Pod, state *podstate.Pod, grace int64) error
	StopContainer(ctx context.Context, pod *corev1.Pod, spec *corev1.Container, id string, grace int64) error
	StopOne(ctx context.Context, pod *corev1.Pod, kill decide.Kill) error
}

// Deleter removes ended containers and sandboxes from the runtime.
type Deleter interface {
	Reset(ctx context.Context, pod *corev1.Pod, list []decide.Reset) error
	Remove(ctx context.Context, pod *corev1.Pod, state *podstate.Pod) error
	Prune(ctx context.Context, state *podstate.Pod) error
}

// Resources are the node's resources beyond cgroup limits (package containermanager).
type Resources interface {
	// Prepare prepares what the pod was given, before its sandbox. It may return a *containermanager.Hold.
	Prepare(ctx context.Context, pod *corev1.Pod) error
	// Options returns what the runtime gives to a container for it. It may return a *containermanager.Hold.
	Options(ctx context.Context, pod *corev1.Pod, container *corev1.Container) (*containermanager.Options, error)
	// ResourceStatus returns the health of what a container was given.
	ResourceStatus(pod *corev1.Pod, container string) []corev1.ResourceStatus
	// Release frees what the pod was given.
	Release(ctx context.Context, pod types.UID) error
}

// Admission is the last check before a pod runs. It may return a *podadmission.Rejection or a *containermanager.Hold.
type Admission interface {
	Admit(ctx context.Context, pod *corev1.Pod) error
}

// Resizes change the resources of running containers.
type Resizes interface {
	NewPod() *podresize.Pod
	// Requested counts the resizes that a newer definition of a pod asks for.
	Requested(old, pod *corev1.Pod)
}

// Dependencies are the other rooms that the workers use. Some of them need the Manager, so Start passes them.
type Dependencies struct {
	Services      Services
	Events        record.EventRecorder
	References    References
	Objects       Objects
	Volumes       Volumes
	Mounts        Mounts
	Images        Images
	NodeStatus    NodeStatus
	Mirrors       Mirrors
	Static        StaticSources
	Cgroups       Cgroups
	Users         Users
	Lifecycle     Lifecycle
	Killer        Killer
	Deleter       Deleter
	Admission     Admission
	NodeResources Resources
	Resizes       Resizes
}
