// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/aggregated"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

var greetings = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "greetings"}

// shelf keeps objects in memory.
type shelf struct {
	mu       sync.Mutex
	revision int
	objects  map[types.NamespacedName]aggregated.Object
	watches  *watch.Broadcaster
}

func newShelf() *shelf {
	return &shelf{objects: map[types.NamespacedName]aggregated.Object{}, watches: watch.NewBroadcaster(100, watch.WaitIfChannelFull)}
}

func at(r *aggregated.Request, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: name}
}

func (s *shelf) list(_ context.Context, r *aggregated.Request) (aggregated.List, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := aggregated.List{Items: slices.SortedFunc(maps.Values(s.objects), func(a, b aggregated.Object) int {
		return slices.Compare([]string{a.GetNamespace(), a.GetName()}, []string{b.GetNamespace(), b.GetName()})
	})}
	l.ResourceVersion = strconv.Itoa(s.revision)
	return l, nil
}

func (s *shelf) put(e watch.EventType, key types.NamespacedName, obj aggregated.Object) aggregated.Object {
	obj = obj.DeepCopyObject().(aggregated.Object)
	s.revision++
	obj.SetResourceVersion(strconv.Itoa(s.revision))
	if e == watch.Deleted {
		delete(s.objects, key)
	} else {
		s.objects[key] = obj
	}
	_ = s.watches.Action(e, obj)
	return obj
}

func (s *shelf) create(_ context.Context, r *aggregated.Request, obj aggregated.Object) (aggregated.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := at(r, obj.GetName())
	if s.objects[key] != nil {
		return nil, apierrors.NewAlreadyExists(greetings.GroupResource(), obj.GetName())
	}
	obj.SetUID(types.UID("u" + obj.GetName()))
	obj.SetCreationTimestamp(metav1.NewTime(time.Unix(1700000000, 0)))
	return s.put(watch.Added, key, obj), nil
}

func (s *shelf) update(_ context.Context, r *aggregated.Request, obj aggregated.Object) (aggregated.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.objects[at(r, r.Name)]
	switch {
	case old == nil:
		return nil, apierrors.NewNotFound(greetings.GroupResource(), r.Name)
	case obj.GetResourceVersion() != "" && obj.GetResourceVersion() != old.GetResourceVersion():
		return nil, apierrors.NewConflict(greetings.GroupResource(), r.Name, nil)
	}
	return s.put(watch.Modified, at(r, r.Name), obj), nil
}

func (s *shelf) delete(_ context.Context, r *aggregated.Request) (aggregated.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.objects[at(r, r.Name)]
	if old == nil {
		return nil, apierrors.NewNotFound(greetings.GroupResource(), r.Name)
	}
	return s.put(watch.Deleted, at(r, r.Name), old), nil
}

func (s *shelf) watch(context.Context, *aggregated.Request) (watch.Interface, error) {
	return s.watches.Watch()
}

// plant is a cluster with a server of greetings and of one message behind it.
func plant(t *testing.T) (*embed.Server, *aggregated.Server) {
	t.Helper()
	cluster := embedtest.Start(t, &embed.Server{Node: embed.NodeNone, Controllers: []string{"namespace"}})
	shelf := newShelf()
	t.Cleanup(shelf.watches.Shutdown)
	s := &aggregated.Server{
		Config: cluster.Config(),
		Resources: []aggregated.Resource{{
			Group: "example.com", Version: "v1", Name: "greetings", Kind: "Greeting", ShortNames: []string{"gr"}, Namespaced: true,
			List: shelf.list, Watch: shelf.watch, Create: shelf.create, Update: shelf.update, Delete: shelf.delete,
			Columns: []metav1.TableColumnDefinition{{Name: "Message", Type: "string"}},
			Cells: func(obj aggregated.Object) []any {
				m, _, _ := unstructured.NestedString(obj.(*unstructured.Unstructured).Object, "spec", "message")
				return []any{m}
			},
			Schema: &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}, Description: "Greeting says something.",
				Properties: map[string]spec.Schema{
					"spec": {SchemaProps: spec.SchemaProps{Type: []string{"object"},
						Properties: map[string]spec.Schema{"message": *spec.StringProperty()}}},
				}}},
		}, {
			Group: "example.com", Version: "v1", Name: "customresource", Kind: "CustomResource",
			Answer: func(w http.ResponseWriter, r *http.Request) {
				_ = json.NewEncoder(w).Encode(map[string]any{"message": "Hello", "user": aggregated.From(r).User.GetName(),
					"groups": aggregated.From(r).User.GetGroups()})
			},
		}},
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Register(t.Context(), "127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	available(t, cluster.Config(), "v1.example.com")
	return cluster, s
}

