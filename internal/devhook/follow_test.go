// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devhook

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

// validating is the resource of the tests' configuration.
var validating = schema.GroupVersionResource{
	Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations",
}

// lines is what a session prints.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// take returns what was printed since the last call.
func (l *lines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// configured is a configuration with webhooks of these names, as an operator writes it.
func configured(webhooks ...string) *unstructured.Unstructured {
	var list []any
	for _, name := range webhooks {
		list = append(list, map[string]any{"name": name, "clientConfig": map[string]any{
			"service": map[string]any{"namespace": "system", "name": "operator", "path": "/" + name}, "caBundle": "b3BlcmF0b3I=",
		}})
	}
	obj := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "webhooks": list,
	}}
	obj.SetName("rules")
	obj.SetUID("1")
	obj.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: "operator", Operation: metav1.ManagedFieldsOperationUpdate,
		FieldsV1: metav1.NewFieldsV1(`{"f:webhooks":{"k:{\"name\":\"a\"}":{"f:clientConfig":{"f:service":{}}}}}`),
	}})
	return obj
}

// cluster is an API server with one configuration, in a bubble of time.
type cluster struct {
	dynamic.ResourceInterface
	t       *testing.T
	client  *fake.FakeDynamicClient
	out     lines
	session *Session
	end     context.CancelFunc
	ended   chan error
}

func newCluster(t *testing.T, obj *unstructured.Unstructured) *cluster {
	kinds := map[schema.GroupVersionResource]string{}
	for kind, resource := range Kinds() {
		kinds[resource] = kind + "List"
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, obj)
	c := &cluster{t: t, client: client, ResourceInterface: client.Resource(validating), ended: make(chan error, 1)}
	c.session = &Session{Client: client, Out: &c.out, Now: time.Now}
	return c
}

// run starts the session, and returns when it watches or has ended.
func (c *cluster) run() {
	u := &url.URL{Scheme: "https", Host: "127.0.0.1:9443"}
	var ctx context.Context
	ctx, c.end = context.WithCancel(c.t.Context())
	go func() {
		c.ended <- c.session.Run(ctx, []Configuration{{Resource: validating, Name: "rules"}}, Target{URL: u, Bundle: []byte("ca")})
	}()
	synctest.Wait()
}

// write is a write of another client.
func (c *cluster) write(obj *unstructured.Unstructured) {
	c.t.Helper()
	if _, err := c.Update(c.t.Context(), obj, metav1.UpdateOptions{}); err != nil {
		c.t.Error(err)
	}
	synctest.Wait()
}

// has is the configuration as it is.
func (c *cluster) has() *unstructured.Unstructured {
	c.t.Helper()
	obj, err := c.Get(c.t.Context(), "rules", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return obj
}

// redirected reports whether all webhooks are at the target.
func (c *cluster) redirected() bool {
	c.t.Helper()
	for _, p := range clientConfigsOf(c.has()) {
		if at, _ := p.config()["url"].(string); !strings.HasPrefix(at, "https://127.0.0.1:9443/") {
			return false
		}
	}
	return true
}

// stops ends the session and wants the configuration as it should be then.
func (c *cluster) stops(want *unstructured.Unstructured) {
	c.t.Helper()
	c.end()
	if err := <-c.ended; err != nil {
		c.t.Error(err)
	}
	c.left(want)
}

func (c *cluster) left(want *unstructured.Unstructured) {
	c.t.Helper()
	got := c.has()
	if len(got.GetAnnotations()) == 0 {
		got.SetAnnotations(nil)
	}
	if diff := cmp.Diff(want.Object, got.Object); diff != "" {
		c.t.Errorf("the configuration is left with %s", diff)
	}
}

// TestFollow redirects again what an operator writes, says who and what, and leaves what the operator wrote last.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, configured("a", "b"))
		c.run()
		c.out.take()
		if !c.redirected() {
			t.Fatalf("not redirected: %v", c.has())
		}
		with := func(change func(a map[string]any)) *unstructured.Unstructured {
			obj := c.has()
			change(clientConfigsOf(obj)[0].owner)
			return obj
		}
		for _, each := range []struct {
			write *unstructured.Unstructured
			said  string
		}{
			{configured("a", "b"), "a pointed at (service system/operator/a), b pointed at (service system/operator/b), annotation removed"},
			{with(func(a map[string]any) { a["clientConfig"].(map[string]any)["caBundle"] = "bmV3" }), "caBundle of a replaced"},
			{configured("b"), "b pointed at (service system/operator/b), a removed, annotation removed"},
			{configured("b", "c"), "b pointed at (service system/operator/b), c added (service system/operator/c), annotation removed"},
		} {
			c.write(each.write)
			want := "validatingwebhookconfigurations/rules: " + each.said + ` by "operator"; redirected again.` + "\n"
			if said := c.out.take(); said != want || !c.redirected() {
				t.Errorf("printed %q, want %q; redirected: %t", said, want, c.redirected())
			}
		}
		unrelated := c.has()
		unrelated.SetLabels(map[string]string{"a": "b"})
		c.write(unrelated)
		if said := c.out.take(); said != "" {
			t.Errorf("a label: printed %q", said)
		}
		want := configured("b", "c")
		want.SetLabels(unrelated.GetLabels())
		c.stops(want)
	})
}

