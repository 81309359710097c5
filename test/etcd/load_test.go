// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// front is one address for the clients of servers that take turns. While there is none, connections wait.
type front struct {
	listener net.Listener

	mu   sync.Mutex
	to   string        // address of the server; empty: none
	came chan struct{} // closed when there is one
	open map[net.Conn]struct{}
}

func newFront(t *testing.T) *front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	f := &front{listener: l, came: make(chan struct{}), open: map[net.Conn]struct{}{}}
	var served sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		l.Close()
		cancel()
		f.cut()
		served.Wait()
	})
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() { f.pass(ctx, c) })
		}
	})
	return f
}

func (f *front) url() string { return "https://" + f.listener.Addr().String() }

// turn passes new connections on to a server; the others stay with theirs.
func (f *front) turn(url string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.to == "" {
		close(f.came)
	}
	f.to = strings.TrimPrefix(url, "https://")
}

// cut ends all connections, and lets new ones wait.
func (f *front) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.to != "" {
		f.to, f.came = "", make(chan struct{})
	}
	for c := range f.open {
		c.Close()
	}
	clear(f.open)
}

// connect returns a connection to the server, when there is one.
func (f *front) connect(ctx context.Context, from net.Conn) net.Conn {
	for {
		f.mu.Lock()
		to, came := f.to, f.came
		f.mu.Unlock()
		if to != "" {
			if c, err := net.Dial("tcp", to); err == nil {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.open[c], f.open[from] = struct{}{}, struct{}{}
				return c
			}
			return nil
		}
		select {
		case <-came:
		case <-ctx.Done():
			return nil
		}
	}
}

func (f *front) pass(ctx context.Context, c net.Conn) {
	defer c.Close()
	to := f.connect(ctx, c)
	if to == nil {
		return
	}
	splice(c, to)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, c)
	delete(f.open, to)
}

// loaders are clients that write without a pause.
type loaders struct {
	each    []*loader
	running sync.WaitGroup
	// services is held while no Services are to be written: a kube-apiserver that starts compares addresses and ports with those of Services,
	// and ends if Services are created meanwhile, with "unable to perform initial IP and Port allocation check".
	services sync.RWMutex
	ended    atomic.Bool
}

// loader owns the objects that it writes.
type loader struct {
	t        *testing.T
	id       int
	url      string
	client   *http.Client
	services *sync.RWMutex
	known    map[string]map[string]any // by path: what the last answer said; nil: deleted

	acknowledged, retried atomic.Int64
}

func (w *loaders) add(t *testing.T, id int, url string, client *http.Client) {
	one := &loader{t: t, id: id, url: url, client: client, services: &w.services, known: map[string]map[string]any{}}
	w.each = append(w.each, one)
	w.running.Go(func() {
		for n := 0; !w.ended.Load() && !t.Failed(); n++ {
			one.round(n)
		}
	})
	t.Cleanup(w.stop)
}

func (w *loaders) stop() {
	w.ended.Store(true)
	w.running.Wait()
}

func (w *loaders) acknowledged() (n int64) {
	for _, one := range w.each {
		n += one.acknowledged.Load()
	}
	return n
}

func (w *loaders) retries() (n int64) {
	for _, one := range w.each {
		n += one.retried.Load()
	}
	return n
}

// advance returns when each writer has made n more writes.
func (w *loaders) advance(t *testing.T, n int64) {
	t.Helper()
	for _, one := range w.each {
		for to := one.acknowledged.Load() + n; one.acknowledged.Load() < to && !t.Failed(); {
			one.pace()
		}
	}
}

