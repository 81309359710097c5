// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/mortise-dev/mortise/resource"
)

// Scale has the columns of the scale subresource. Those of custom resources have slightly different descriptions.
type Scale struct{ Custom bool }

// Definitions returns the four columns.
func (s Scale) Definitions() []metav1.TableColumnDefinition {
	docs := metav1.ObjectMeta{}.SwaggerDoc()
	desired, available := autoscalingv1.ScaleSpec{}.SwaggerDoc()["replicas"], autoscalingv1.ScaleStatus{}.SwaggerDoc()["replicas"]
	name, age := "", "string"
	if s.Custom {
		name, age, desired, available = "name", "date", "Number of desired replicas", "Number of actual replicas"
	}
	return []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: name, Description: docs["name"]},
		{Name: "Desired", Type: "integer", Description: desired},
		{Name: "Available", Type: "integer", Description: available},
		{Name: "Age", Type: age, Description: docs["creationTimestamp"]},
	}
}

// Cells returns the cells of a Scale.
func (Scale) Cells(obj resource.Object) ([]any, error) {
	s, ok := obj.(*autoscalingv1.Scale)
	if !ok {
		return nil, fmt.Errorf("make table of a scale: it is a %T", obj)
	}
	return []any{s.Name, int64(s.Spec.Replicas), int64(s.Status.Replicas), Age(s.GetCreationTimestamp())}, nil
}

// Age returns the time since t, as kubectl shows it.
func Age(t metav1.Time) string {
	if t.IsZero() {
		return "<unknown>" // upstream's word
	}
	return duration.HumanDuration(time.Since(t.Time))
}
