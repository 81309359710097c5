// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// as sends a request as a user.
func as(s *Server, name, method, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	who := &user.DefaultInfo{Name: name}
	if name == "root" {
		who.Groups = []string{user.SystemPrivilegedGroup}
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), who)))
	return w
}

// TestClassTold checks that every response, including a rejection, has upstream's headers with the request's flow
// schema and priority level.
func TestClassTold(t *testing.T) {
	d := converse(t, configMaps())
	for _, who := range []string{"root", "jane"} {
		h := as(d.Server, who, "GET", "/api/v1/configmaps", "").Header()
		for _, name := range []string{"X-Kubernetes-Pf-Flowschema-Uid", "X-Kubernetes-Pf-Prioritylevel-Uid"} {
			if _, ok := h[name]; !ok {
				t.Errorf("%s is not told %s", who, name)
			}
		}
	}
	if h := as(d.Server, "root", "GET", "/debug/pprof/cmdline", "").Header(); h["X-Kubernetes-Pf-Flowschema-Uid"] != nil {
		t.Error("what lasts long is of no class")
	}
}

// TestBodiesBounded checks that bodies beyond the limit are rejected, except administrators', and that finished
// requests free their share.
func TestBodiesBounded(t *testing.T) {
	d := converse(t, configMaps())
	d.bounds.bodyLimit = 100
	const at = "/api/v1/namespaces/ns/configmaps"
	body := fmt.Sprintf(`{"metadata":{"name":"a"},"data":{"k":%q}}`, strings.Repeat("x", 200))
	if w := as(d.Server, "jane", "POST", at, body); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" {
		t.Errorf("a body of %d bytes: %d", len(body), w.Code)
	}
	for range 3 {
		if w := as(d.Server, "jane", "POST", at, `{"metadata":{"name":"b"}}`); w.Code == http.StatusTooManyRequests {
			t.Errorf("a small body: %d", w.Code)
		}
	}
	if w := as(d.Server, "root", "POST", at, body); w.Code != http.StatusCreated {
		t.Errorf("an administrator's: %d %s", w.Code, w.Body)
	}
	if n := d.bounds.bodies.Load(); n != 0 {
		t.Errorf("%d bytes are left over", n)
	}
}

// TestWatchesBounded checks that a user has a limited number of watches and streams, and an administrator any number.
func TestWatchesBounded(t *testing.T) {
	b := newBounds(&Bounds{Watches: new(2)})
	jane, root := &user.DefaultInfo{Name: "jane"}, &user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}
	leave, _ := b.lasting(jane, 1)
	again, _ := b.lasting(jane, 1)
	if _, ok := b.lasting(jane, 1); ok {
		t.Error("a third was let in")
	}
	for range 5 {
		if _, ok := b.lasting(root, 1); !ok {
			t.Error("an administrator was not let in")
		}
	}
	leave()
	third, ok := b.lasting(jane, 1)
	if !ok {
		t.Error("none was let in after one had left")
	}
	again()
	third()
	if len(b.watches) != 0 {
		t.Errorf("left over: %v", b.watches)
	}
}

// TestHeadsOfWatchesBounded checks that the size of a watch's request head counts too.
func TestHeadsOfWatchesBounded(t *testing.T) {
	watch := func(query, header string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/api/v1/configmaps?watch=1&labelSelector="+query, http.NoBody)
		r.Header.Set("X-Large", header)
		return r
	}
	if n := weight(watch("a", "b")); n != 1 {
		t.Errorf("a small watch counts as %d", n)
	}
	b, jane := newBounds(&Bounds{Watches: new(50)}), &user.DefaultInfo{Name: "jane"}
	for name, r := range map[string]*http.Request{
		"selector": watch(strings.Repeat("k", 1<<20), ""),
		"header":   watch("a", strings.Repeat("x", 1<<20)),
	} {
		leave, ok := b.lasting(jane, weight(r))
		if !ok {
			t.Errorf("one watch with a large %s is refused", name)
			continue
		}
		if _, ok := b.lasting(jane, weight(r)); ok {
			t.Errorf("a second watch with a large %s is let in", name)
		}
		leave()
	}
	if len(b.watches) != 0 {
		t.Errorf("left over: %v", b.watches)
	}
}

// TestConnectionsBounded checks the limits of connections of one address and of all, and that the machine's own
// connections are not limited.
func TestConnectionsBounded(t *testing.T) {
	remote := func(ip string) net.Conn {
		return &addressed{addr: &net.TCPAddr{IP: net.ParseIP(ip), Port: 1}}
	}
	l := (&Bounds{Connections: new(3), ConnectionsPerClient: new(2)}).connections()
	var open []net.Conn
	enter := func(ip string, want bool) {
		t.Helper()
		c, ok := l.enter(remote(ip))
		if ok != want {
			t.Errorf("a connection from %s: let in %v", ip, ok)
		}
		if ok {
			open = append(open, c)
		}
	}
	enter("192.0.2.1", true)
	enter("192.0.2.1", true)
	enter("192.0.2.1", false)
	enter("192.0.2.2", true)
	enter("192.0.2.3", false)
	enter("127.0.0.1", true)
	for _, c := range open {
		_ = c.Close()
		_ = c.Close() // counts once
	}
	if l.open != 0 || len(l.byOne) != 0 {
		t.Errorf("left over: %d, %v", l.open, l.byOne)
	}
}

type addressed struct {
	net.Conn
	addr net.Addr
}

func (a *addressed) RemoteAddr() net.Addr { return a.addr }
func (a *addressed) Close() error         { return nil }

// TestGoaway checks that an HTTP/2 connection gets a GOAWAY, and that an HTTP/1 connection does not.
func TestGoaway(t *testing.T) {
	h := goaway(1, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for major, want := range map[int]string{1: "", 2: "close"} {
		r := httptest.NewRequest("GET", "/", nil).WithContext(context.Background())
		r.ProtoMajor = major
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Header().Get("Connection"); got != want {
			t.Errorf("HTTP/%d: Connection %q", major, got)
		}
	}
}

type anybody struct{}

func (anybody) Authorize(context.Context, *authorize.Attributes) (authorize.Decision, string, error) {
	return authorize.Allow, "", nil
}

// TestTurnsOfThisProcess checks that while users' writes use all their turns, a component of this process writes
// immediately, and another user waits.
func TestTurnsOfThisProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := store.New(memory.Open(memory.Options{}))
		s, err := New(Options{Store: engine, Kinds: []*resource.Descriptor{configMaps()}, Authorizers: []authorize.Authorizer{anybody{}}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			s.end()
			s.lifetime.Group.Wait()
			if err := engine.Close(); err != nil {
				t.Errorf("close store: %v", err)
			}
		}()
		for range 4 * min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) {
			if turn := s.turns.writes.Take(t.Context(), "joe", time.Second); turn != nil {
				defer turn.End()
			}
		}
		began := time.Now()
		c := kubernetes.NewForConfigOrDie(s.Config(&user.DefaultInfo{Name: user.KubeScheduler})).CoreV1().ConfigMaps("ns")
		if _, err := c.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "own"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("a part of this process waited %v", took)
		}
		if w := as(s, "jane", "POST", "/api/v1/namespaces/ns/configmaps", `{"metadata":{"name":"a"}}`); w.Code != http.StatusCreated ||
			time.Since(began) == 0 {
			t.Errorf("another user: %d after %v", w.Code, time.Since(began))
		}
	})
}
