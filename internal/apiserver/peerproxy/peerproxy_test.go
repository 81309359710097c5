// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package peerproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// other is another server, which serves the jobs of batch/v1 and, until it starts anew, nothing else.
type other struct {
	*httptest.Server
	asked     atomic.Int64
	resources atomic.Pointer[[]string]
	got       chan *http.Request
}

func newOther(t *testing.T) *other {
	o := &other{got: make(chan *http.Request, 10)}
	o.resources.Store(&[]string{"jobs"})
	o.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api":
			_ = json.NewEncoder(w).Encode(&apidiscoveryv2.APIGroupDiscoveryList{})
		case "/apis":
			o.asked.Add(1)
			g := apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: "batch"}}
			v := apidiscoveryv2.APIVersionDiscovery{Version: "v1"}
			for _, name := range *o.resources.Load() {
				v.Resources = append(v.Resources, apidiscoveryv2.APIResourceDiscovery{Resource: name})
			}
			g.Versions = append(g.Versions, v)
			custom := apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: "example.com"}, Versions: g.Versions}
			_ = json.NewEncoder(w).Encode(&apidiscoveryv2.APIGroupDiscoveryList{Items: []apidiscoveryv2.APIGroupDiscovery{g, custom}})
		default:
			body, _ := io.ReadAll(r.Body)
			o.got <- r
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, "made %s", body)
		}
	}))
	o.EnableHTTP2 = true
	o.StartTLS()
	t.Cleanup(o.Close)
	return o
}

func (o *other) address() netip.AddrPort { return netip.MustParseAddrPort(o.Listener.Addr().String()) }

// lease is the identity Lease of a server, of one of its starts.
func lease(holder string) []byte {
	l := &coordinationv1.Lease{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}}
	var b strings.Builder
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(l, &b); err != nil {
		panic(err)
	}
	return []byte(b.String())
}

var (
	jobs     = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	cronJobs = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "cronjobs"}
	widgets  = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "jobs"}
)

// until waits until the proxy finds some servers for a resource.
func until(t *testing.T, p *Proxy, changed <-chan struct{}, r schema.GroupVersionResource, want int) {
	t.Helper()
	late := time.After(time.Minute)
	for len(p.find(r)) != want {
		select {
		case <-changed:
		case <-late:
			t.Fatalf("%d servers serve %s, want %d", len(p.find(r)), r, want)
		}
	}
}

