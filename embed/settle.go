// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Settle waits until nothing more happens in the cluster: no request is in progress, every informer has handled the newest revision, and
// the queue of every controller, of the scheduler and of the nodes is empty, those of controllers that [Server.Run] runs included. What
// a failed sync tries again within a second counts as work; what comes back at a later time does not. Settle never polls the API: it
// looks at the goroutines of the cluster, and lets them run while one of them can. It asks clients over HTTP/2 whether they have received
// what the API server sent; those over HTTP/1.1 it cannot ask.
//
//	create(t, cluster.Client(), deployment)
//	cluster.Settle(t) // the Deployment has its pods, or will not get them
//
// After a minute it ends the test, and logs what is at work, the newest events, the last writes, and the traces of the objects that these
// wrote. In a bubble of testing/synctest use
// function Settle of package embedtest.
func (s *Server) Settle(t T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := s.cluster.Settle(ctx)
	if err == nil {
		return
	}
	reportAll(s, t)
	t.Fatalf("settle cluster: %v", err)
}

// Run runs a controller of the test, such as the Start of a manager, beside the cluster's own until the test ends, so that [Server.Settle]
// waits for it as well. An error of the controller fails the test.
//
//	cluster.Run(t, manager.Start)
//
// Its clients may have any configuration of the cluster; [Server.As] is the fastest.
func (s *Server) Run(t T, controller func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	s.cluster.Go(func() { ended <- controller(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run controller: %v", err)
		}
	})
}

// reportAll logs the newest events of a cluster and the last writes to it.
func reportAll(s *Server, t T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
	defer cancel()
	events, err := s.Client().CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err == nil {
		newest := func(a, b corev1.Event) int {
			return cmp.Or(b.LastTimestamp.Compare(a.LastTimestamp.Time), cmp.Compare(a.Name, b.Name))
		}
		slices.SortFunc(events.Items, newest)
		for _, e := range events.Items[:min(len(events.Items), reportedWrites)] {
			t.Logf("event of %s %s: %s %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Type, e.Reason, e.Message)
		}
	}
	explainObjects(t, reportWrites(ctx, s, t, "last writes of all", url.Values{}))
}
