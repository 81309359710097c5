// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package externalmetrics

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/resource"
)

// columns shows a route's patterns, server and condition between name and age.
type columns struct{ plain resource.Columns }

// Definitions are the columns of kubectl get.
func (c columns) Definitions() []metav1.TableColumnDefinition {
	plain := c.plain.Definitions()
	return []metav1.TableColumnDefinition{
		plain[0],
		{Name: "Priority", Type: "integer", Description: "The highest one of the routes that match a request wins."},
		{Name: "Metrics", Type: "string", Description: "Patterns of metric names."},
		{Name: "Namespaces", Type: "string", Description: "Patterns of namespaces."},
		{Name: "Service", Type: "string", Description: "The server's Service."},
		{Name: "Available", Type: "string", Description: "Whether the server responds; if not, why."},
		plain[1],
	}
}

// Cells returns the cells of one route.
func (c columns) Cells(obj resource.Object) ([]any, error) {
	plain, err := c.plain.Cells(obj)
	if err != nil {
		return nil, err
	}
	of, err := read(obj)
	if err != nil {
		return nil, err
	}
	available := string(metav1.ConditionUnknown)
	if a := meta.FindStatusCondition(of.Status.Conditions, string(apiregistrationv1.Available)); a != nil {
		if available = string(a.Status); a.Status != metav1.ConditionTrue {
			available = fmt.Sprintf("%s (%s)", a.Status, a.Reason)
		}
	}
	s := &of.Spec
	patterns := func(of []string) string { return cmp.Or(strings.Join(of, ","), "*") }
	service := s.Service.Namespace + "/" + s.Service.Name
	return []any{plain[0], int64(s.Priority), patterns(s.Metrics), patterns(s.Namespaces), service, available, plain[1]}, nil
}
