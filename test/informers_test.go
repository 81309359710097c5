// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	clientfeatures "k8s.io/client-go/features"
	featuretesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// watched are resources of many groups, all with an object in testdata/kubectl/objects.yaml.
var watched = []schema.GroupVersionResource{
	{Version: "v1", Resource: "pods"}, {Version: "v1", Resource: "configmaps"}, {Version: "v1", Resource: "secrets"},
	{Version: "v1", Resource: "services"}, {Version: "v1", Resource: "nodes"}, {Version: "v1", Resource: "namespaces"},
	{Group: "apps", Version: "v1", Resource: "deployments"}, {Group: "apps", Version: "v1", Resource: "statefulsets"},
	{Group: "batch", Version: "v1", Resource: "cronjobs"}, {Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
	{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"}, {Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"},
	{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, {Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims"},
}

// TestInformers fills typed, dynamic and metadata informers of many kinds, with WatchList and with a list first, and wants
// in each cache what a list says, then a change, then a deletion. The answers are compressed, as client-go asks for it.
func TestInformers(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}})
	everyObject(t, cluster.Config())
	for _, streaming := range []bool{true, false} {
		t.Run(fmt.Sprintf("WatchList %t", streaming), func(t *testing.T) {
			featuretesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, streaming)
			config := cluster.Config()
			config.WarningHandler = rest.NoWarnings{}
			heard := overhear(config)
			typed, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			dyn, err := dynamic.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			partial, err := metadata.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			types, objects, metas := informers.NewSharedInformerFactory(typed, time.Hour),
				dynamicinformer.NewDynamicSharedInformerFactory(dyn, time.Hour), metadatainformer.NewSharedInformerFactory(partial, time.Hour)
			defer func() {
				stop()
				types.Shutdown()
				objects.Shutdown()
				metas.Shutdown()
			}()
			all := map[string]cache.SharedIndexInformer{}
			for _, r := range watched {
				i, err := types.ForResource(r)
				if err != nil {
					t.Fatal(err)
				}
				all["typed "+r.Resource] = i.Informer()
				all["dynamic "+r.Resource] = objects.ForResource(r).Informer()
				all["metadata "+r.Resource] = metas.ForResource(r).Informer()
			}
			changes := newLedger(t, all)
			types.StartWithContext(ctx)
			objects.Start(ctx.Done())
			metas.Start(ctx.Done())
			late, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			for name, i := range all {
				if !cache.WaitForCacheSync(late.Done(), i.HasSynced) {
					t.Fatalf("the cache of %s is not filled after 20 s", name)
				}
			}
			for _, r := range watched {
				list, err := dyn.Resource(r).List(ctx, metav1.ListOptions{})
				if err != nil || len(list.Items) == 0 {
					t.Fatalf("list %s: %d, %v", r.Resource, len(list.Items), err)
				}
				for _, sort := range []string{"typed ", "dynamic ", "metadata "} {
					if got := len(all[sort+r.Resource].GetStore().ListKeys()); got != len(list.Items) {
						t.Errorf("the cache of %s%s holds %d objects, the list has %d", sort, r.Resource, got, len(list.Items))
					}
				}
			}
			lists, streams := heard.asked("GET", "limit=500"), heard.asked("GET", "sendInitialEvents=true")
			if want := 3 * len(watched); streaming && (streams != want || lists != 0) || !streaming && (streams != 0 || lists != want) {
				t.Errorf("%d lists and %d streams were asked for, want %d of one and none of the other", lists, streams, want)
			}
			maps := typed.CoreV1().ConfigMaps("all")
			name := fmt.Sprintf("seen-%t", streaming)
			if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := maps.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			for _, sort := range []string{"typed", "dynamic", "metadata"} {
				changes.await(sort+" configmaps", "add "+name, "delete "+name)
			}
		})
	}
}

// ledger notes what informers tell.
type ledger struct {
	t      *testing.T
	mu     sync.Mutex
	said   map[string]bool
	change chan struct{}
}

func newLedger(t *testing.T, all map[string]cache.SharedIndexInformer) *ledger {
	l := &ledger{t: t, said: map[string]bool{}, change: make(chan struct{}, 1)}
	for name, i := range all {
		note := func(what string, o any) {
			m, err := meta.Accessor(o)
			if err != nil {
				return
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.said[name+" "+what+" "+m.GetName()] = true
			select {
			case l.change <- struct{}{}:
			default:
			}
		}
		if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { note("add", o) }, UpdateFunc: func(_, o any) { note("update", o) }, DeleteFunc: func(o any) { note("delete", o) },
		}); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// await waits until an informer has told all of what.
func (l *ledger) await(informer string, what ...string) {
	l.t.Helper()
	late := time.After(20 * time.Second)
	for _, w := range what {
		for {
			l.mu.Lock()
			said := l.said[informer+" "+w]
			l.mu.Unlock()
			if said {
				break
			}
			select {
			case <-l.change:
			case <-late:
				l.t.Fatalf("%s has not told %q after 20 s", informer, w)
			}
		}
	}
}

// TestPagesAndWatches lists in pages, follows a list by a watch that retries, and waits with UntilWithSync.
func TestPagesAndWatches(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}})
	c := cluster.Client()
	maps := c.CoreV1().ConfigMaps("default")
	const n = 25
	for i := range n {
		makeConfigMap(t, maps.Create, i)
	}
	pages := 0
	p := pager.New(pager.SimplePageFunc(func(o metav1.ListOptions) (runtime.Object, error) {
		pages++
		return maps.List(t.Context(), o)
	}))
	p.PageSize = 10
	seen := map[string]bool{}
	if err := p.EachListItem(t.Context(), metav1.ListOptions{}, func(o runtime.Object) error {
		seen[o.(*corev1.ConfigMap).Name] = true
		return nil
	}); err != nil || len(seen) != n || pages != 3 {
		t.Errorf("%d objects in %d pages, %v; want %d in 3", len(seen), pages, err, n)
	}
	list, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := watchtools.NewRetryWatcherWithContext(t.Context(), list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			one := int64(1)
			o.TimeoutSeconds = &one // each watch ends soon, and the next goes on where it was
			return maps.Watch(ctx, o)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for i := range 3 {
		makeConfigMap(t, maps.Create, n+i)
		e := <-w.ResultChan()
		if m, ok := e.Object.(*corev1.ConfigMap); !ok || e.Type != watch.Added || m.Name != fmt.Sprintf("m%d", n+i) {
			t.Fatalf("event %d of the watch that retries: %#v", i, e)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	lw := cache.NewListWatchFromClient(c.CoreV1().RESTClient(), "configmaps", "default", fields.Everything())
	if _, err := watchtools.UntilWithSync(ctx, lw, &corev1.ConfigMap{}, nil, func(e watch.Event) (bool, error) {
		m, ok := e.Object.(*corev1.ConfigMap)
		if ok && m.Name == "m0" && e.Type == watch.Added { // not before it has been seen
			return false, maps.Delete(ctx, "m0", metav1.DeleteOptions{})
		}
		return ok && m.Name == "m0" && e.Type == watch.Deleted, nil
	}); err != nil {
		t.Errorf("wait for the deletion: %v", err)
	}
}