// TestInjectedAuthority is kept: a client that fills in caBundles finds its own in the end, with the address of before.
func TestInjectedAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, configured("a"))
		c.run()
		injected, want := c.has(), configured("a")
		for _, obj := range []*unstructured.Unstructured{injected, want} {
			clientConfigsOf(obj)[0].config()["caBundle"] = "bmV3"
		}
		c.write(injected)
		if !c.redirected() || clientConfigsOf(c.has())[0].config()["caBundle"] == "bmV3" {
			t.Errorf("not redirected: %v", c.has())
		}
		c.stops(want)
	})
}

// TestGone ends the session when the configuration, or all that was redirected of it, goes.
func TestGone(t *testing.T) {
	for name, each := range map[string]struct {
		change func(c *cluster)
		err    string
		left   *unstructured.Unstructured
	}{
		"deleted": {func(c *cluster) {
			if err := c.Delete(c.t.Context(), "rules", metav1.DeleteOptions{}); err != nil {
				c.t.Error(err)
			}
		}, "validatingwebhookconfigurations/rules was deleted: nothing is redirected any more", nil},
		"made anew": {func(c *cluster) {
			obj := configured("a")
			obj.SetUID("2")
			c.write(obj)
		}, "validatingwebhookconfigurations/rules was deleted: nothing is redirected any more", func() *unstructured.Unstructured {
			obj := configured("a")
			obj.SetUID("2")
			return obj
		}()},
		"without the webhook": {func(c *cluster) { c.write(configured("b")) },
			`a removed, annotation removed by "operator": nothing is redirected any more`, configured("b")},
		"empty": {func(c *cluster) { c.write(configured()) }, `a removed, annotation removed by "operator": nothing is redirected`, configured()},
		"taken": {func(c *cluster) {
			obj := c.has()
			next, _, err := aim(obj, Target{URL: &url.URL{Scheme: "https", Host: "other"}, Bundle: []byte("other")}, nil)
			if err != nil || next.note(obj) != nil {
				c.t.Error(err)
			}
			c.write(obj)
		}, "another `mortise webhook dev` has redirected it", nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, configured("a"))
				c.run()
				each.change(c)
				if err := <-c.ended; err == nil || !strings.Contains(err.Error(), each.err) {
					t.Errorf("ended with %v, want %q", err, each.err)
				}
				if each.left != nil {
					c.left(each.left)
				}
			})
		})
	}
}

