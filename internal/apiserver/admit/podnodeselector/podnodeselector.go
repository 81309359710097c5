// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podnodeselector is the PodNodeSelector plug-in: it adds the node selector of a namespace's annotation, or else
// the cluster's default, to the namespace's pods; its configuration may restrict which nodes a namespace's pods select. It
// is off by default.
package podnodeselector

import (
	"context"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/settings"
	"github.com/mortise-dev/mortise/resource"
)

const (
	annotation = "scheduler.alpha.kubernetes.io/node-selector"
	everywhere = "clusterDefaultNodeSelector" // the key of the cluster's default; the other keys are namespaces
)

// New makes the plug-in. config has selectors by namespace, in upstream's format, or is nil.
func New(config io.Reader) (admit.Plugin, error) {
	var c struct {
		PodNodeSelectorPluginConfig map[string]string `json:"podNodeSelectorPluginConfig"`
	}
	if config != nil {
		if err := settings.Plain(config, &c); err != nil {
			return nil, err
		}
	}
	p := &plugin{bounds: map[string]labels.Set{}}
	for name, selector := range c.PodNodeSelectorPluginConfig {
		set, err := labels.ConvertSelectorToLabelsMap(selector)
		if err != nil {
			return nil, fmt.Errorf("podNodeSelectorPluginConfig[%s]: %w", name, err)
		}
		p.bounds[name] = set
	}
	return p, nil
}

type plugin struct{ bounds map[string]labels.Set }

func (*plugin) Name() string { return "PodNodeSelector" }

// Mutate merges the namespace's selector into a new pod's.
func (p *plugin) Mutate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	pod, selector, err := p.find(ctx, b, a)
	if err != nil || pod == nil {
		return err
	}
	pod.Spec.NodeSelector = labels.Merge(selector, pod.Spec.NodeSelector)
	return p.bound(a, pod)
}

// Validate checks what later mutators may have changed.
func (p *plugin) Validate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	pod, _, err := p.find(ctx, b, a)
	if err != nil || pod == nil {
		return err
	}
	return p.bound(a, pod)
}

func (p *plugin) bound(a *admit.Attributes, pod *corev1.Pod) error {
	bounds := p.bounds[a.Namespace]
	if len(bounds) == 0 {
		return nil
	}
	for k, v := range pod.Spec.NodeSelector {
		if has, ok := bounds[k]; !ok || has != v {
			// upstream's words
			return apierrors.NewForbidden(a.Descriptor.GroupResource(), pod.Name,
				errors.New("pod node label selector labels conflict with its namespace whitelist"))
		}
	}
	return nil
}

// find returns the namespace's selector, and the pod, or nil if the request creates none. It rejects a pod whose own
// selector conflicts.
func (p *plugin) find(ctx context.Context, b resource.Backend, a *admit.Attributes) (*corev1.Pod, labels.Set, error) {
	if !a.Is("", "pods", "") || a.Operation != admit.Create {
		return nil, nil, nil
	}
	pod, _, ok := admit.ObjectsOf[*corev1.Pod](a)
	if !ok {
		return nil, nil, nil
	}
	ns, err := b.Get(ctx, schema.GroupResource{Resource: "namespaces"}, "", a.Namespace)
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("namespace %s does not exist", a.Namespace) // upstream's words
	}
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	selector := p.bounds[everywhere]
	if own, said := ns.GetAnnotations()[annotation]; said {
		if selector, err = labels.ConvertSelectorToLabelsMap(own); err != nil {
			return nil, nil, err
		}
	}
	if labels.Conflicts(selector, pod.Spec.NodeSelector) {
		// upstream's words
		return nil, nil, apierrors.NewForbidden(a.Descriptor.GroupResource(), pod.Name,
			errors.New("pod node label selector conflicts with its namespace node label selector"))
	}
	return pod, selector, nil
}
