// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command metrics serves metrics.k8s.io/v1beta1 with made-up figures, the same for every node and pod, so that kubectl top works in a
// cluster of simulated nodes. It registers itself.
package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mortise-dev/mortise/embed/aggregated"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	s := &aggregated.Server{
		Config: config, Service: "metrics",
		Resources: []aggregated.Resource{{
			Group: "metrics.k8s.io", Version: "v1beta1", Name: "nodes", Kind: "NodeMetrics",
			List: func(ctx context.Context, _ *aggregated.Request) (l aggregated.List, err error) {
				nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
				if err != nil {
					return l, err
				}
				for i := range nodes.Items {
					l.Items = append(l.Items, figures(&nodes.Items[i], map[string]any{"usage": usage("250m", "512Mi")}))
				}
				return l, nil
			},
		}, {
			Group: "metrics.k8s.io", Version: "v1beta1", Name: "pods", Kind: "PodMetrics", Namespaced: true,
			List: func(ctx context.Context, r *aggregated.Request) (l aggregated.List, err error) {
				pods, err := client.CoreV1().Pods(r.Namespace).List(ctx, metav1.ListOptions{})
				if err != nil {
					return l, err
				}
				for i := range pods.Items {
					var containers []any
					for _, c := range pods.Items[i].Spec.Containers {
						containers = append(containers, map[string]any{"name": c.Name, "usage": usage("10m", "32Mi")})
					}
					l.Items = append(l.Items, figures(&pods.Items[i], map[string]any{"containers": containers}))
				}
				return l, nil
			},
		}},
	}
	if err := s.Start(ctx); err != nil {
		return err
	}
	if err := s.Register(ctx, cmp.Or(os.Getenv("HOST"), "127.0.0.1")); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "metrics: serving on", s.Address())
	<-ctx.Done()
	return s.Stop()
}

func usage(cpu, memory string) map[string]any { return map[string]any{"cpu": cpu, "memory": memory} }

// figures are the metrics of an object, which has its name and labels.
func figures(of metav1.Object, content map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: content}
	u.SetNamespace(of.GetNamespace())
	u.SetName(of.GetName())
	u.SetLabels(of.GetLabels())
	u.Object["timestamp"] = time.Now().UTC().Format(time.RFC3339)
	u.Object["window"] = "10s"
	return u
}
