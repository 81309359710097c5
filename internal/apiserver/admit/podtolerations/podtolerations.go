// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podtolerations is the PodTolerationRestriction plug-in: a namespace's annotations, or else the configuration, set
// the tolerations that its pods get and those that they may have. It is off by default.
package podtolerations

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/settings"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/tolerations"
	"github.com/mortise-dev/mortise/resource"
)

const (
	given   = "scheduler.alpha.kubernetes.io/defaultTolerations"
	allowed = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
)

// Kinds is the information on kinds with pods that the plug-in needs.
type Kinds struct {
	// QOSClass returns a pod's quality-of-service class; Check validates tolerations.
	QOSClass func(pod *corev1.Pod) corev1.PodQOSClass
	Check    func(ts []corev1.Toleration, path *field.Path) field.ErrorList
}

// Configuration is podtolerationrestriction.admission.k8s.io/v1alpha1 Configuration.
type Configuration struct {
	metav1.TypeMeta
	Default   []corev1.Toleration `json:"default,omitempty"`
	Whitelist []corev1.Toleration `json:"whitelist,omitempty"`
}

// New makes the plug-in. config, nil or a [Configuration], has the defaults for namespaces without annotations.
func New(config io.Reader, kinds Kinds) (admit.Plugin, error) {
	p := &plugin{kinds: kinds}
	if config == nil {
		return p, nil
	}
	kind := schema.GroupVersionKind{Group: "podtolerationrestriction.admission.k8s.io", Version: "v1alpha1", Kind: "Configuration"}
	if err := settings.Decode(config, kind, &p.config); err != nil {
		return nil, err
	}
	path := field.NewPath("podtolerationrestriction")
	errs := append(kinds.Check(p.config.Default, path.Child("default")), kinds.Check(p.config.Whitelist, path.Child("whitelist"))...)
	if len(errs) > 0 {
		return nil, fmt.Errorf("invalid config: %v", errs)
	}
	return p, nil
}

type plugin struct {
	kinds  Kinds
	config Configuration
}

func (*plugin) Name() string { return "PodTolerationRestriction" }

// Mutate adds the configured tolerations to a new pod. It adds the toleration of memory pressure to every pod that has
// requests or limits.
func (p *plugin) Mutate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	pod := concerned(a)
	if pod == nil {
		return nil
	}
	var extra []corev1.Toleration
	if a.Operation == admit.Create {
		ts, said, err := ofNamespace(ctx, b, a.Namespace, given)
		if err != nil {
			return err
		}
		if !said {
			ts = p.config.Default
		}
		extra = slices.Clone(ts)
	}
	class := pod.Status.QOSClass
	if class == "" {
		class = p.kinds.QOSClass(pod)
	}
	if class != corev1.PodQOSBestEffort {
		extra = append(extra, corev1.Toleration{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists,
			Effect: corev1.TaintEffectNoSchedule})
	}
	if len(extra) > 0 {
		pod.Spec.Tolerations = tolerations.Merge(pod.Spec.Tolerations, extra)
	}
	return p.Validate(ctx, b, a)
}

// Validate rejects tolerations that the namespace, or else the configuration, does not allow.
func (p *plugin) Validate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	pod := concerned(a)
	if pod == nil || len(pod.Spec.Tolerations) == 0 {
		return nil
	}
	may, said, err := ofNamespace(ctx, b, a.Namespace, allowed)
	if err != nil {
		return err
	}
	scope := "namespace"
	if !said {
		may, scope = p.config.Whitelist, "cluster"
	}
	if len(may) == 0 {
		return nil
	}
	for _, t := range pod.Spec.Tolerations {
		if !slices.ContainsFunc(may, func(wide corev1.Toleration) bool { return tolerations.Covers(wide, t) }) {
			// upstream's words
			return fmt.Errorf("pod tolerations (possibly merged with namespace default tolerations) conflict with its %s whitelist", scope)
		}
	}
	return nil
}

func concerned(a *admit.Attributes) *corev1.Pod {
	if !a.Is("", "pods", "") || a.Operation != admit.Create && a.Operation != admit.Update {
		return nil
	}
	pod, _, ok := admit.ObjectsOf[*corev1.Pod](a)
	if !ok {
		return nil
	}
	return pod
}

// ofNamespace returns the tolerations in a namespace's annotation, and whether there is one.
func ofNamespace(ctx context.Context, b resource.Backend, name, annotation string) ([]corev1.Toleration, bool, error) {
	ns, err := b.Get(ctx, schema.GroupResource{Resource: "namespaces"}, "", name)
	if apierrors.IsNotFound(err) {
		return nil, false, err
	} else if err != nil {
		return nil, false, apierrors.NewInternalError(err)
	}
	text, said := ns.GetAnnotations()[annotation]
	if text == "" {
		return nil, said, nil
	}
	var ts []corev1.Toleration
	if err := json.Unmarshal([]byte(text), &ts); err != nil {
		return nil, false, err
	}
	return ts, true, nil
}
