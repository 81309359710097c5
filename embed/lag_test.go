// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// lagging is an engine whose copy stays where it is while others write.
type lagging struct {
	store.Decorator
	at     atomic.Int64 // the revision of reads that may lag; 0: the newest
	lagged atomic.Int64 // how many did
}

func (*lagging) Lags() {}

func (e *lagging) copied(ctx context.Context) int64 {
	if at := e.at.Load(); at > 0 && store.LagAllowed(ctx) {
		e.lagged.Add(1)
		return at
	}
	return 0
}

func (e *lagging) Get(ctx context.Context, key string) (*store.Record, int64, error) {
	at := e.copied(ctx)
	if at == 0 {
		return e.Decorator.Get(ctx, key)
	}
	p, err := e.Decorator.Range(ctx, store.Range{Prefix: key, Limit: 1, Revision: at})
	if err != nil || len(p.Records) == 0 || p.Records[0].Key != key {
		return nil, at, err
	}
	return p.Records[0], at, nil
}

func (e *lagging) Range(ctx context.Context, r store.Range) (store.Page, error) {
	if r.Revision == 0 {
		r.Revision = e.copied(ctx)
	}
	return e.Decorator.Range(ctx, r)
}

// TestLag: what other servers have written meanwhile changes no outcome of a write, although the server reads an older state first.
func TestLag(t *testing.T) {
	ctx := t.Context()
	engine := &lagging{Decorator: store.Decorator{Engine: memory.Open(memory.Options{})}}
	s := &embed.Server{Controllers: []string{"none"}, Engine: engine}
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	maps := s.Client().CoreV1().ConfigMaps("default")
	for name, c := range map[string]struct {
		meanwhile func(was *corev1.ConfigMap) error
		write     func(was *corev1.ConfigMap) (*corev1.ConfigMap, error)
		want      string // of the object after it, or of the error
	}{
		"update of the newest": {
			write: func(was *corev1.ConfigMap) (*corev1.ConfigMap, error) {
				newest, err := maps.Get(ctx, was.Name, metav1.GetOptions{})
				if err != nil {
					return nil, err
				}
				newest.Data["b"] = "2"
				return maps.Update(ctx, newest, metav1.UpdateOptions{})
			},
			want: "map[a:other b:2]",
		},
		"update of an older one": {
			write: func(was *corev1.ConfigMap) (*corev1.ConfigMap, error) {
				return maps.Update(ctx, was, metav1.UpdateOptions{})
			},
			want: "Conflict",
		},
		"patch": {
			write: func(was *corev1.ConfigMap) (*corev1.ConfigMap, error) {
				return patch(ctx, s, was.Name, `{"data":{"b":"2"}}`)
			},
			want: "map[a:other b:2]",
		},
		"patch that would have changed nothing": {
			write: func(was *corev1.ConfigMap) (*corev1.ConfigMap, error) {
				return patch(ctx, s, was.Name, `{"data":{"a":"1"}}`)
			},
			want: "map[a:1]",
		},
		"patch that changes nothing": {
			write: func(was *corev1.ConfigMap) (*corev1.ConfigMap, error) {
				return patch(ctx, s, was.Name, `{"data":{"a":"other"}}`)
			},
			want: "map[a:other]",
		},
		"dry run": {
			write: func(was *corev1.ConfigMap) (*corev1.ConfigMap, error) {
				return maps.Patch(ctx, was.Name, types.MergePatchType, []byte(`{"data":{"b":"2"}}`), metav1.PatchOptions{DryRun: []string{"All"}})
			},
			want: "map[a:other b:2]",
		},
		"patch that the older one refuses": {
			meanwhile: func(was *corev1.ConfigMap) error {
				err := maps.Delete(ctx, was.Name, metav1.DeleteOptions{})
				if err == nil {
					_, err = maps.Create(ctx, configMap(was.Name, "new"), metav1.CreateOptions{})
				}
				return err
			},
			write: func(was *corev1.ConfigMap) (*corev1.ConfigMap, error) {
				now, err := maps.Get(ctx, was.Name, metav1.GetOptions{})
				if err != nil {
					return nil, err
				}
				return patch(ctx, s, was.Name, fmt.Sprintf(`{"metadata":{"uid":%q},"data":{"b":"2"}}`, now.UID))
			},
			want: "map[a:new b:2]",
		},
		"patch of what is gone": {
			meanwhile: func(was *corev1.ConfigMap) error { return maps.Delete(ctx, was.Name, metav1.DeleteOptions{}) },
			write: func(was *corev1.ConfigMap) (*corev1.ConfigMap, error) {
				return patch(ctx, s, was.Name, `{"data":{"a":"1"}}`)
			},
			want: "NotFound",
		},
	} {
		t.Run(name, func(t *testing.T) {
			was, err := maps.Create(ctx, configMap(strings.ReplaceAll(name, " ", "-"), "1"), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			engine.at.Store(engine.Revision())
			engine.lagged.Store(0)
			defer engine.at.Store(0)
			if c.meanwhile == nil {
				c.meanwhile = func(was *corev1.ConfigMap) error {
					_, err := patch(ctx, s, was.Name, `{"data":{"a":"other"}}`)
					return err
				}
			}
			if err := c.meanwhile(was); err != nil {
				t.Fatal(err)
			}
			out, err := c.write(was)
			got := string(apierrors.ReasonForError(err))
			if err == nil {
				got = fmt.Sprint(out.Data)
			}
			if got != c.want {
				t.Errorf("got %s, %v, want %s", got, err, c.want)
			}
			if engine.lagged.Load() == 0 {
				t.Error("no read lagged")
			}
		})
	}
}

// TestLagOfNamespaces: an object can be created at once in a namespace that another server has made.
func TestLagOfNamespaces(t *testing.T) {
	ctx := t.Context()
	engine := &lagging{Decorator: store.Decorator{Engine: memory.Open(memory.Options{})}}
	s := &embed.Server{Controllers: []string{"none"}, Engine: engine}
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	engine.at.Store(engine.Revision())
	core := s.Client().CoreV1()
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "new"}}
	if _, err := core.Namespaces().Create(ctx, space, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	engine.lagged.Store(0)
	if _, err := core.ConfigMaps("new").Create(ctx, configMap("a", "1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if engine.lagged.Load() == 0 {
		t.Error("no read lagged")
	}
	_, err := core.ConfigMaps("none").Create(ctx, configMap("a", "1"), metav1.CreateOptions{})
	if want := `namespaces "none" not found`; err == nil || err.Error() != want {
		t.Errorf("without a namespace: %v, want %s", err, want)
	}
}

func patch(ctx context.Context, s interface{ Client() kubernetes.Interface }, name, body string) (*corev1.ConfigMap, error) {
	return s.Client().CoreV1().ConfigMaps("default").Patch(ctx, name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
}

func configMap(name, a string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": a}}
}