// available waits until an APIService is.
func available(t *testing.T, config *rest.Config, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	registrations := dynamic.NewForConfigOrDie(config).Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1",
		Resource: "apiservices"})
	w, err := registrations.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	last := any(nil)
	for e := range w.ResultChan() {
		conditions, _, _ := unstructured.NestedSlice(e.Object.(*unstructured.Unstructured).Object, "status", "conditions")
		last = conditions
		for _, c := range conditions {
			if c := c.(map[string]any); c["type"] == "Available" && c["status"] == "True" {
				// The watch may be ahead of the server's routes; what is written here is not answered before they know.
				if _, err := registrations.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"seen":"available"}}}`),
					metav1.PatchOptions{}); err != nil {
					t.Fatal(err)
				}
				return
			}
		}
	}
	t.Fatalf("%s did not become available: %v", name, last)
}

func greeting(name, message string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Greeting", "metadata": map[string]any{"name": name}, "spec": map[string]any{"message": message},
	}}
}

// TestVerbs drives all verbs through the cluster with client-go.
func TestVerbs(t *testing.T) {
	cluster, _ := plant(t)
	all := dynamic.NewForConfigOrDie(cluster.Config()).Resource(greetings)
	c, ctx := all.Namespace("default"), t.Context()
	watching, err := c.Watch(ctx, metav1.ListOptions{LabelSelector: "seen=yes"})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	for _, g := range []*unstructured.Unstructured{greeting("a", "hello"), greeting("b", "good day")} {
		if g.GetName() == "b" {
			g.SetLabels(map[string]string{"seen": "yes"})
		}
		if _, err := c.Create(ctx, g, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if e := <-watching.ResultChan(); e.Type != watch.Added || e.Object.(*unstructured.Unstructured).GetName() != "b" {
		t.Errorf("watched %v of %v", e.Type, e.Object)
	}
	if _, err := c.Create(ctx, greeting("a", "again"), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("created twice: %v", err)
	}
	got, err := c.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || got.GetNamespace() != "default" {
		t.Fatalf("get: %v, %v", got, err)
	}
	if _, err := c.Get(ctx, "c", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get what is not there: %v", err)
	}
	for _, p := range []struct {
		kind types.PatchType
		body string
	}{{types.MergePatchType, `{"spec":{"message":"bye"}}`},
		{types.JSONPatchType, `[{"op":"add","path":"/metadata/labels","value":{"x":"y"}}]`}} {
		if got, err = c.Patch(ctx, "a", p.kind, []byte(p.body), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if m, _, _ := unstructured.NestedString(got.Object, "spec", "message"); m != "bye" || got.GetLabels()["x"] != "y" {
		t.Errorf("patched: %v", got.Object)
	}
	got.SetResourceVersion("1")
	if _, err := c.Update(ctx, got, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("updated what had changed: %v", err)
	}
	list, err := all.List(ctx, metav1.ListOptions{LabelSelector: "x=y"})
	if err != nil || len(list.Items) != 1 || list.GetKind() != "GreetingList" || list.Items[0].GetKind() != "Greeting" {
		t.Errorf("list: %v, %v", list, err)
	}
	if list, err = c.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=b"}); err != nil || len(list.Items) != 1 {
		t.Errorf("list by name: %v, %v", list, err)
	}
	if list, err = all.Namespace("other").List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("list of another namespace: %v, %v", list, err)
	}
	if _, err := c.List(ctx, metav1.ListOptions{FieldSelector: "spec.message=b"}); !apierrors.IsBadRequest(err) {
		t.Errorf("list by a field that cannot be selected: %v", err)
	}
	partial, err := metadata.NewForConfigOrDie(cluster.Config()).Resource(greetings).Namespace("default").List(ctx, metav1.ListOptions{})
	if err != nil || len(partial.Items) != 2 || partial.Items[0].UID != "ua" {
		t.Errorf("metadata: %v, %v", partial, err)
	}
	if err := c.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if err := c.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if e := <-watching.ResultChan(); e.Type != watch.Deleted {
		t.Errorf("watched %v", e.Type)
	}
}

// TestDocuments finds the group in the cluster's discovery, the table's columns, and the schema in OpenAPI.
func TestDocuments(t *testing.T) {
	cluster, _ := plant(t)
	if _, err := dynamic.NewForConfigOrDie(cluster.Config()).Resource(greetings).Namespace("default").Create(t.Context(),
		greeting("a", "hello"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	raw := cluster.Client().Discovery().RESTClient()
	b, err := raw.Get().AbsPath("/apis/example.com/v1/namespaces/default/greetings").SetHeader("Accept",
		"application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(b, &table); err != nil {
		t.Fatal(err)
	}
	if len(table.ColumnDefinitions) != 2 || table.ColumnDefinitions[1].Name != "Message" ||
		!cmp.Equal(table.Rows[0].Cells, []any{"a", "hello"}) {
		t.Errorf("table: %s", b)
	}
	var groups []*metav1.APIGroup
	var lists []*metav1.APIResourceList
	eventually(t, func() (err error) {
		groups, lists, err = cluster.Client().Discovery().ServerGroupsAndResources()
		return err // the version is stale until its server was asked
	})
	if !slices.ContainsFunc(groups, func(g *metav1.APIGroup) bool { return g.Name == "example.com" }) {
		t.Error("the group is not listed")
	}
	i := slices.IndexFunc(lists, func(l *metav1.APIResourceList) bool { return l.GroupVersion == "example.com/v1" })
	if i < 0 {
		t.Fatal("the version is not listed")
	}
	verbs := map[string][]string{}
	for _, r := range lists[i].APIResources {
		verbs[r.Name] = r.Verbs
	}
	want := map[string][]string{"customresource": {"get", "list"},
		"greetings": {"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}}
	if d := cmp.Diff(want, verbs); d != "" {
		t.Errorf("resources (-want +got):\n%s", d)
	}
	for path, part := range map[string][]string{
		"/openapi/v3/apis/example.com/v1": {"components", "schemas", "com.example.v1.Greeting", "properties", "spec", "properties", "message",
			"type"},
		"/openapi/v2": {"definitions", "com.example.v1.Greeting", "properties", "spec", "properties", "message", "type"},
	} {
		eventually(t, func() error {
			b, err := raw.Get().AbsPath(path).DoRaw(t.Context())
			if err != nil {
				return err
			}
			var doc map[string]any
			if err := json.Unmarshal(b, &doc); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if v, _, _ := unstructured.NestedFieldNoCopy(doc, part...); v != "string" {
				return fmt.Errorf("%s: %v is %v", path, part, v)
			}
			return nil
		})
	}
}

// eventually asks until it is answered: what other servers tell of themselves is fetched in the background, from when they become
// available.
func eventually(t *testing.T, ask func() error) {
	t.Helper()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for late := time.After(time.Minute); ; {
		err := ask()
		if err == nil {
			return
		}
		select {
		case <-look.C:
		case <-late:
			t.Fatal(err)
		}
	}
}

// TestWhoAsks shows that the server knows users by the front proxy, by their own certificates and tokens, and nobody by headers alone; and
// that it asks the cluster what they may.
func TestWhoAsks(t *testing.T) {
	cluster, s := plant(t)
	client := cluster.Client()
	if _, err := client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"example.com"}, Resources: []string{"customresource"},
			Verbs: []string{"get", "list"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"},
		Subjects: []rbacv1.Subject{{Kind: "User", Name: "jane", APIGroup: rbacv1.GroupName}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const path = "/apis/example.com/v1/customresource"
	direct := &rest.Config{Host: "https://" + s.Address().String(), TLSClientConfig: rest.TLSClientConfig{CAData: s.CA()}}
	say := func(c *rest.Config, headers map[string]string) (int, string) {
		transport, err := rest.HTTPClientFor(c)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.Host+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range headers {
			r.Header.Set(k, v)
		}
		resp, err := transport.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		var said struct{ User string }
		_ = json.Unmarshal(b, &said) // a refusal has no user
		return resp.StatusCode, said.User
	}
	through := cluster.Config()
	through.Host = cluster.URL()
	certified := rest.CopyConfig(direct)
	certified.CertData, certified.KeyData = through.CertData, through.KeyData
	wrong := rest.CopyConfig(direct)
	wrong.BearerToken = "nonsense"
	for name, c := range map[string]struct {
		config  *rest.Config
		headers map[string]string
		code    int
		user    string
	}{
		"an administrator":         {through, nil, 200, "mortise-admin"},
		"as jane":                  {through, map[string]string{"Impersonate-User": "jane"}, 200, "jane"},
		"as joe":                   {through, map[string]string{"Impersonate-User": "joe"}, 403, ""},
		"own headers":              {through, map[string]string{"X-Remote-User": "jane", "X-Remote-Group": "x"}, 200, "mortise-admin"},
		"directly, certified":      {certified, nil, 200, "mortise-admin"},
		"directly, own headers":    {certified, map[string]string{"X-Remote-User": "jane"}, 200, "mortise-admin"},
		"directly, as nobody":      {direct, nil, 403, ""},
		"directly, headers alone":  {direct, map[string]string{"X-Remote-User": "jane", "X-Remote-Group": "system:masters"}, 403, ""},
		"directly, a wrong token":  {wrong, nil, 401, ""},
		"directly, wrong password": {direct, map[string]string{"Authorization": "Basic amFuZTpqYW5l"}, 403, ""},
	} {
		code, user := say(c.config, c.headers)
		if name == "an administrator" && code == 200 {
			c.user = user // whatever it is called
		}
		if code != c.code || (user != c.user && c.user != "mortise-admin") || (c.user == "mortise-admin" && user == "jane") {
			t.Errorf("%s: %d %q, want %d %q", name, code, user, c.code, c.user)
		}
	}
}

func TestWrongResourcesAreRefused(t *testing.T) {
	list := func(context.Context, *aggregated.Request) (aggregated.List, error) { return aggregated.List{}, nil }
	good := aggregated.Resource{Group: "g", Version: "v1", Name: "things", Kind: "Thing", List: list}
	for name, list := range map[string][]aggregated.Resource{
		"none": nil, "twice": {good, good}, "nameless": {{Group: "g", Version: "v1", Kind: "Thing", List: list}},
		"mute":  {{Group: "g", Version: "v1", Name: "things", Kind: "Thing"}},
		"cells": {{Group: "g", Version: "v1", Name: "things", Kind: "Thing", List: list, Columns: []metav1.TableColumnDefinition{{Name: "A"}}}},
	} {
		s := &aggregated.Server{Config: &rest.Config{Host: "https://127.0.0.1:1"}, Resources: list}
		if err := s.Start(t.Context()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