// pace waits as long as a read takes.
func (w *loader) pace() {
	if response, err := w.client.Get(w.url + "/version"); err == nil {
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
}

// round writes one of each.
func (w *loader) round(n int) {
	label := map[string]any{"writer": fmt.Sprint(w.id)}
	meta := func(name string) map[string]any {
		return map[string]any{"name": name, "namespace": "default", "labels": label}
	}
	name := fmt.Sprintf("w%d-%d", w.id, n)
	w.create(defaultPath+"configmaps", name, map[string]any{"metadata": meta(name), "data": map[string]any{"n": fmt.Sprint(n)}})
	w.services.RLock()
	w.create(defaultPath+"services", name, map[string]any{"metadata": meta(name), "spec": map[string]any{"type": "NodePort",
		"ports": []any{map[string]any{"port": 80.0}}}})
	w.services.RUnlock()
	w.create(defaultPath+"events", name, map[string]any{"metadata": meta(name), "reason": "Wrote", "message": "m",
		"involvedObject": map[string]any{"kind": "ConfigMap", "name": name, "namespace": "default"}})
	one := fmt.Sprint("w", w.id)
	apply := func(path string, o map[string]any) {
		w.write(http.MethodPatch, path+"?force=true&fieldManager="+one, path, "application/apply-patch+yaml", o)
	}
	apply("/apis/apps/v1/namespaces/default/deployments/"+one, map[string]any{"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": meta(one), "spec": map[string]any{"replicas": 0, "minReadySeconds": n, "selector": map[string]any{"matchLabels": label},
			"template": map[string]any{"metadata": map[string]any{"labels": label}, "spec": map[string]any{
				"containers": []any{map[string]any{"name": "c", "image": fmt.Sprint("i:", n)}}}}}})
	apply(widgetsPath+"/"+one, map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": meta(one),
		"spec": map[string]any{"size": n%10 + 1, "text": fmt.Sprint("<", n, ">")}})
	// An update with the revision as its condition.
	changed := w.known[defaultPath+"configmaps/"+name]
	if changed == nil {
		return
	}
	changed = runtime.DeepCopyJSON(changed)
	changed["data"] = map[string]any{"n": fmt.Sprint(n), "again": "true"}
	w.write(http.MethodPut, defaultPath+"configmaps/"+name, defaultPath+"configmaps/"+name, "application/json", changed)
	if n >= 20 {
		old := fmt.Sprintf("w%d-%d", w.id, n-20)
		w.services.RLock()
		w.remove(defaultPath + "services/" + old)
		w.services.RUnlock()
		w.remove(defaultPath + "configmaps/" + old)
	}
}

// create creates an object that is not there.
func (w *loader) create(collection, name string, o map[string]any) {
	w.write(http.MethodPost, collection, collection+"/"+name, "application/json", o)
}

// write sends a write, again when it was cut off, unless it was carried out.
func (w *loader) write(method, to, path, media string, o map[string]any) {
	before := w.known[path]
	for !w.t.Failed() {
		code, got, err := w.send(method, to, media, o)
		if err == nil && code < http.StatusBadRequest {
			w.known[path] = got
			w.acknowledged.Add(1)
			return
		}
		if err == nil && code != http.StatusServiceUnavailable && code != http.StatusTooManyRequests && code < http.StatusInternalServerError {
			w.t.Errorf("%s %s: %d %v", method, path, code, got)
			return
		}
		// Cut off: what the object is now tells whether the write was carried out.
		w.retried.Add(1)
		code, got = w.read(path)
		was := code == http.StatusOK && (before == nil || versionOf(got) > versionOf(before))
		if was {
			w.known[path] = got
			w.acknowledged.Add(1)
			return
		}
	}
}

// remove deletes an object.
func (w *loader) remove(path string) {
	for !w.t.Failed() {
		code, got, err := w.send(http.MethodDelete, path, "application/json", nil)
		if err == nil && (code == http.StatusOK || code == http.StatusNotFound && w.retried.Load() > 0) {
			w.known[path] = nil
			w.acknowledged.Add(1)
			return
		}
		if err == nil && code < http.StatusInternalServerError && code != http.StatusTooManyRequests {
			w.t.Errorf("delete %s: %d %v", path, code, got)
			return
		}
		w.retried.Add(1)
	}
}

// read reads an object, time and again until it is answered.
func (w *loader) read(path string) (int, map[string]any) {
	for !w.t.Failed() {
		code, got, err := w.send(http.MethodGet, path, "application/json", nil)
		if err == nil && (code == http.StatusOK || code == http.StatusNotFound) {
			return code, got
		}
		w.retried.Add(1)
	}
	return 0, nil
}

