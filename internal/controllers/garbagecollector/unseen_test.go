// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package garbagecollector

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// answers are a server's: there is an owner "shy" until it was asked for three times, nothing else; who answers for hung.example.com does
// not answer.
type answers struct {
	mu    sync.Mutex
	asked int
	said  []string // requests that change something
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.Path, "/hung.example.com/") {
		<-r.Context().Done()
		return nil, context.Cause(r.Context())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	code, body := http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
	switch {
	case r.Method != http.MethodGet:
		a.said = append(a.said, r.Method+" "+r.URL.Path)
		code, body = http.StatusOK, `{"kind":"Status","apiVersion":"v1","status":"Success"}`
	case strings.HasSuffix(r.URL.Path, "/shy") && a.asked < 3:
		a.asked++
		code, body = http.StatusOK, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"shy","namespace":"ns","uid":"shy"}}`
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// collect runs the queues with a graph that observe fills, and returns what was said to the server by then.
func collect(t *testing.T, lasts time.Duration, observe func(*controller)) (said, events []string) {
	synctest.Test(t, func(t *testing.T) {
		server := &answers{}
		client, err := metadata.NewForConfig(&rest.Config{Host: "http://x", Transport: server, QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		mapper := meta.NewDefaultRESTMapper(nil)
		for _, group := range []string{"", "hung.example.com", "other.example.com"} {
			mapper.Add(schema.GroupVersionKind{Group: group, Version: "v1", Kind: "Thing"}, meta.RESTScopeNamespace)
		}
		recorder := record.NewFakeRecorder(10)
		collector := controllers.Controller{Name: "gc", New: func(d *controllers.Deps) (controllers.Runner, error) {
			c := &controller{
				metadata: client, mapper: mapper, recorder: recorder, graph: newGraph(),
				queue: controllers.NewQueue[types.UID](d, "gc", 20), owners: controllers.NewQueue[ownerKey](d, "owners", 5),
				gates: gates{open: map[string]int{}, local: map[string]bool{}}, polls: map[ownerKey]time.Duration{},
			}
			observe(c)
			return controllers.RunnerFunc(c.judge), nil
		}}
		definitions := runtime.NewScheme()
		set := fake.NewClientset()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- controllers.RunWith(ctx, []controllers.Controller{collector}, &controllers.Deps{
				Client: set, Discovery: set.Discovery(), Metadata: client, Dynamic: dynamicfake.NewSimpleDynamicClient(definitions),
			}, controllers.Options{})
		}()
		time.Sleep(lasts)
		server.mu.Lock()
		said = slices.Sorted(slices.Values(server.said))
		server.mu.Unlock()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		close(recorder.Events)
		for e := range recorder.Events {
			events = append(events, e)
		}
		time.Sleep(time.Hour) // whatever timers are left run out
	})
	return said, events
}

func thing(group, namespace, name string, owners ...metav1.OwnerReference) *object {
	return &object{
		resourceKind: &resourceKind{resource: schema.GroupVersionResource{Group: group, Version: "v1", Resource: "things"}, kind: "Thing"},
		uid:          types.UID(name), namespace: namespace, name: name, version: "1", owners: owners,
	}
}

func owner(group, name string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: schema.GroupVersion{Group: group, Version: "v1"}.String(), Kind: "Thing", Name: name,
		UID: types.UID(name)}
}

// TestAHungGroupHoldsUpNoOther has more objects wait for owners in a group that does not answer than there are workers.
func TestAHungGroupHoldsUpNoOther(t *testing.T) {
	said, _ := collect(t, 10*time.Second, func(c *controller) {
		for i := range 60 {
			c.observed(thing("", "ns", fmt.Sprint("waits-", i), owner("hung.example.com", fmt.Sprint("silent-", i))))
			c.observed(thing("hung.example.com", "ns", fmt.Sprint("silent-too-", i), owner("", "gone")))
		}
		c.observed(thing("", "ns", "orphan", owner("", "gone")))
		c.observed(thing("other.example.com", "ns", "orphan-too", owner("", "gone")))
	})
	want := []string{"DELETE /api/v1/namespaces/ns/things/orphan", "DELETE /apis/other.example.com/v1/namespaces/ns/things/orphan-too"}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("while one group hangs (-want +got):\n%s", diff)
	}
}

// TestAnOwnerThatIsNeverObserved is asked for until it is gone.
func TestAnOwnerThatIsNeverObserved(t *testing.T) {
	observe := func(c *controller) { c.observed(thing("", "ns", "child", owner("other.example.com", "shy"))) }
	if said, _ := collect(t, 2*time.Second, observe); len(said) != 0 {
		t.Errorf("while its owner is there: %v", said)
	}
	said, _ := collect(t, time.Minute, observe)
	if diff := cmp.Diff([]string{"DELETE /api/v1/namespaces/ns/things/child"}, said); diff != "" {
		t.Errorf("when it is gone (-want +got):\n%s", diff)
	}
}

// TestOwnersElsewhere are told of; a cluster-wide object with an owner in a namespace is left as it is, also if its other owner is gone.
func TestOwnersElsewhere(t *testing.T) {
	said, events := collect(t, time.Minute, func(c *controller) {
		c.observed(thing("", "far", "owner"))
		c.observed(thing("", "ns", "child", owner("", "owner")))
		c.observed(thing("", "", "wide", owner("", "owner"), owner("", "gone")))
	})
	if diff := cmp.Diff([]string{"DELETE /api/v1/namespaces/ns/things/child"}, said); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want := []string{
		`Warning OwnerRefInvalidNamespace ownerRef [v1/Thing, namespace: ns, name: owner, uid: owner] does not exist in namespace "ns"`,
		`Warning OwnerRefInvalidNamespace ownerRef [v1/Thing, namespace: , name: owner, uid: owner] does not exist in namespace ""`,
	}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