// TestFight ends nothing, but pauses: an operator that answers each write with its own is named, and the session goes on when it stops.
func TestFight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, configured("a"))
		c.run()
		c.out.take()
		w, err := c.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		write := func() {
			if _, err := c.Update(t.Context(), configured("a"), metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
		}
		operator := make(chan struct{})
		go func() {
			defer close(operator)
			for e := range w.ResultChan() {
				if len(e.Object.(*unstructured.Unstructured).GetAnnotations()) > 0 {
					write()
				}
			}
		}()
		c.write(configured("a"))
		fought := func(when string) {
			t.Helper()
			said := c.out.take()
			if n := strings.Count(said, "redirected again"); n != mostAgain || strings.Count(said, "\n") != mostAgain+1 || !strings.HasSuffix(said,
				"validatingwebhookconfigurations/rules was changed 11 times within a minute, at last: a pointed at (service "+
					"system/operator/a), annotation removed by \"operator\". It stays so for 1m0s, and calls do not reach the target "+
					"meanwhile. Stop the program that writes it.\n") {
				t.Errorf("%s: redirected again %d times: %q", when, n, said)
			}
		}
		fought("at first")
		time.Sleep(span - time.Second) // of the bubble
		synctest.Wait()
		if said := c.out.take(); said != "" {
			t.Errorf("in the pause: %q", said)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if said := c.out.take(); !strings.Contains(said, "redirected again") {
			t.Errorf("after the pause: %q", said)
		}
		w.Stop()
		<-operator
		time.Sleep(2 * span)
		synctest.Wait()
		if !c.redirected() {
			t.Error("the operator has stopped, and the configuration is not redirected")
		}
		c.stops(configured("a"))
	})
}

// TestWatchEnds follows through revisions that are compacted, an API server that restarts, and one that never answers; it prints a failure
// once.
func TestWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, configured("a"))
		var mu sync.Mutex
		var down error
		var last *watch.FakeWatcher
		c.client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			return down != nil, nil, down
		})
		c.client.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
			mu.Lock()
			defer mu.Unlock()
			last = watch.NewFakeWithChanSize(10, false)
			return true, last, down
		})
		watching := func() *watch.FakeWatcher {
			mu.Lock()
			defer mu.Unlock()
			return last
		}
		fails := func(err error) {
			mu.Lock()
			defer mu.Unlock()
			down = err
		}
		c.run()
		c.out.take()
		const again = "validatingwebhookconfigurations/rules: a pointed at (service system/operator/a), annotation removed by \"operator\"; " +
			"redirected again.\n"
		check := func(when, want string) {
			t.Helper()
			synctest.Wait()
			if said := c.out.take(); said != want {
				t.Errorf("%s: printed %q, want %q", when, said, want)
			}
		}

		c.write(configured("a")) // nobody is told
		watching().Error(&apierrors.NewResourceExpired("too old resource version").ErrStatus)
		time.Sleep(firstRetry) // of the bubble
		check("after 410", again)

		time.Sleep(time.Hour)
		c.write(configured("a"))
		watching().Stop() // as the API server ends each watch
		check("after the end of a watch", again)

		fails(errors.New("connection refused"))
		watching().Stop()
		time.Sleep(time.Hour)
		check("while the API server is down", "validatingwebhookconfigurations/rules: list validatingwebhookconfigurations/rules: "+
			"connection refused; trying again.\n")
		fails(apierrors.NewForbidden(validating.GroupResource(), "rules", errors.New("roles are not loaded")))
		time.Sleep(time.Minute)
		fails(nil)
		c.write(configured("a"))
		time.Sleep(lastRetry)
		check("after it has come up", again+"validatingwebhookconfigurations/rules can be watched again.\n")
		c.stops(configured("a"))
	})
}

// TestMayNotWatch is an error at once: the session would not notice changes.
func TestMayNotWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, configured("a"))
		c.client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(validating.GroupResource(), "", errors.New("not you"))
		})
		c.run()
		if err := <-c.ended; !apierrors.IsForbidden(err) {
			t.Errorf("ended with %v", err)
		}
		c.left(configured("a"))
	})
}

