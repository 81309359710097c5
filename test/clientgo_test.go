// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/disk"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// TestLeaderElection lets two candidates stand; the leader dies without giving up its lease, and the other takes over.
func TestLeaderElection(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}})
	stand := func(ctx context.Context, name string, leads chan<- string, sees chan<- string) {
		c := cluster.Client()
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Namespace: "default", Name: "crown"}, Client: c.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: name},
			},
			LeaseDuration: 2 * time.Second, RenewDeadline: 1500 * time.Millisecond, RetryPeriod: 200 * time.Millisecond,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { leads <- name },
				OnStoppedLeading: func() {},
				OnNewLeader:      func(name string) { sees <- name },
			},
		})
	}
	leads, sees := make(chan string, 4), make(chan string, 8)
	first, die := context.WithCancel(t.Context())
	ended := make(chan struct{}, 2)
	go func() {
		stand(first, "first", leads, sees)
		ended <- struct{}{}
	}()
	if name := <-leads; name != "first" {
		t.Fatalf("%s leads, who stood alone was first", name)
	}
	second, leave := context.WithCancel(t.Context())
	go func() {
		stand(second, "second", leads, sees)
		ended <- struct{}{}
	}()
	for range 2 { // both know who leads
		if name := <-sees; name != "first" {
			t.Errorf("%s is seen to lead", name)
		}
	}
	die()
	select {
	case name := <-leads:
		if name != "second" {
			t.Errorf("%s leads after the first died", name)
		}
	case <-time.After(20 * time.Second):
		t.Error("nobody leads 20 s after the first died")
	}
	lease, err := cluster.Client().CoordinationV1().Leases("default").Get(t.Context(), "crown", metav1.GetOptions{})
	if err != nil || *lease.Spec.HolderIdentity != "second" || *lease.Spec.LeaseTransitions != 1 {
		t.Errorf("lease %v, %v", lease, err)
	}
	leave()
	<-ended
	<-ended
}

// TestEventSeries records the same event again and again: core events count, events.k8s.io has series.
func TestEventSeries(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}})
	c := cluster.Client()
	about, err := c.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "told"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	until := func(what string, is func(*eventsv1.Event) bool) {
		t.Helper()
		w, err := c.EventsV1().Events("default").Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watchtools.UntilWithoutRetry(ctx, w, func(e watch.Event) (bool, error) {
			o, ok := e.Object.(*eventsv1.Event)
			return ok && is(o), nil
		}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	series := events.NewBroadcaster(&events.EventSinkImpl{Interface: c.EventsV1()})
	if err := series.StartRecordingToSinkWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	recorder := series.NewRecorder(scheme.Scheme, "example.com/teller")
	recorder.Eventf(about, nil, corev1.EventTypeNormal, "Told", "Telling", "told %d times", 1)
	until("the first event", func(e *eventsv1.Event) bool { return e.Reason == "Told" && e.Series == nil && e.Action == "Telling" })
	recorder.Eventf(about, nil, corev1.EventTypeNormal, "Told", "Telling", "told %d times", 1)
	until("its series", func(e *eventsv1.Event) bool { return e.Reason == "Told" && e.Series != nil && e.Series.Count == 2 })
	series.Shutdown()

	old := record.NewBroadcaster(record.WithContext(ctx))
	watching := old.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.CoreV1().Events("")})
	teller := old.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "teller"})
	for range 3 {
		teller.Event(about, corev1.EventTypeWarning, "Again", "and again")
	}
	until("the count", func(e *eventsv1.Event) bool { return e.Reason == "Again" && e.DeprecatedCount == 3 })
	watching.Stop()
	old.Shutdown()
}

