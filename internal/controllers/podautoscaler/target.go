// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"context"
	"errors"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/mortise-dev/mortise/internal/controllers/podautoscaler/calculator"
)

// scaleOf is the scale of an object, in the version in which its server gives it.
type scaleOf struct {
	resource schema.GroupVersionResource
	object   *unstructured.Unstructured // nil: it has not been asked for
	direct   *autoscalingv1.Scale       // that has been read without a question; nil: it could not
}

// known reports whether the scale has been read.
func (s *scaleOf) known() bool { return s.object != nil || s.direct != nil }

// read is what the scale says. Before autoscaling/v1 the selector was an object.
func (s *scaleOf) read() calculator.Scale {
	if s.object == nil {
		return calculator.Scale{Replicas: s.direct.Spec.Replicas, StatusReplicas: s.direct.Status.Replicas, Selector: s.direct.Status.Selector}
	}
	replicas, _, _ := unstructured.NestedInt64(s.object.Object, "spec", "replicas")
	status, _, _ := unstructured.NestedInt64(s.object.Object, "status", "replicas")
	selector, isText, err := unstructured.NestedString(s.object.Object, "status", "selector")
	if !isText || err != nil {
		selector, _, _ = unstructured.NestedString(s.object.Object, "status", "targetSelector")
		if of, found, err := unstructured.NestedStringMap(s.object.Object, "status", "selector"); selector == "" && found && err == nil {
			selector = labels.SelectorFromSet(of).String()
		}
	}
	return calculator.Scale{Replicas: int32(replicas), StatusReplicas: int32(status), Selector: selector}
}

// find reads the scale of an autoscaler's target. Where it cannot, the decision is over.
func (c *controller) find(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, d *calculator.Decision) (scaleOf, bool) {
	ref := hpa.Spec.ScaleTargetRef
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		d.InvalidTarget(err)
		return scaleOf{}, false
	}
	mappings, err := c.mapper.RESTMappings(schema.GroupKind{Group: gv.Group, Kind: ref.Kind})
	if err != nil {
		d.UnknownTarget(err)
		return scaleOf{}, false
	}
	s, err := c.scale(ctx, hpa.Namespace, ref.Name, mappings)
	if err != nil {
		d.NotFound(err)
		return scaleOf{}, false
	}
	d.Found(s.read())
	return s, true
}

// scale reads the scale of the object of that name that one of the resources has; the first error counts.
func (c *controller) scale(ctx context.Context, namespace, name string, mappings []*meta.RESTMapping) (scaleOf, error) {
	first := errors.New("unrecognized resource")
	for i, m := range mappings {
		if c.scales != nil {
			if direct := c.scales.Scale(ctx, m.Resource, namespace, name); direct != nil {
				return scaleOf{resource: m.Resource, direct: direct}, nil
			}
		}
		object, err := c.dynamic.Resource(m.Resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{}, "scale")
		if err == nil {
			return scaleOf{resource: m.Resource, object: object}, nil
		}
		if i == 0 {
			first = err
		}
	}
	return scaleOf{}, first
}

// tries is how often the controller writes a scale that others write too.
const tries = 5

// rescale writes a scale.
func rescale(ctx context.Context, client dynamic.Interface, s scaleOf, replicas int32) (err error) {
	if s.object == nil {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(s.direct)
		if err != nil {
			return fmt.Errorf("encode scale: %w", err)
		}
		s.object = &unstructured.Unstructured{Object: fields}
	}
	scales := client.Resource(s.resource).Namespace(s.object.GetNamespace())
	for range tries {
		if err = unstructured.SetNestedField(s.object.Object, int64(replicas), "spec", "replicas"); err != nil {
			return fmt.Errorf("set replicas: %w", err)
		}
		if _, err = scales.Update(ctx, s.object, metav1.UpdateOptions{}, "scale"); !apierrors.IsConflict(err) {
			return err
		}
		latest, unread := scales.Get(ctx, s.object.GetName(), metav1.GetOptions{}, "scale")
		if unread != nil {
			return err
		}
		s.object = latest
	}
	return err
}