// TestRestoreChanged leaves what another client has written since a session was killed.
func TestRestoreChanged(t *testing.T) {
	c := newCluster(t, configured("a", "b"))
	obj := c.has()
	next, _, err := aim(obj, Target{URL: &url.URL{Scheme: "https", Host: "gone"}, Bundle: []byte("gone")}, nil)
	if err != nil || next.note(obj) != nil {
		t.Fatal(err)
	}
	moved := map[string]any{"url": "https://operator.example.com/b"}
	clientConfigsOf(obj)[1].owner["clientConfig"] = moved
	if _, err := c.Update(t.Context(), obj, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pointed, err := c.session.Pointed(t.Context())
	if err != nil || len(pointed) != 1 {
		t.Fatalf("pointed elsewhere: %v, %v", pointed, err)
	}
	if err := c.session.Restore(t.Context(), pointed); err != nil {
		t.Fatal(err)
	}
	want := configured("a", "b")
	clientConfigsOf(want)[1].owner["clientConfig"] = moved
	c.left(want)
	const said = "validatingwebhookconfigurations/rules restored, but for what has changed meanwhile: b pointed at " +
		"(https://operator.example.com/b) by \"operator\".\n"
	if got := c.out.take(); got != said {
		t.Errorf("printed %q, want %q", got, said)
	}
}

// TestWriter names the manager that has come to own an address, then one that owns an address, then the last one that wrote at all.
func TestWriter(t *testing.T) {
	entry := func(manager, second, fields string) metav1.ManagedFieldsEntry {
		at, err := time.Parse(time.RFC3339, "2026-01-02T03:04:"+second+"Z")
		if err != nil {
			t.Fatal(err)
		}
		return metav1.ManagedFieldsEntry{Manager: manager, Time: new(metav1.NewTime(at)), FieldsV1: metav1.NewFieldsV1(fields)}
	}
	const address, empty, label = `{"f:webhooks":{"k:{}":{"f:clientConfig":{"f:url":{}}}}}`,
		`{"f:webhooks":{"k:{}":{"f:clientConfig":{".":{}}}}}`, `{"f:metadata":{"f:labels":{"f:a":{}}}}`
	const bundle = `{"f:webhooks":{"k:{}":{"f:clientConfig":{"f:caBundle":{}}}}}`
	for _, each := range []struct {
		before, entries []metav1.ManagedFieldsEntry
		owned           bool
		want            string
	}{
		{[]metav1.ManagedFieldsEntry{entry("b", "01", bundle)},
			[]metav1.ManagedFieldsEntry{entry("a", "01", address), entry("b", "01", bundle)}, true, `"a"`},
		{[]metav1.ManagedFieldsEntry{entry("a", "01", label), entry("b", "01", bundle)},
			[]metav1.ManagedFieldsEntry{entry("a", "01", address), entry("b", "02", bundle)}, true, `"a"`},
		{nil, nil, true, "an unknown client"},
		{nil, []metav1.ManagedFieldsEntry{entry("a", "01", address), entry("b", "03", label), entry("c", "02", empty)}, true, `"a"`},
		{nil, []metav1.ManagedFieldsEntry{entry("a", "01", address), entry("b", "02", address)}, true, `"b"`},
		{nil, []metav1.ManagedFieldsEntry{entry("a", "01", empty), entry("b", "02", label), entry(manager, "03", label)}, true, `"b"`},
		{nil, []metav1.ManagedFieldsEntry{entry("a", "01", empty), entry(manager, "03", address)}, true,
			"another `mortise webhook dev`"},
		{nil, []metav1.ManagedFieldsEntry{entry("a", "01", empty), entry(manager, "03", address)}, false, `"a"`},
	} {
		obj := &unstructured.Unstructured{Object: map[string]any{}}
		obj.SetManagedFields(each.entries)
		if got := writer(obj, each.before, each.owned); got != each.want {
			t.Errorf("%v: %s, want %s", each.entries, got, each.want)
		}
	}
}
