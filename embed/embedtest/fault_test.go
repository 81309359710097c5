// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// late is the delay of faults that have one.
const late = 10 * time.Second

// faulty returns a client for which one fault goes wrong.
func faulty(cluster *embed.Server, f embedtest.Fault) corev1client.ConfigMapInterface {
	return kubernetes.NewForConfigOrDie(embedtest.WithFaults(cluster.Config(), f)).CoreV1().ConfigMaps("default")
}

// TestFaultsOfWrites has each fault of a write go wrong: what the client gets and after how long, and whether and when the server has done
// what the request says.
func TestFaultsOfWrites(t *testing.T) {
	says := func(text string) func(error) bool {
		return func(err error) bool { return err != nil && strings.Contains(err.Error(), text) }
	}
	well := func(err error) bool { return err == nil }
	first := bare(t)
	for kind, want := range map[embedtest.FaultKind]struct {
		err           func(error) bool
		stored        bool
		stores, takes time.Duration
	}{
		embedtest.Drop:        {err: says("connection reset by peer")},
		embedtest.LoseAnswer:  {err: says("connection reset by peer"), stored: true},
		embedtest.Delay:       {err: well, stored: true, stores: late, takes: late},
		embedtest.DelayAnswer: {err: well, stored: true, takes: late},
		embedtest.Duplicate:   {err: apierrors.IsAlreadyExists, stored: true},
		embedtest.TooMany:     {err: well, stored: true, stores: time.Second, takes: time.Second}, // client-go does it again after Retry-After
		embedtest.WebhookDead: {err: apierrors.IsInternalError},
		embedtest.CrashBefore: {err: says("the controller has crashed")},
		embedtest.CrashAfter:  {err: says("the controller has crashed"), stored: true},
	} {
		t.Run(string(kind), func(t *testing.T) {
			embedtest.Bubble(t, first, func(t *testing.T, cluster *embed.Server) {
				embedtest.Advance(t, time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // the server stores whole seconds
				maps := faulty(cluster, embedtest.Fault{Kind: kind, At: 2, Delay: late})
				if _, err := maps.Create(t.Context(), configMap("usual"), metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				_, err := maps.Create(t.Context(), configMap("m"), metav1.CreateOptions{})
				if took := time.Since(began); !want.err(err) || took != want.takes {
					t.Errorf("the client gets %v after %v, want it after %v", err, took, want.takes)
				}
				m, err := cluster.Client().CoreV1().ConfigMaps("default").Get(t.Context(), "m", metav1.GetOptions{})
				if stored := err == nil; stored != want.stored {
					t.Fatalf("it is stored: %t, want %t: %v", stored, want.stored, err)
				}
				if after := m.CreationTimestamp.Sub(began); want.stored && after != want.stores {
					t.Errorf("it is stored after %v, want %v", after, want.stores)
				}
				if _, err := maps.Create(t.Context(), configMap("next"), metav1.CreateOptions{}); err != nil {
					t.Errorf("the write after the fault: %v", err)
				}
			})
		})
	}
}

// TestConflictOfTheThirdUpdate: updates and patches count, creates do not.
func TestConflictOfTheThirdUpdate(t *testing.T) {
	maps := faulty(bare(t), embedtest.Fault{Kind: embedtest.Conflict, At: 3, Resource: "configmaps"})
	m, err := maps.Create(t.Context(), configMap("m"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		m.Data = map[string]string{"n": fmt.Sprint(i)}
		updated, err := maps.Update(t.Context(), m, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) != (i == 2) || i != 2 && err != nil {
			t.Errorf("update %d: %v", i+1, err)
		}
		if err == nil {
			m = updated
		}
	}
}

// TestFaultsOfWatches has each fault of a watch go wrong.
func TestFaultsOfWatches(t *testing.T) {
	first := bare(t)
	bubble := func(name embedtest.FaultKind, f func(*testing.T, *embed.Server, corev1client.ConfigMapInterface, watch.Interface)) {
		t.Run(string(name), func(t *testing.T) {
			embedtest.Bubble(t, first, func(t *testing.T, cluster *embed.Server) {
				maps := faulty(cluster, embedtest.Fault{Kind: name, At: 1, Delay: late})
				w, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: fmt.Sprint(cluster.Revision())})
				if err != nil {
					t.Fatal(err)
				}
				defer w.Stop()
				f(t, cluster, maps, w)
			})
		})
	}
	ends := func(t *testing.T, w watch.Interface) {
		began := time.Now()
		if e, ok := <-w.ResultChan(); ok {
			t.Errorf("the watch has %v", e)
		}
		if took := time.Since(began); took != late {
			t.Errorf("the watch ends after %v, want %v", took, late)
		}
	}
	bubble(embedtest.EndWatch, func(t *testing.T, _ *embed.Server, maps corev1client.ConfigMapInterface, w watch.Interface) {
		ends(t, w)
		again, err := maps.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		again.Stop()
	})
	bubble(embedtest.Gone, func(t *testing.T, _ *embed.Server, maps corev1client.ConfigMapInterface, w watch.Interface) {
		ends(t, w)
		if _, err := maps.Watch(t.Context(), metav1.ListOptions{}); !apierrors.IsResourceExpired(err) {
			t.Errorf("the next watch gets %v, want 410", err)
		}
		again, err := maps.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		again.Stop()
	})
	bubble(embedtest.LagWatch, func(t *testing.T, cluster *embed.Server, _ corev1client.ConfigMapInterface, w watch.Interface) {
		began := time.Now()
		if _, err := cluster.Client().CoreV1().ConfigMaps("default").Create(t.Context(), configMap("m"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		e := <-w.ResultChan()
		if m, ok := e.Object.(*corev1.ConfigMap); !ok || m.Name != "m" || time.Since(began) < late {
			t.Errorf("the watch has %v after %v, want the object after %v", e, time.Since(began), late)
		}
	})
}

// TestCrash: a controller that crashes after a write is started again, and finds what it has written.
func TestCrash(t *testing.T) {
	faults := []embedtest.Fault{{Kind: embedtest.CrashAfter, At: 1}}
	embedtest.Replay(t, bare(t), 1, faults, func(r *embedtest.Run) {
		starts := 0
		r.Control(func(ctx context.Context, config *rest.Config) error {
			starts++
			maps := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")
			_, err := maps.Create(ctx, configMap("m"), metav1.CreateOptions{})
			if starts == 1 && (err == nil || ctx.Err() == nil) || starts == 2 && !apierrors.IsAlreadyExists(err) {
				r.Errorf("start %d: the create gets %v", starts, err)
			}
			<-ctx.Done()
			return nil
		})
		r.Advance(time.Minute)
		if starts != 2 {
			r.Errorf("the controller has started %d times, want twice", starts)
		}
	})
}
