// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	kinds "github.com/mortise-dev/mortise/resource"
)

// columns are those of both kinds. A pod uses what its containers use together.
type columns struct{}

// Definitions implements [kinds.Columns].
func (columns) Definitions() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "Name of the resource"},
		{Name: string(corev1.ResourceCPU), Type: "string", Format: "quantity"},
		{Name: string(corev1.ResourceMemory), Type: "string", Format: "quantity"},
		{Name: "Window", Type: "string", Format: "duration"},
	}
}

// Cells implements [kinds.Columns].
func (columns) Cells(obj kinds.Object) ([]any, error) {
	var cpu, memory resource.Quantity
	var window metav1.Duration
	switch m := obj.(type) {
	case *metricsv1beta1.NodeMetrics:
		cpu, memory, window = *m.Usage.Cpu(), *m.Usage.Memory(), m.Window
	case *metricsv1beta1.PodMetrics:
		for _, c := range m.Containers {
			cpu.Add(*c.Usage.Cpu())
			memory.Add(*c.Usage.Memory())
		}
		window = m.Window
	default:
		return nil, fmt.Errorf("make cells of metrics: it is a %T", obj)
	}
	return []any{obj.GetName(), cpu.String(), memory.String(), window.Duration.String()}, nil
}
