// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/agent/simulated"
)

func nodesFrom(file string) options.APIServer {
	return options.APIServer{Simulated: options.Simulated{NodesFile: file}}
}

// awaitNodes waits for nodes of a kind.
func awaitNodes(t *testing.T, c kubernetes.Interface, count int, is func(*corev1.Node) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	found := map[string]bool{}
	lw := cache.NewListWatchFromClient(c.CoreV1().RESTClient(), "nodes", "", fields.Everything())
	if _, err := watchtools.UntilWithSync(ctx, lw, &corev1.Node{}, nil, func(e watch.Event) (bool, error) {
		if n, ok := e.Object.(*corev1.Node); ok {
			found[n.Name] = is(n)
		}
		n := 0
		for _, ok := range found {
			if ok {
				n++
			}
		}
		return n == count, nil
	}); err != nil {
		t.Fatalf("await %d nodes: %v, there are %v", count, err, found)
	}
}

func ready(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// TestSimulatedNodesFromAFile starts the guide's example, and adds a node of its own to be simulated.
func TestSimulatedNodesFromAFile(t *testing.T) {
	s := embedtest.Start(t, &embed.Server{APIServer: nodesFrom("../examples/simulated/nodes.yaml")})
	c := s.Client()
	awaitNodes(t, c, 4, func(n *corev1.Node) bool {
		return ready(n) && n.Labels[corev1.LabelTopologyZone] == "north-b" && n.Labels["pool"] == "general" &&
			n.Status.Allocatable.Cpu().MilliValue() == 15500
	})
	awaitNodes(t, c, 2, func(n *corev1.Node) bool {
		gpus := n.Status.Capacity["example.com/gpu"]
		return ready(n) && gpus.Value() == 8 && len(n.Spec.Taints) > 0 && n.Spec.Taints[0].Key == "example.com/gpu"
	})
	if _, err := c.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "guest", Labels: map[string]string{"mortise.dev/simulate": "true"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitNodes(t, c, 1, func(n *corev1.Node) bool {
		return n.Name == "guest" && ready(n) && n.Labels["mortise.dev/simulated"] == "true" && n.Status.Allocatable.Pods().Value() > 0
	})
}

func TestWrongSimulatedNodesAreRefused(t *testing.T) {
	wrong := filepath.Join(t.TempDir(), "nodes.yaml")
	if err := os.WriteFile(wrong, []byte(
		"apiVersion: config.mortise.dev/v1alpha1\nkind: SimulatedNodes\ngroups: [{namePrefix: a, count: -1}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		server *embed.Server
		want   string
	}{
		{&embed.Server{APIServer: nodesFrom(wrong)}, "read simulated nodes " + wrong + ": groups[0].count: Invalid value: -1: want 1 or more"},
		{&embed.Server{APIServer: nodesFrom(wrong + ".none")}, "no such file"},
		{&embed.Server{APIServer: nodesFrom(wrong), Node: embed.NodeNone}, "--simulated-nodes: the node is none, not simulated"},
		{&embed.Server{APIServer: nodesFrom(wrong), Nodes: 3}, "--simulated-nodes and --nodes exclude each other"},
	} {
		err := c.server.Start(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("start says %v, want %s", err, c.want)
		}
		if err == nil {
			if err := c.server.Stop(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestSimulatedNodesOfAnEarlierStart: nobody would run the pods that are placed on them.
func TestSimulatedNodesOfAnEarlierStart(t *testing.T) {
	dir := t.TempDir()
	start := func(mode embed.NodeMode) (kubernetes.Interface, func()) {
		s := &embed.Server{DataDir: dir, Node: mode}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop := sync.OnceFunc(func() {
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(stop)
		c, err := kubernetes.NewForConfig(s.Config())
		if err != nil {
			t.Fatal(err)
		}
		return c, stop
	}
	c, stop := start(embed.NodeSimulated)
	awaitNodes(t, c, 1, ready)
	// A node that joined from another process.
	if _, err := c.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "joined", Labels: map[string]string{simulated.Label: "true"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	stop()
	c, stop = start(embed.NodeSimulated)
	awaitNodes(t, c, 1, ready)
	stop()
	c, _ = start(embed.NodeNone)
	all, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(all.Items) != 1 || all.Items[0].Name != "joined" {
		t.Errorf("after a start without simulated nodes there are %d, among them %v", len(all.Items), all.Items)
	}
}
