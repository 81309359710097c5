// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/resource"
)

func next(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e := <-w.ResultChan():
		return e
	case <-time.After(20 * time.Second):
		t.Fatal("no event came")
		return watch.Event{}
	}
}

func TestWatchList(t *testing.T) {
	f := start(t)
	for name, config := range clients(t, f) {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			c := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps(strings.ToLower(strings.ReplaceAll(name, " ", "-")))
			made, err := c.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			yes := true
			w, err := c.Watch(ctx, metav1.ListOptions{SendInitialEvents: &yes, AllowWatchBookmarks: true,
				ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			if e := next(t, w); e.Type != watch.Added || e.Object.(*corev1.ConfigMap).UID != made.UID {
				t.Errorf("first event %v", e)
			}
			e := next(t, w)
			if b, ok := e.Object.(*corev1.ConfigMap); e.Type != watch.Bookmark || !ok ||
				b.Annotations[metav1.InitialEventsAnnotationKey] != "true" || b.ResourceVersion == "" {
				t.Errorf("second event %v", e)
			}
			if err := c.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			e = next(t, w)
			gone, ok := e.Object.(*corev1.ConfigMap)
			if e.Type != watch.Deleted || !ok || gone.ResourceVersion == made.ResourceVersion {
				t.Errorf("third event %v", e)
			}
		})
	}
}

func TestWatchSelectsTransitions(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	c := kubernetes.NewForConfigOrDie(f.inProcess).CoreV1().ConfigMaps("ns")
	first, err := c.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	label := func(v string) {
		t.Helper()
		if _, err := c.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"l":`+v+`}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, v := range []string{`"in"`, `"in"`, `"out"`, `"in"`, `null`} {
		label(v)
	}
	want := []watch.EventType{watch.Added, watch.Deleted, watch.Added, watch.Deleted}
	// once live or from the feed, once from before the feed's beginning
	for _, from := range []string{first.ResourceVersion, "2"} {
		w, err := c.Watch(ctx, metav1.ListOptions{ResourceVersion: from, LabelSelector: "l=in"})
		if err != nil {
			t.Fatal(err)
		}
		for i, typ := range want {
			if e := next(t, w); e.Type != typ {
				t.Errorf("from %s: event %d is %v, want %v", from, i, e.Type, typ)
			}
		}
		w.Stop()
	}
}

