// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package initializers_test lets client-go's informers and clients, and initializers written with them, meet objects that are
// not initialised yet.
package initializers_test

import (
	"context"
	"encoding/json"
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/embed/options"
)

var (
	configMaps     = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	configurations = schema.GroupVersionResource{Group: v1alpha1.Group, Version: v1alpha1.Version, Resource: v1alpha1.Resource}
)

// cluster is a server that has initializers on, with clients that see what others see, and one that sees all.
type cluster struct {
	*embed.Server
	client  kubernetes.Interface
	dynamic dynamic.Interface
	all     kubernetes.Interface
}

func start(t *testing.T, s *embed.Server) *cluster {
	t.Helper()
	if s.Controllers == nil {
		s.Controllers = []string{"none"}
	}
	s.APIServer.Admission = options.Admission{Initializers: true}
	return &cluster{embedtest.Start(t, s), kubernetes.NewForConfigOrDie(s.Config()), dynamic.NewForConfigOrDie(s.Config()),
		kubernetes.NewForConfigOrDie(seeing(s.Config()))}
}

func seeing(c *rest.Config) *rest.Config {
	c.Wrap(v1alpha1.SeeUninitialized)
	return c
}

// configure has objects of a resource of the core group, or of another, pass initializers.
func (c *cluster) configure(t *testing.T, name, group, resource string, of ...v1alpha1.Initializer) {
	t.Helper()
	for i := range of {
		of[i].Rules = []v1alpha1.Rule{{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource}}}
	}
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.InitializerConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: name}, Initializers: of,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.dynamic.Resource(configurations).Create(t.Context(), &unstructured.Unstructured{Object: u},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// initializer is a controller that does its work on each object of a resource when it is its turn, until the test ends.
func (c *cluster) initializer(t *testing.T, name string, gvr schema.GroupVersionResource, work func(u *unstructured.Unstructured) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	client := dynamic.NewForConfigOrDie(seeing(c.Config()))
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	informer := factory.ForResource(gvr).Informer()
	see := func(obj any) {
		u := obj.(*unstructured.Unstructured)
		if !v1alpha1.Turn(u, name) {
			return
		}
		u = u.DeepCopy()
		if err := work(u); err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		_, err := client.Resource(gvr).Namespace(u.GetNamespace()).Update(ctx, u, metav1.UpdateOptions{})
		if err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			t.Errorf("%s: update %s: %v", name, u.GetName(), err)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see,
		UpdateFunc: func(_, obj any) { see(obj) }}); err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
	})
	factory.WaitForCacheSync(ctx.Done())
}

// appends has an initializer add its name to a config map's data.
func appends(name string) func(u *unstructured.Unstructured) error {
	return func(u *unstructured.Unstructured) error {
		was, _, err := unstructured.NestedString(u.Object, "data", "by")
		if err == nil {
			err = unstructured.SetNestedField(u.Object, was+name+";", "data", "by")
		}
		if err != nil {
			return err
		}
		return v1alpha1.Finish(u, name)
	}
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": "x"}}}
}

// watched follows what a client is told, and returns the next events as "TYPE name".
type watched struct {
	watch.Interface
}

func follow(t *testing.T, client kubernetes.Interface, o metav1.ListOptions) watched {
	t.Helper()
	w, err := client.CoreV1().ConfigMaps("default").Watch(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return watched{w}
}

func (w watched) next(t *testing.T) (string, *corev1.ConfigMap) {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			t.Fatal("the watch ended")
		}
		m, ok := e.Object.(*corev1.ConfigMap)
		if !ok {
			t.Fatalf("%s of %v", e.Type, e.Object)
		}
		return string(e.Type) + " " + m.Name, m
	case <-t.Context().Done():
		t.Fatal("nothing came")
	}
	return "", nil
}

func (w watched) want(t *testing.T, events ...string) (last *corev1.ConfigMap) {
	t.Helper()
	for _, want := range events {
		var got string
		if got, last = w.next(t); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	return last
}

// raw asks for a path and returns the body.
func raw(t *testing.T, c rest.Interface, path, accept string, query ...string) string {
	t.Helper()
	r := c.Get().AbsPath(path).SetHeader("Accept", accept)
	for _, q := range query {
		v, err := url.ParseQuery(q)
		if err != nil {
			t.Fatal(err)
		}
		for k := range v {
			r = r.Param(k, v.Get(k))
		}
	}
	b, err := r.DoRaw(t.Context())
	if err != nil {
		t.Fatalf("%s %v as %s: %v", path, query, accept, err)
	}
	return string(b)
}

func jsonPatch(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func names(t *testing.T, client kubernetes.Interface, o metav1.ListOptions) (found []string) {
	t.Helper()
	l, err := client.CoreV1().ConfigMaps("default").List(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range l.Items {
		found = append(found, m.Name)
	}
	return found
}
