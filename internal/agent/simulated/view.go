// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/nodeapi"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// view implements the API of one node.
type view struct {
	f *fleet
	n *node
}

var _ nodeapi.Node = view{}

// Name implements nodeapi.Node.
func (v view) Name() string { return v.n.name }

// Pods implements nodeapi.Node.
func (v view) Pods() []*corev1.Pod {
	var out []*corev1.Pod
	for _, pod := range v.f.pods.on(v.n.name) {
		out = append(out, pod.DeepCopy())
	}
	return out
}

// Pod returns one of the node's pods, or nil. Package server uses this method if a node has it.
func (v view) Pod(namespace, name string) *corev1.Pod {
	pod, err := v.f.pods.Pods(namespace).Get(name)
	if err != nil || pod.Spec.NodeName != v.n.name {
		return nil
	}
	return pod.DeepCopy()
}

// ContainerLogs writes the only line of the log.
func (v view) ContainerLogs(ctx context.Context, t podspec.Target, o *corev1.PodLogOptions, stdout, _ io.Writer) error {
	pod := v.Pod(t.Namespace, t.Pod)
	if pod == nil {
		return apierrors.NewNotFound(corev1.Resource("pods"), t.Pod)
	}
	s, known := statuses(pod)[t.Container]
	var at time.Time
	switch {
	case !known:
		return apierrors.NewBadRequest(fmt.Sprintf("container %q in pod %q is not available", t.Container, t.Pod))
	case o.Previous && s.LastTerminationState.Terminated == nil:
		return apierrors.NewBadRequest(fmt.Sprintf("previous terminated container %q in pod %q not found", t.Container, t.Pod))
	case o.Previous:
		at = s.LastTerminationState.Terminated.StartedAt.Time
	case s.State.Running != nil:
		at = s.State.Running.StartedAt.Time
	case s.State.Terminated != nil:
		at = s.State.Terminated.StartedAt.Time
	case s.State.Waiting != nil:
		return apierrors.NewBadRequest(fmt.Sprintf("container %q in pod %q is waiting to start: %s", t.Container, t.Pod, s.State.Waiting.Reason))
	}
	if stdout != nil {
		if err := v.line(o, stdout, at, fmt.Sprintf("%s: simulated container of pod %s/%s on node %s: it has no process\n", t.Container,
			t.Namespace, t.Pod, pod.Spec.NodeName)); err != nil {
			return err
		}
	}
	if o.Follow && s.State.Running != nil && !o.Previous {
		select {
		case <-v.f.followers.until(pod.UID):
		case <-ctx.Done():
		}
	}
	return nil
}

// line writes the line if the options select it.
func (v view) line(o *corev1.PodLogOptions, w io.Writer, at time.Time, line string) error {
	if o.TailLines != nil && *o.TailLines == 0 || o.SinceTime != nil && at.Before(o.SinceTime.Time) ||
		o.SinceSeconds != nil && at.Before(v.f.clock.Now().Add(-time.Duration(*o.SinceSeconds)*time.Second)) {
		return nil
	}
	if o.Timestamps {
		line = at.UTC().Format(time.RFC3339Nano) + " " + line
	}
	if o.LimitBytes != nil && *o.LimitBytes < int64(len(line)) {
		line = line[:*o.LimitBytes]
	}
	_, err := io.WriteString(w, line)
	return err
}

// nothing returns the error of requests that need a container's process.
func nothing(t podspec.Target, what string) error {
	return apierrors.NewBadRequest(fmt.Sprintf("pod %q is on a simulated node: there is no %s", t.Pod, what))
}

// Exec implements nodeapi.Node.
func (v view) Exec(_ context.Context, t podspec.Target, _ []string, _ podspec.Streams) (*url.URL, error) {
	return nil, nothing(t, "container to run a command in")
}

// Attach implements nodeapi.Node.
func (v view) Attach(_ context.Context, t podspec.Target, _ podspec.Streams) (*url.URL, error) {
	return nil, nothing(t, "process to attach to")
}

// PortForward implements nodeapi.Node.
func (v view) PortForward(_ context.Context, t podspec.Target, _ []int32) (*url.URL, error) {
	return nil, nothing(t, "port to forward to")
}

// Run implements nodeapi.Node.
func (v view) Run(_ context.Context, t podspec.Target, _ []string, _ time.Duration) ([]byte, int32, error) {
	return nil, 0, nothing(t, "container to run a command in")
}

// Stats implements nodeapi.Node: running containers use what their pods declare.
func (v view) Stats(context.Context, stats.Options) (*stats.Usage, error) {
	containers := v.containers()
	return &stats.Usage{Time: v.f.clock.Now(), Host: v.host(containers), Containers: containers}, nil
}

// followers wait for the end of a pod's containers.
type followers struct {
	mu    sync.Mutex
	ended map[types.UID]chan struct{}
}

// until returns a channel that is closed when the pod has ended.
func (f *followers) until(uid types.UID) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended == nil {
		f.ended = map[types.UID]chan struct{}{}
	}
	if f.ended[uid] == nil {
		f.ended[uid] = make(chan struct{})
	}
	return f.ended[uid]
}

// changed checks whether the pod has ended.
func (f *followers) changed(pod *corev1.Pod) {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		f.gone(pod.UID)
	}
}

func (f *followers) gone(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.ended[uid]; c != nil {
		close(c)
		delete(f.ended, uid)
	}
}
