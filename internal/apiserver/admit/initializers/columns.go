// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package initializers

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/resource"
)

// columns shows the configured initializers between name and age. A JSON path in a definition would show only the first
// one.
type columns struct{ plain resource.Columns }

// Definitions are the columns of kubectl get.
func (c columns) Definitions() []metav1.TableColumnDefinition {
	plain := c.plain.Definitions()
	return []metav1.TableColumnDefinition{
		plain[0],
		{Name: "Initializers", Type: "string", Description: "The names of the initializers, in their order."},
		{Name: "Deadlines", Type: "string", Description: "Time for which an object may wait for each of them, and what happens then.",
			Priority: 1},
		plain[1],
	}
}

// Cells returns the cells of one configuration.
func (c columns) Cells(obj resource.Object) ([]any, error) {
	plain, err := c.plain.Cells(obj)
	if err != nil {
		return nil, err
	}
	of, err := read(obj)
	if err != nil {
		return nil, err
	}
	var names, deadlines []string
	for _, i := range of.Initializers {
		names, deadlines = append(names, i.Name), append(deadlines, fmt.Sprintf("%ds %s", i.DeadlineSeconds, i.FailurePolicy))
	}
	return []any{plain[0], strings.Join(names, ","), strings.Join(deadlines, ","), plain[1]}, nil
}
