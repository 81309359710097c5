// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated_test

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/mortise-dev/mortise/embed/aggregated"
)

// A server of greetings, one in each namespace: enough for kubectl get, describe, api-resources and explain.
func Example() {
	s := &aggregated.Server{
		// Config: how to reach the cluster
		Resources: []aggregated.Resource{{
			Group: "example.com", Version: "v1", Name: "greetings", Kind: "Greeting", Namespaced: true,
			List: func(_ context.Context, r *aggregated.Request) (aggregated.List, error) {
				g := &unstructured.Unstructured{Object: map[string]any{"message": "Hello, " + r.User.GetName()}}
				g.SetNamespace(r.Namespace)
				g.SetName("hello")
				return aggregated.List{Items: []aggregated.Object{g}, ResourceVersion: "1"}, nil
			},
			Columns: []metav1.TableColumnDefinition{{Name: "Message", Type: "string"}},
			Cells:   func(obj aggregated.Object) []any { return []any{obj.(*unstructured.Unstructured).Object["message"]} },
		}},
	}
	fmt.Println(s.Run(context.Background()))
	// Output: start aggregated server: no Config
}
