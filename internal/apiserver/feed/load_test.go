// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/store"
)

// TestLoadFails for one object: the others are loaded, and that one is applied later, though nothing else happens.
func TestLoadFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.write(map[string]string{"configmaps/ns/a": "fails once", "configmaps/ns/b": "1"})
		x := &index{}
		defer b.start(x.follower("x", configMaps))()
		if err := b.feed.Check("x"); err == nil || !strings.Contains(err.Error(), `configmaps "ns/a": not now`) ||
			x.has() != "map[configmaps/ns/b:1]" {
			t.Errorf("the follower has %s, and the check says %v", x.has(), err)
		}
		time.Sleep(firstRetry) // of the bubble
		synctest.Wait()
		if err := b.feed.Check("x"); err != nil || x.has() != "map[configmaps/ns/a:fails once configmaps/ns/b:1]" {
			t.Errorf("the follower has %s, and the check says %v", x.has(), err)
		}
	})
}

// TestSnapshot lists the objects of one namespace or of all, and none of a resource that the server does not have.
func TestSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.write(map[string]string{"configmaps/a/x": "1", "configmaps/a/y": "2", "configmaps/b/x": "3", "secrets/a/x": "4"})
		var got []string
		load := func(ctx context.Context, s *Snapshot) error {
			for _, c := range []struct {
				r         schema.GroupResource
				namespace string
			}{{configMaps, ""}, {configMaps, "a"}, {configMaps, "c"}, {schema.GroupResource{Resource: "pods"}, ""}} {
				objs, err := s.List(ctx, c.r, c.namespace)
				if err != nil {
					return err
				}
				texts := ""
				for _, obj := range objs {
					texts += text(obj)
				}
				got = append(got, texts)
			}
			return nil
		}
		defer b.start(Follower{Name: "x", Resources: []schema.GroupResource{configMaps}, Load: load})()
		if want := []string{"123", "12", "", ""}; !slices.Equal(got, want) {
			t.Errorf("listed %q, want %q", got, want)
		}
	})
}

// TestBackground: nobody waits for a follower in the background, and it is given all changes.
func TestBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		x, release := &index{}, make(chan struct{})
		x.fails = func(*Change) error { <-release; return nil }
		f := x.follower("x", configMaps)
		f.Background = true
		defer b.start(f)()
		b.feed.Wait(t.Context(), configMaps, b.write(map[string]string{"configmaps/ns/a": "1"}))
		close(release)
		synctest.Wait()
		if x.has() != "map[configmaps/ns/a:1]" {
			t.Errorf("the follower has %s", x.has())
		}
	})
}

// TestWanted: a follower that nobody needs yet is given nothing, and nobody waits for it. When somebody needs it, it is loaded.
func TestWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		x, wanted := &index{}, make(chan struct{})
		f := x.follower("x", configMaps)
		f.Wanted = wanted
		source := &breaking{Source: b.engine}
		b.source = source
		defer b.start(f)()
		revision := b.write(map[string]string{"configmaps/ns/a": "1"})
		b.feed.Wait(t.Context(), configMaps, revision+1000)
		source.fail(store.ErrCompacted)
		time.Sleep(lastRetry) // of the bubble
		synctest.Wait()
		if x.loads > 0 || len(x.seen) > 0 {
			t.Errorf("a follower that nobody needs was loaded %d times, and given %d changes", x.loads, len(x.seen))
		}
		close(wanted)
		synctest.Wait()
		if x.has() != "map[configmaps/ns/a:1]" {
			t.Errorf("when it is needed, the follower has %s", x.has())
		}
		b.feed.Wait(t.Context(), configMaps, revision)
		b.feed.Wait(t.Context(), configMaps, b.write(map[string]string{"configmaps/ns/b": "1"}))
		if x.has() != "map[configmaps/ns/a:1 configmaps/ns/b:1]" || x.loads != 1 {
			t.Errorf("the follower has %s, and was loaded %d times", x.has(), x.loads)
		}
	})
}

// TestNamespace: a follower of one namespace is given no changes of others, which are not even decoded, and nobody waits for it longer.
func TestNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		x := &index{}
		f := x.follower("x", configMaps)
		f.Namespace = "kube-system"
		defer b.start(f)()
		b.write(map[string]string{"configmaps/kube-system/a": "1", "configmaps/ns/a": "1", "configmaps/ns/b": "broken"})
		revision := b.write(map[string]string{"configmaps/ns/a": ""})
		b.feed.Wait(t.Context(), configMaps, revision)
		if x.has() != "map[configmaps/kube-system/a:1]" || len(x.seen) != 1 {
			t.Errorf("the follower has %s of %d changes", x.has(), len(x.seen))
		}
		if err := b.feed.Check("x"); err != nil {
			t.Errorf("an object of another namespace was decoded: %v", err)
		}
	})
}
