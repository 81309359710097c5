// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/election"
)

// TestElection: of two processes with controllers one runs them; when it stops, the other does; when somebody takes the
// Lease away, they stop, and begin again when it is free.
func TestElection(t *testing.T) {
	s := embedtest.Start(t, &embed.Server{Node: embed.NodeNone, Controllers: []string{"none"}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began, ended := make(chan string, 100), make(chan string, 100)
	var running atomic.Int32
	stops := map[string]context.CancelFunc{}
	done := make(chan error, 2)
	for _, name := range []string{"a", "b"} {
		probe := controllers.Controller{Name: "probe-controller", New: func(*controllers.Deps) (controllers.Runner, error) {
			return controllers.RunnerFunc(func(ctx context.Context) error {
				if n := running.Add(1); n != 1 {
					t.Errorf("%d run at a time", n)
				}
				began <- name
				<-ctx.Done()
				running.Add(-1)
				ended <- name
				return nil
			}), nil
		}}
		mine, stop := context.WithCancel(ctx)
		stops[name] = stop
		go func() {
			done <- election.Run(mine, s.Config(), election.Options{
				Component: "probe", Namespace: "kube-system", Name: "probe", Identity: name, Leader: func(bool) {},
				Logger:        slog.New(slog.DiscardHandler),
				LeaseDuration: 40 * time.Second, RenewDeadline: 5 * time.Second, RetryPeriod: 50 * time.Millisecond,
			}, func(ctx context.Context) error {
				return controllers.Run(ctx, []controllers.Controller{probe}, s.Config(), controllers.Options{})
			})
		}()
	}
	next := func(from chan string, what string) string {
		t.Helper()
		select {
		case name := <-from:
			return name
		case err := <-done:
			t.Fatalf("%s: an election ended: %v", what, err)
		case <-ctx.Done():
			t.Fatalf("%s: nobody", what)
		}
		return ""
	}
	first := next(began, "who begins")
	leases := s.Client().CoordinationV1().Leases("kube-system")
	// Somebody else takes it, for good.
	for stolen := false; !stolen; {
		lease, err := leases.Get(ctx, "probe", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = new("thief"), new(int32(3600))
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{}) // its renewal may come in between
		stolen = err == nil
	}
	if who := next(ended, "who stops"); who != first {
		t.Errorf("%s stops, %s ran", who, first)
	}
	if err := leases.Delete(ctx, "probe", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	second := next(began, "who begins again")
	stops[second]()
	if who := next(ended, "who stops again"); who != second {
		t.Errorf("%s stops, %s ran", who, second)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	third := next(began, "who takes over")
	if third == second {
		t.Errorf("%s runs, and was stopped", third)
	}
	stops[third]()
	if err := <-done; err != nil {
		t.Error(err)
	}
	lease, err := leases.Get(ctx, "probe", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "" {
		t.Errorf("%s still holds the lease", *lease.Spec.HolderIdentity)
	}
}

// TestElectingServer: a server that is told to elect holds the leases of both components while it works, as the users whose
// roles allow that.
func TestElectingServer(t *testing.T) {
	o := options.APIServer{Controllers: options.Controllers{Election: options.Election{Elect: new(true), Name: "loops"}}}
	s := embedtest.Start(t, &embed.Server{APIServer: o, Controllers: []string{"ttl", "node-lifecycle"}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := s.Client()
	for _, name := range []string{"loops", "kube-scheduler"} {
		w, err := client.CoordinationV1().Leases("kube-system").Watch(ctx,
			metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
		if err != nil {
			t.Fatal(err)
		}
		for held := false; !held; {
			e, ok := <-w.ResultChan()
			if !ok {
				t.Fatalf("nobody holds %s", name)
			}
			lease, ok := e.Object.(*coordinationv1.Lease)
			held = ok && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != ""
		}
		w.Stop()
	}
	select {
	case <-s.Settled():
	case <-ctx.Done():
		t.Fatal("the controllers do not run")
	}
	w, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if _, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for annotated := false; !annotated; {
		e, ok := <-w.ResultChan()
		if !ok {
			t.Fatal("the controllers do nothing")
		}
		node, ok := e.Object.(*corev1.Node)
		annotated = ok && node.Annotations[corev1.ObjectTTLAnnotationKey] == "0"
	}
	text, err := client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if want := `leader_election_master_status{name="kube-controller-manager"} 1`; !strings.Contains(string(text), want) {
		t.Errorf("/metrics lacks %s", want)
	}
}
