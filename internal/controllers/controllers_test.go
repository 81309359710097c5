// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/klog/v2"
)

func TestSelect(t *testing.T) {
	all := []Controller{{Name: "a-controller"}, {Name: "b-controller"}, {Name: "c"}}
	for _, c := range []struct{ selection, want, err string }{
		{"", "a-controller b-controller c", ""},
		{"*", "a-controller b-controller c", ""},
		{"none", "", ""},
		{"a", "a-controller", ""},
		{"a-controller,c", "a-controller c", ""},
		{"*,-b", "a-controller c", ""},
		{"-b,*", "a-controller c", ""},
		{"-a", "", ""},
		{"a,-a", "a-controller", ""},
		{"x,-y", "", "unknown \"x\", \"y\""},
		{"none,a", "", "none cannot be combined"},
	} {
		var selection []string
		if c.selection != "" {
			selection = strings.Split(c.selection, ",")
		}
		picked, err := Select(all, selection)
		var names []string
		for _, p := range picked {
			names = append(names, p.Name)
		}
		if got := strings.Join(names, " "); got != c.want || (err == nil) != (c.err == "") || err != nil &&
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: got %q, %v, want %q, %q", c.selection, got, err, c.want, c.err)
		}
	}
}

// shared makes Deps on empty fakes.
func shared(t *testing.T, objects ...runtime.Object) *Deps {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(objects...)
	return &Deps{Client: client, Discovery: client.Discovery(), Metadata: metadatafake.NewSimpleMetadataClient(scheme)}
}

// A controller that panics, in a worker or in a handler, or that returns, starts again after a pause that doubles; the
// other never notices.
func TestStartsAgainAlone(t *testing.T) {
	for _, how := range []string{"worker", "handler", "error"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var starts, steady []time.Duration
				wild := Controller{Name: "wild", New: func(d *Deps) (Runner, error) {
					starts = append(starts, time.Since(began))
					q := NewQueue[string](d, "wild", 2)
					err := Subscribe(d, d.Informers.Core().V1().Namespaces().Informer(), OnAny(func(ns *corev1.Namespace) {
						if how == "handler" {
							panic("handler")
						}
						q.Add(ns.Name)
					}))
					return RunnerFunc(func(ctx context.Context) error {
						if how == "error" {
							return errors.New("had enough")
						}
						return q.Run(ctx, func(context.Context, string) error { panic("worker") })
					}), err
				}}
				tame := Controller{Name: "tame", New: func(d *Deps) (Runner, error) {
					steady = append(steady, time.Since(began))
					return RunnerFunc(func(ctx context.Context) error { <-ctx.Done(); return nil }), nil
				}}
				registry := prometheus.NewRegistry()
				metrics, err := NewMetrics(registry)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() {
					done <- RunWith(ctx, []Controller{wild, tame}, shared(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}),
						Options{Metrics: metrics})
				}()
				time.Sleep(10 * time.Second)
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if diff := cmp.Diff([]time.Duration{0, 1 * time.Second, 3 * time.Second, 7 * time.Second}, starts); diff != "" {
					t.Errorf("starts of the wild one (-want +got):\n%s", diff)
				}
				if len(steady) != 1 {
					t.Errorf("the tame one started %d times", len(steady))
				}
				families, err := registry.Gather()
				if err != nil {
					t.Fatal(err)
				}
				counted := map[string]float64{}
				for _, f := range families {
					for _, m := range f.GetMetric() {
						counted[f.GetName()] += m.GetCounter().GetValue()
					}
				}
				panics := 4.0
				if how == "error" {
					panics = 0
				}
				if counted["mortise_controller_restarts_total"] != 4 || counted["mortise_controller_panics_total"] != panics {
					t.Errorf("counted %v", counted)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

// Who subscribes while it runs, to an informer that no other controller asked for, is told what there is.
func TestSubscribeWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		late := Controller{Name: "late", New: func(d *Deps) (Runner, error) {
			return RunnerFunc(func(ctx context.Context) error {
				time.Sleep(time.Second) // all informers that were asked for have been started
				r, err := SubscribeWhileRunning(d, d.Informers.Core().V1().Secrets().Informer(),
					OnAny(func(s *corev1.Secret) { seen = append(seen, s.Name) }))
				if err != nil {
					return err
				}
				select {
				case <-r.HasSyncedChecker().Done():
				case <-ctx.Done():
				}
				<-ctx.Done()
				return nil
			}), nil
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := RunWith(ctx, []Controller{late}, shared(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s"}}),
			Options{}); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"s"}, seen); diff != "" {
			t.Errorf("seen (-want +got):\n%s", diff)
		}
	})
}

// The failures of a key are logged once in its first second, and then with their count, ever more seldom.
func TestQueueLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := shared(t)
		ctx, cancel := context.WithCancel(t.Context())
		var log bytes.Buffer
		c := Controller{Name: "q", New: func(d *Deps) (Runner, error) {
			q := NewQueue[string](d, "q", 1)
			return RunnerFunc(func(ctx context.Context) error {
				q.Add("k")
				return q.Run(ctx, func(context.Context, string) error { return errors.New("the server is away") })
			}), nil
		}}
		done := make(chan error)
		go func() {
			done <- RunWith(ctx, []Controller{c}, d, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		}()
		time.Sleep(time.Hour)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		var tries []string
		for l := range strings.Lines(log.String()) {
			_, rest, ok := strings.Cut(l, "tries=")
			if n, _, _ := strings.Cut(rest, " "); ok {
				tries = append(tries, n)
			}
		}
		if got, want := strings.Join(tries, " "), "1 9 10 11 12 13 14 15 16 17 18 19 20 21"; got != want {
			t.Errorf("tries that were logged: %s, want %s:\n%s", got, want, log.String())
		}
	})
}

// A key that fails comes back after its back-off; one that is added while it is worked on is worked on once more.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := shared(t)
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		var tries []time.Duration
		c := Controller{Name: "q", New: func(d *Deps) (Runner, error) {
			q := NewQueue[string](d, "q", 3)
			return RunnerFunc(func(ctx context.Context) error {
				q.Add("k")
				q.Add("k")
				return q.Run(ctx, func(context.Context, string) error {
					if tries = append(tries, time.Since(began)); len(tries) < 3 {
						return errors.New("not yet")
					}
					if len(tries) == 3 {
						q.Add("k")
					}
					return nil
				})
			}), nil
		}}
		done := make(chan error)
		go func() { done <- RunWith(ctx, []Controller{c}, d, Options{}) }()
		time.Sleep(time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]time.Duration{0, 5 * time.Millisecond, 15 * time.Millisecond, 15 * time.Millisecond}, tries); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		time.Sleep(time.Minute)
	})
}

// An event that a controller records while it ends is no error: the broadcaster outlives the controllers.
func TestEventsAtTheEnd(t *testing.T) {
	state := klog.CaptureState()
	defer state.Restore()
	var said bytes.Buffer
	klog.LogToStderr(false)
	klog.SetOutput(&said)
	synctest.Test(t, func(t *testing.T) {
		late := Controller{Name: "late", New: func(d *Deps) (Runner, error) {
			return RunnerFunc(func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(time.Second) // all that ends with the context has ended
				d.Recorder.Event(&corev1.ObjectReference{Kind: "Node", Name: "n"}, corev1.EventTypeNormal, "Ended", "the controller ends")
				return nil
			}), nil
		}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- RunWith(ctx, []Controller{late}, shared(t), Options{}) }()
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	klog.Flush()
	if said.Len() > 0 {
		t.Errorf("logged %s", said.String())
	}
}