// TestProxy: a server finds another by its key, asks it what it serves, forwards such requests to it with the client's name, asks again
// when it has started anew, and forgets it when its key is gone.
func TestProxy(t *testing.T) {
	s := store.New(memory.Open(memory.Options{}))
	defer s.Close()
	o := newOther(t)
	roots := x509.NewCertPool()
	roots.AddCert(o.Certificate())
	config := &tls.Config{RootCAs: roots, ServerName: "example.com"}
	shared := func(context.Context) map[schema.GroupVersion]bool {
		return map[schema.GroupVersion]bool{widgets.GroupVersion(): true}
	}
	at := netip.MustParseAddrPort("192.0.2.1:6443")
	p := New(Options{ID: "apiserver-a", Own: at, Store: s, TLS: config, Shared: shared})
	away := New(Options{ID: "apiserver-b", Own: o.address()})
	changed := make(chan struct{}, 100)
	p.changed = func() { changed <- struct{}{} }
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	defer running.Wait()
	defer stop()
	put := func(key string, value []byte) {
		t.Helper()
		if _, err := s.Put(t.Context(), store.Op{Key: key, Value: value, Expect: store.Any}); err != nil {
			t.Fatal(err)
		}
	}
	const identity = "/registry/leases/kube-system/apiserver-b"
	put(identity, lease("first"))
	put(Prefix+"apiserver-b", away.value(1))
	until(t, p, changed, jobs, 1)
	until(t, p, changed, cronJobs, 0)
	until(t, p, changed, widgets, 0)

	serve := func(of schema.GroupVersionResource, header string) (*httptest.ResponseRecorder, bool) {
		r := httptest.NewRequest(http.MethodPost, "/apis/batch/v1/namespaces/ns/jobs?dryRun=All", strings.NewReader("a job"))
		r.Header.Set("Authorization", "Bearer secret")
		r.Header.Set("X-Remote-Group", "system:masters")
		r.Header.Set(Header, header)
		who := &user.DefaultInfo{Name: "alice", Groups: []string{"dev"}, Extra: map[string][]string{"k": {"v"}}}
		w := httptest.NewRecorder()
		return w, p.Serve(w, r.WithContext(request.WithUser(r.Context(), who)), of, t.Context())
	}
	w, did := serve(jobs, "")
	if !did || w.Code != http.StatusCreated || w.Body.String() != "made a job" {
		t.Errorf("%v: %d %s", did, w.Code, w.Body)
	}
	got := <-o.got
	if got.URL.RawQuery != "dryRun=All" || got.Header.Get(Header) != "true" || got.Header.Get("Authorization") != "" ||
		got.Header.Get("X-Remote-User") != "alice" || strings.Join(got.Header.Values("X-Remote-Group"), ",") != "dev" ||
		got.Header.Get("X-Remote-Extra-K") != "v" {
		t.Errorf("the other server gets %s %v", got.URL, got.Header)
	}
	if _, did := serve(cronJobs, ""); did {
		t.Error("a request that no server serves is forwarded")
	}
	if _, did := serve(jobs, "true"); did {
		t.Error("a request that was forwarded is forwarded again")
	}

	// A server that cannot be reached is passed over.
	put(Prefix+"apiserver-c", New(Options{ID: "apiserver-c", Own: netip.MustParseAddrPort("127.255.255.254:1")}).value(1))
	p.mu.Lock()
	p.set("apiserver-c", &Server{ID: "apiserver-c", Address: netip.MustParseAddrPort("127.255.255.254:1"),
		resources: map[schema.GroupVersionResource]bool{jobs: true}})
	p.mu.Unlock()
	for range 8 {
		if w, did := serve(jobs, ""); !did || w.Code != http.StatusCreated {
			t.Errorf("with one that cannot be reached: %v, %d %s", did, w.Code, w.Body)
		}
		<-o.got
	}

	// It renews its key, which changes nothing, and starts anew with more.
	asked := o.asked.Load()
	put(Prefix+"apiserver-b", away.value(2))
	o.resources.Store(&[]string{"jobs", "cronjobs"})
	put(identity, lease("second"))
	until(t, p, changed, cronJobs, 1)
	if now := o.asked.Load(); now != asked+1 {
		t.Errorf("it was asked %d times again", now-asked)
	}
	if _, err := s.Delete(t.Context(), Prefix+"apiserver-b", store.Any); err != nil {
		t.Fatal(err)
	}
	until(t, p, changed, cronJobs, 0)

	// The own key is there until the end.
	stop()
	running.Wait()
	if r, _, err := s.Get(t.Context(), Prefix+"apiserver-a"); r != nil || err != nil {
		t.Errorf("the own key after the end: %v, %v", r, err)
	}
}

// TestValue: the value is what kube-apiserver's storage decodes, and back.
func TestValue(t *testing.T) {
	p := New(Options{ID: "apiserver-a", Own: netip.MustParseAddrPort("[2001:db8::1]:6443")})
	if at, ok := address(p.value(3)); !ok || at != p.o.Own {
		t.Errorf("%v, %v", at, ok)
	}
	for name, value := range map[string][]byte{"nothing": nil, "no object": []byte("k8s\x00 corrupt"), "another kind": lease("x")} {
		if at, ok := address(value); ok {
			t.Errorf("%s has the address %v", name, at)
		}
	}
}

// FuzzAddress: no value of a key makes the server panic.
func FuzzAddress(f *testing.F) {
	f.Add(New(Options{ID: "apiserver-a", Own: netip.MustParseAddrPort("192.0.2.1:6443")}).value(1))
	f.Fuzz(func(t *testing.T, value []byte) {
		if at, ok := address(value); ok && !at.IsValid() {
			t.Errorf("%v", at)
		}
	})
}
