// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/embed/options"
)

// TestSettle: after Settle a Deployment has its pods, and nothing more happens: the revision stays.
func TestSettle(t *testing.T) {
	for name, cluster := range map[string]*embed.Server{"port": prepared.Fork(t), "in process": prepared.ForkInProcess(t)} {
		t.Run(name, func(t *testing.T) {
			deployments := cluster.Client().AppsV1().Deployments("default")
			if _, err := deployments.Create(t.Context(), web(5), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			cluster.Settle(t)
			d, err := deployments.Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil || d.Status.ReadyReplicas != 5 {
				t.Errorf("the Deployment has %d ready pods of 5: %v", d.Status.ReadyReplicas, err)
			}
			revision := cluster.Revision()
			if err := deployments.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			cluster.Settle(t)
			if cluster.Revision() == revision {
				t.Error("the deletion changes nothing")
			}
			sets, err := cluster.Client().AppsV1().ReplicaSets("default").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(sets.Items) > 0 {
				t.Errorf("%d ReplicaSets are left: %v", len(sets.Items), err)
			}
		})
	}
}

// counter counts in an annotation up to ten, a write at a time.
func counter(config *rest.Config, began chan<- struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		factory := informers.NewSharedInformerFactory(client, 0)
		informer := factory.Core().V1().ConfigMaps().Informer()
		count := func(obj any) {
			o, ok := obj.(metav1.Object)
			if !ok || o.GetName() != "counted" || len(o.GetAnnotations()["n"]) >= 10 {
				return
			}
			m, err := client.CoreV1().ConfigMaps(o.GetNamespace()).Get(ctx, o.GetName(), metav1.GetOptions{})
			if err == nil {
				m.Annotations = map[string]string{"n": m.Annotations["n"] + "i"}
				_, _ = client.CoreV1().ConfigMaps(o.GetNamespace()).Update(ctx, m, metav1.UpdateOptions{})
			}
		}
		_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: count, UpdateFunc: func(_, now any) { count(now) }})
		if err != nil {
			return err
		}
		factory.Start(ctx.Done())
		cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
		close(began)
		<-ctx.Done()
		factory.Shutdown()
		return nil
	}
}

// TestSettleWaitsForTheTestsControllers: a controller that Run runs, over the network or in the process, has done all it does.
func TestSettleWaitsForTheTestsControllers(t *testing.T) {
	for name, config := range map[string]func(*embed.Server) *rest.Config{
		"network":    (*embed.Server).Config,
		"in process": func(s *embed.Server) *rest.Config { return s.As("me", "system:masters") },
	} {
		t.Run(name, func(t *testing.T) {
			cluster := bare(t).Fork(t)
			began := make(chan struct{})
			cluster.Run(t, counter(config(cluster), began))
			<-began
			maps := cluster.Client().CoreV1().ConfigMaps("default")
			if _, err := maps.Create(t.Context(), configMap("counted"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			cluster.Settle(t)
			m, err := maps.Get(t.Context(), "counted", metav1.GetOptions{})
			if err != nil || len(m.Annotations["n"]) != 10 {
				t.Errorf("the controller has counted to %d of 10: %v", len(m.Annotations["n"]), err)
			}
		})
	}
}

// TestSettleInVain: a controller that never rests is named, with the last writes.
func TestSettleInVain(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	explained := options.APIServer{Explain: options.Explain{Enabled: true}}
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}, APIServer: explained}).Fork(t)
	var stop atomic.Bool
	defer stop.Store(true)
	cluster.Run(t, func(context.Context) error {
		for !stop.Load() {
			// it never waits
		}
		return nil
	})
	if _, err := cluster.Client().CoreV1().ConfigMaps("default").Create(t.Context(), configMap("m"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f := &failing{TB: impatient{t, ctx}}
	cancel(errors.New("out of patience"))
	func() {
		defer func() {
			if recover() != f {
				t.Error("the wait does not fail")
			}
		}()
		cluster.Settle(f)
	}()
	for _, part := range []string{
		"out of patience; at work:", "TestSettleInVain.func", "last writes of all:", "POST /api/v1/namespaces/default/configmaps",
		"a write of configmaps m:", "Authorization: allowed", "Stages:", "created configmaps/m in namespace default",
	} {
		if !strings.Contains(f.log.String(), part) {
			t.Errorf("the log has no %q:\n%s", part, f.log.String())
		}
	}
}

// impatient is a test with a context of its own.
type impatient struct {
	testing.TB
	ctx context.Context
}

func (i impatient) Context() context.Context { return i.ctx }
