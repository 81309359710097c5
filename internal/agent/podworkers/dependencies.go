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

	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/environ"
	"github.com/mortise-dev/mortise/internal/agent/podresize"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// Addresses are where others reach the node.
type Addresses interface {
	// Texts are the addresses of now, the one that counts first.
	Texts() []string
}

// NodeStatus is what the node says of itself.
type NodeStatus interface {
	// Resync makes the node look at the runtime, and write what has changed.
	Resync()
	// NetworkReady reports whether pods with a network of their own can be made, and if not, why.
	NetworkReady() (ready bool, why string)
}

// Services are those of the cluster, for the environment of containers.
type Services interface {
	List(selector labels.Selector) ([]*corev1.Service, error)
}

// References follow the objects that a pod refers to.
type References interface {
	RegisterPod(ctx context.Context, pod *corev1.Pod)
	UnregisterPod(pod types.UID)
}

// Objects are those that a pod refers to.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// Volumes are set up before a pod has a sandbox, and torn down when it has none any more.
type Volumes interface {
	SetUp(ctx context.Context, pod *corev1.Pod, podIPs []string) error
	TearDown(ctx context.Context, pod types.UID) error
	// NextRenewal is when the pod's volumes are to be set up again at the latest; zero: nothing of them ends.
	NextRenewal(pod types.UID) time.Time
}

// Mounts are what of the volumes, and of the pod's directory, containers see.
type Mounts interface {
	Mounts(ctx context.Context, pod *corev1.Pod, c *corev1.Container, env []environ.Var,
		images map[string]*runtimeapi.ImageSpec) ([]*runtimeapi.Mount, error)
	PodDir(pod types.UID) string
	ContainerDir(pod types.UID, container string) string
}

// Images finds or pulls images. Where it cannot, it returns why the container waits, and for how long.
type Images interface {
	EnsureVolumes(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (
		map[string]*runtimeapi.ImageSpec, time.Duration, *corev1.ContainerStateWaiting)
	Ensure(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (*runtimeapi.Image, time.Duration, *corev1.ContainerStateWaiting)
	// Forget forgets what failed for the pod.
	Forget(pod types.UID)
}

// Mirrors are what the API server shows of static pods.
type Mirrors interface {
	// Mirror finds or makes the pod's.
	Mirror(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error)
	MirrorSeen(mirror *corev1.Pod, gone bool)
	IsMirror(pod *corev1.Pod, uid types.UID) bool
}

// StaticSources are where static pods come from.
type StaticSources interface {
	SourcesRead() bool
	LookForOrphans()
}

// Cgroups are the pods' own.
type Cgroups interface {
	Create(pod *corev1.Pod) error
	// Bound sets the bounds of the pod's cgroup.
	Bound(pod *corev1.Pod) error
	Remove(ctx context.Context, pod types.UID) error
}

// Users are the ranges of user IDs of pods with user namespaces.
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

// Deleter has the runtime forget what has ended.
type Deleter interface {
	Reset(ctx context.Context, pod *corev1.Pod, list []decide.Reset) error
	Remove(ctx context.Context, pod *corev1.Pod, state *podstate.Pod) error
	Prune(ctx context.Context, state *podstate.Pod) error
}

// Admission is the last guard against pods that do not fit. It may answer a *podadmission.Rejection.
type Admission interface {
	Admit(ctx context.Context, pod *corev1.Pod) error
}

// Resizes changes the resources of containers that run.
type Resizes interface {
	NewPod() *podresize.Pod
}

// Dependencies are what the workers need of the node's other rooms. Some are made with the Manager, so that it gets them with Start.
type Dependencies struct {
	Services   Services
	Events     record.EventRecorder
	References References
	Objects    Objects
	Volumes    Volumes
	Mounts     Mounts
	Images     Images
	NodeStatus NodeStatus
	Mirrors    Mirrors
	Static     StaticSources
	Cgroups    Cgroups
	Users      Users
	Lifecycle  Lifecycle
	Killer     Killer
	Deleter    Deleter
	Admission  Admission
	Resizes    Resizes
}