func (w *loader) send(method, path, media string, o map[string]any) (int, map[string]any, error) {
	var body io.Reader
	if o != nil {
		text, err := json.Marshal(o)
		if err != nil {
			return 0, nil, err
		}
		body = bytes.NewReader(text)
	}
	r, err := http.NewRequest(method, w.url+path, body)
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Content-Type", media)
	response, err := w.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	var got map[string]any
	text, err := io.ReadAll(response.Body)
	if err == nil {
		err = json.Unmarshal(text, &got)
	}
	return response.StatusCode, got, err
}

func versionOf(o map[string]any) int64 {
	text, _ := field(o, "metadata", "resourceVersion").(string)
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// watching is an informer of client-go.
type watching struct {
	resource, path string
	informer       cache.SharedIndexInformer
	listed         atomic.Int64 // lists, and watches that begin with all objects

	mu   sync.Mutex
	last map[string]int64 // revision by key
	seen chan struct{}    // closed and replaced at each event
}

// inform starts an informer, and waits until it has the objects.
func inform(t *testing.T, config *rest.Config, group, version, resource string) *watching {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	must(t, err)
	w := &watching{resource: resource, last: map[string]int64{}, seen: make(chan struct{})}
	w.path = "/api/" + version + "/" + resource
	if group != "" {
		w.path = "/apis/" + group + "/" + version + "/" + resource
	}
	objects := client.Resource(schema.GroupVersionResource{Group: group, Version: version, Resource: resource})
	w.informer = cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			w.listed.Add(1)
			return objects.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			if o.SendInitialEvents != nil && *o.SendInitialEvents {
				w.listed.Add(1)
			}
			return objects.Watch(ctx, o)
		},
	}, &unstructured.Unstructured{}, 0, cache.Indexers{})
	_, err = w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { w.see(t, o) },
		UpdateFunc: func(_, o any) { w.see(t, o) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			w.see(t, o)
		},
	})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { w.informer.RunWithContext(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	if !cache.WaitForCacheSync(t.Context().Done(), w.informer.HasSynced) {
		t.Fatalf("the informer of %s does not begin", resource)
	}
	return w
}

// see notes an event. An object's revision does not fall.
func (w *watching) see(t *testing.T, object any) {
	o := object.(*unstructured.Unstructured)
	revision, _ := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	w.mu.Lock()
	defer w.mu.Unlock()
	key := o.GetNamespace() + "/" + o.GetName()
	if revision < w.last[key] {
		t.Errorf("the informer of %s sees %s at revision %d after %d", w.resource, key, revision, w.last[key])
	}
	w.last[key] = revision
	close(w.seen)
	w.seen = make(chan struct{})
}

func (w *watching) lists() int { return int(w.listed.Load()) }

// await returns when the informer has seen an object.
func (w *watching) await(t *testing.T, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		w.mu.Lock()
		_, ok := w.last[key]
		seen := w.seen
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-seen:
		case <-ctx.Done():
			t.Fatalf("the informer of %s has not seen %s", w.resource, key)
		}
	}
}

// settle compares the informer's objects with those of a server, which do not change any more.
func (w *watching) settle(t *testing.T, s *server) {
	t.Helper()
	end := fmt.Sprint("end-", w.resource)
	switch w.resource {
	case "widgets":
		s.create(t, widgetsPath, named(end, map[string]any{"apiVersion": "example.com/v1", "kind": "Widget"}))
	case "services":
		s.create(t, defaultPath+"services", named(end, map[string]any{"spec": map[string]any{"ports": []any{map[string]any{"port": 80}}}}))
	default:
		s.create(t, defaultPath+w.resource, named(end, nil))
	}
	w.await(t, "default/"+end)
	want := items(t, s, w.path)
	has := map[string]any{}
	for _, o := range w.informer.GetStore().List() {
		u := o.(*unstructured.Unstructured)
		has[u.GetNamespace()+"/"+u.GetName()] = u.GetResourceVersion()
	}
	for name, o := range want {
		if has[name] != field(o, "metadata", "resourceVersion") {
			t.Errorf("the informer of %s has %s at %v, the server at %v", w.resource, name, has[name], field(o, "metadata", "resourceVersion"))
		}
	}
	if len(has) != len(want) {
		t.Errorf("the informer of %s has %d objects, the server %d", w.resource, len(has), len(want))
	}
	t.Logf("the informer of %s has the %d objects of the server; it has listed %d times", w.resource, len(want), w.lists())
}