// TestWatchFromTheFuture: a watch from a revision that the store has not reached, which another server may have told to the client, sends
// no event up to it.
func TestWatchFromTheFuture(t *testing.T) {
	c := kubernetes.NewForConfigOrDie(start(t).tls).CoreV1().ConfigMaps("ns")
	create := func(name string) int64 {
		t.Helper()
		made, err := c.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		revision, err := strconv.ParseInt(made.ResourceVersion, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	known := create("known")
	w, err := c.Watch(t.Context(), metav1.ListOptions{ResourceVersion: strconv.FormatInt(known+1, 10)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if seen := create("seen-elsewhere"); seen != known+1 {
		t.Fatalf("the next revision is %d, want %d", seen, known+1)
	}
	create("new")
	if e := next(t, w); e.Type != watch.Added || e.Object.(*corev1.ConfigMap).Name != "new" {
		t.Errorf("watched %v %v", e.Type, e.Object)
	}
}

func TestWatchOfForgottenRevision(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	c := kubernetes.NewForConfigOrDie(f.tls).CoreV1().ConfigMaps("ns")
	var last *corev1.ConfigMap
	for _, n := range []string{"a", "b", "c"} {
		var err error
		if last, err = c.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: n}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	rv, err := strconv.ParseInt(last.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	page, err := c.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "d"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := f.opts.Store.Compact(ctx, rv+1); err != nil {
		t.Fatal(err)
	}
	w, err := c.Watch(ctx, metav1.ListOptions{ResourceVersion: "2"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if e := next(t, w); e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Errorf("watched %v %v", e.Type, e.Object)
	}
	_, err = c.List(ctx, metav1.ListOptions{Continue: page.Continue})
	if !apierrors.IsResourceExpired(err) {
		t.Fatalf("list: %v", err)
	}
	fresh := err.(apierrors.APIStatus).Status().ListMeta.Continue
	rest, err := c.List(ctx, metav1.ListOptions{Continue: fresh})
	if err != nil || len(rest.Items) != 3 {
		t.Errorf("list with the fresh token: %v, %v", rest, err)
	}
}

func TestAnonymousAndTables(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	get := func(config *rest.Config, path, accept string) (int, string) {
		t.Helper()
		tr, err := rest.TransportFor(config)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if c, ok := tr.(interface{ CloseIdleConnections() }); ok {
				c.CloseIdleConnections()
			}
		}()
		r, err := http.NewRequestWithContext(ctx, "GET", config.Host+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", accept)
		resp, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if strings.Contains(path, "watch=1") {
			line, err := bufio.NewReader(resp.Body).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			return resp.StatusCode, line
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	anonymous := rest.AnonymousClientConfig(f.tls)
	for path, want := range map[string]int{"/livez": 200, "/readyz?verbose": 200, "/version": 200, "/metrics": 403,
		"/api/v1/namespaces/ns/configmaps": 403, "/nope": 403} {
		if code, body := get(anonymous, path, "application/json"); code != want {
			t.Errorf("anonymous %s: %d %s", path, code, body)
		}
	}
	if code, body := get(f.tls, "/metrics", ""); code != 200 || !strings.Contains(body, `apiserver_request_total{`) {
		t.Errorf("metrics: %d", code)
	}
	if _, err := kubernetes.NewForConfigOrDie(f.tls).CoreV1().ConfigMaps("ns").Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io"
	for _, path := range []string{"/api/v1/namespaces/ns/configmaps", "/api/v1/namespaces/ns/configmaps/a"} {
		code, body := get(f.tls, path, asTable)
		var table metav1.Table
		if err := json.Unmarshal([]byte(body), &table); err != nil || code != 200 || len(table.Rows) != 1 || table.Kind != "Table" {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	for _, config := range []*rest.Config{f.tls, f.inProcess} {
		_, line := get(config, "/api/v1/namespaces/ns/configmaps?watch=1", asTable)
		var e struct {
			Type   string
			Object metav1.Table
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Type != "ADDED" || len(e.Object.ColumnDefinitions) == 0 {
			t.Errorf("table watch: %s", line)
		}
	}
	if code, body := get(f.tls, "/api/v1/namespaces/ns/configmaps/a", "application/yaml"); code != 200 ||
		!strings.HasPrefix(body, "apiVersion: v1\nkind: ConfigMap\n") {
		t.Errorf("YAML: %d %s", code, body)
	}
}

func serviceAccounts() *resource.Descriptor {
	empty := func() resource.Object { return &corev1.ServiceAccount{} }
	return &resource.Descriptor{
		Resource: "serviceaccounts", Singular: "serviceaccount", Kind: "ServiceAccount", ListKind: "ServiceAccountList", Namespaced: true,
		Versions: []resource.Version{{Name: "v1", New: empty, Protobuf: true, Strategic: true}}, Storage: "v1", Prefix: "serviceaccounts",
		Codec: typedCodec{empty},
	}
}

func TestTokens(t *testing.T) {
	f := start(t)
	f.AddKinds(serviceAccounts())
	account, err := f.Backend().Create(t.Context(), schema.GroupResource{Resource: "serviceaccounts"},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa"}}, false)
	if err != nil {
		t.Fatal(err)
	}
	c := claims("ns", "sa")
	c.ServiceAccountUID = string(account.GetUID())
	issued, err := f.Backend().IssueToken(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(f.tls)
	config.BearerToken = issued.Token
	_, err = kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("ns").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "system:serviceaccount:ns:sa" cannot list resource "configmaps"`) {
		t.Errorf("a service account without rights: %v", err)
	}
	config.BearerToken = issued.Token + "x"
	if _, err = kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("ns").List(t.Context(),
		metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("a wrong token: %v", err)
	}
	// an administrator may impersonate others
	config = rest.CopyConfig(f.tls)
	config.Impersonate = rest.ImpersonationConfig{UserName: "bob", Groups: []string{"g"}}
	if _, err = kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("ns").List(t.Context(),
		metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("impersonation: %v", err)
	}
}

// TestInProcessWatchEnds checks that a watch whose context ends leaves nothing behind.
func TestInProcessWatchEnds(t *testing.T) {
	f := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	w, err := kubernetes.NewForConfigOrDie(f.inProcess).CoreV1().ConfigMaps("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for e := range w.ResultChan() { // ends, or the test hangs
		if e.Type != watch.Error {
			t.Errorf("event %v", e)
		}
	}
}

// TestWatchOfAStoppedKind is a request that found its kind just before the definition changed.
func TestWatchOfAStoppedKind(t *testing.T) {
	f := start(t)
	f.registry.Kinds().Get(schema.GroupResource{Resource: "configmaps"}).Feed.Stop()
	w, err := kubernetes.NewForConfigOrDie(f.inProcess).CoreV1().ConfigMaps("ns").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	select {
	case e, ok := <-w.ResultChan():
		if ok {
			t.Errorf("the watch reports %v", e)
		}
	case <-time.After(20 * time.Second):
		t.Error("the watch goes on")
	}
}