// TestDiscoveryCaches reads discovery once into memory and once onto disk, maps kinds with both, and sees a new kind after
// the caches are told to forget.
func TestDiscoveryCaches(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}})
	config := cluster.Config()
	heard := overhear(config)
	dir := t.TempDir()
	onDisk, err := disk.NewCachedDiscoveryClientForConfig(config, filepath.Join(dir, "discovery"), filepath.Join(dir, "http"), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	widget := schema.GroupKind{Group: "example.com", Kind: "Widget"}
	caches := map[string]discovery.CachedDiscoveryInterface{"memory": memory.NewMemCacheClient(plain), "disk": onDisk}
	for name, cache := range caches {
		groups, resources, err := cache.ServerGroupsAndResources()
		if err != nil || len(groups) < 20 || len(resources) < 22 {
			t.Errorf("%s: %d groups, %d lists of resources, %v", name, len(groups), len(resources), err)
		}
		before := heard.asked("GET")
		preferred, err := cache.ServerPreferredResources()
		if err != nil || len(preferred) < 20 || heard.asked("GET") != before {
			t.Errorf("%s: %d preferred lists, %v, %d requests more", name, len(preferred), err, heard.asked("GET")-before)
		}
		mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cache), cache, nil)
		if gvr, err := mapper.ResourceFor(schema.GroupVersionResource{Resource: "deploy"}); err != nil || gvr.Group != "apps" {
			t.Errorf("%s: deploy is %v, %v", name, gvr, err)
		}
		if _, err := mapper.RESTMapping(widget); !meta.IsNoMatchError(err) {
			t.Errorf("%s: a kind that is not there is mapped: %v", name, err)
		}
	}
	for _, o := range everyObject(t, cluster.Config()) {
		if o.GetKind() == "CustomResourceDefinition" {
			w, err := dyn.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).
				Get(t.Context(), o.GetName(), metav1.GetOptions{})
			if err != nil || w == nil {
				t.Fatal(err)
			}
		}
	}
	for name, cache := range caches {
		cache.Invalidate()
		mapper := restmapper.NewDeferredDiscoveryRESTMapper(cache)
		m, err := mapper.RESTMapping(widget)
		if err != nil || m.Resource.Resource != "widgets" || m.Scope.Name() != meta.RESTScopeNameNamespace {
			t.Errorf("%s: a kind that came is %v, %v", name, m, err)
		}
	}
	if n := heard.asked("GET", "/apis/apps/v1"); n != 0 {
		t.Errorf("groups were asked for one by one %d times: discovery is not taken as a whole", n)
	}
}

// TestScaleAndMetadata scales through the polymorphic client, a Deployment and a custom resource, and lists, patches and
// deletes objects through the metadata client.
func TestScaleAndMetadata(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}})
	everyObject(t, cluster.Config())
	c := cluster.Client()
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.Discovery()))
	scales, err := scale.NewForConfig(cluster.Config(), mapper, dynamic.LegacyAPIPathResolverFunc,
		scale.NewDiscoveryScaleKindResolver(c.Discovery()))
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	w := unstructuredOf("example.com/v1", "Widget", "w")
	w.Object["spec"] = map[string]any{"size": int64(1)}
	if _, err := dyn.Resource(widgets).Namespace("all").Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for resource, name := range map[schema.GroupResource]string{
		{Group: "apps", Resource: "deployments"}: "one", {Group: "apps", Resource: "statefulsets"}: "one",
		{Resource: "replicationcontrollers"}: "one", widgets.GroupResource(): "w",
	} {
		s, err := scales.Scales("all").Get(t.Context(), resource, name, metav1.GetOptions{})
		if err != nil {
			t.Errorf("get scale of %s: %v", resource, err)
			continue
		}
		s.Spec.Replicas = 4
		if s, err = scales.Scales("all").Update(t.Context(), resource, s, metav1.UpdateOptions{}); err != nil || s.Spec.Replicas != 4 {
			t.Errorf("scale %s: %v, %v", resource, s, err)
		}
	}
	partial, err := metadata.NewForConfig(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	deployments := partial.Resource(appsv1.SchemeGroupVersion.WithResource("deployments")).Namespace("all")
	list, err := deployments.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Generation != 2 {
		t.Errorf("metadata %v, %v", list, err)
	}
	if m, err := deployments.Patch(t.Context(), "one", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}}}`),
		metav1.PatchOptions{}); err != nil || m.Labels["a"] != "b" {
		t.Errorf("patch of metadata: %v, %v", m, err)
	}
	if err := deployments.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	version, err := c.Discovery().ServerVersion()
	if err != nil || !strings.HasPrefix(version.GitVersion, "v1.37.1") {
		t.Errorf("version %v, %v", version, err)
	}
	groups, err := c.Discovery().ServerGroups()
	if err != nil || !slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == "example.com" }) {
		t.Errorf("groups %v, %v", groups, err)
	}
}
