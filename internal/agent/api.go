// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstreams"
	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// api is the node as its HTTP API sees it.
type api struct {
	*podstreams.Server
	*stats.Provider
	node *node
}

var _ Node = (*api)(nil)

// Name implements Node.
func (a *api) Name() string { return a.node.NodeName }

// Pods implements Node.
func (a *api) Pods() []*corev1.Pod { return a.node.shownPods() }

// shownPods are the pods with the newest status that the node has made of each. They belong to the caller.
func (t *podTable) shownPods() []*corev1.Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*corev1.Pod
	for _, w := range t.workers {
		if w.spec == nil || w.gone {
			continue
		}
		pod := w.spec.DeepCopy()
		if w.status != nil {
			w.status.DeepCopyInto(&pod.Status)
		}
		out = append(out, pod)
	}
	return out
}

// FindPod is the pod that a target names.
func (n *node) FindPod(t podspec.Target) (*corev1.Pod, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.workers {
		if p := w.spec; p != nil && !w.gone && p.Namespace == t.Namespace && p.Name == t.Pod && (t.UID == "" || t.UID == p.UID || n.static.IsMirror(p, t.UID)) {
			return p, nil
		}
	}
	return nil, apierrors.NewNotFound(corev1.Resource("pods"), t.Pod)
}

// Status is the newest status that the node has made of the pod; nil: none. It must not be changed.
func (t *podTable) Status(pod types.UID) *corev1.PodStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.workers[pod]; w != nil {
		return w.status
	}
	return nil
}
