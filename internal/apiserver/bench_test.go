// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// benchServing returns a server of ConfigMaps, which ends with the benchmark.
func benchServing(b *testing.B, explain Explain) *Server {
	b.Helper()
	engine := store.New(memory.Open(memory.Options{}))
	s, err := New(Options{Store: engine, Kinds: []*resource.Descriptor{configMaps()}, Explain: explain})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		s.end()
		s.lifetime.Group.Wait()
		if err := engine.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

func benchServer(b *testing.B) *kubernetes.Clientset {
	b.Helper()
	s := benchServing(b, Explain{})
	return kubernetes.NewForConfigOrDie(protobuf(s.Config(&user.DefaultInfo{Name: "a", Groups: []string{user.SystemPrivilegedGroup}})))
}

func kilobyte(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": strings.Repeat("x", 1000)}}
}

// BenchmarkCreate measures a client's create and the server's work for it, in one process.
func BenchmarkCreate(b *testing.B) {
	c := benchServer(b).CoreV1().ConfigMaps("ns")
	var n atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.Create(b.Context(), kilobyte(fmt.Sprint("c-", n.Add(1))), metav1.CreateOptions{}); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkCreateExplained measures the server's work for a create without traces and with them, without the client's.
func BenchmarkCreateExplained(b *testing.B) {
	for _, on := range []bool{false, true} {
		b.Run(fmt.Sprintf("traces=%t", on), func(b *testing.B) {
			s := benchServing(b, Explain{On: on})
			ctx := request.WithUser(b.Context(), &user.DefaultInfo{Name: "a", Groups: []string{user.SystemPrivilegedGroup}})
			body := strings.Repeat("x", 1000)
			h := s.Handler()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r := httptest.NewRequest("POST", "/api/v1/namespaces/ns/configmaps",
					strings.NewReader(fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c-%d"},"data":{"k":%q}}`, i,
						body))).WithContext(ctx)
				r.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				if h.ServeHTTP(w, r); w.Code != http.StatusCreated {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}

// BenchmarkCreateAlone measures the server's work for a create on a goroutine with an empty stack, as with the HTTP/2
// server.
func BenchmarkCreateAlone(b *testing.B) {
	s := benchServing(b, Explain{})
	ctx := request.WithUser(b.Context(), &user.DefaultInfo{Name: "a", Groups: []string{user.SystemPrivilegedGroup}})
	h, body := s.Handler(), `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"k":"`+strings.Repeat("x", 1000)+`"}}`
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest("POST", "/api/v1/namespaces/ns/configmaps?dryRun=All", strings.NewReader(body)).WithContext(ctx)
		r.Header.Set("Content-Type", "application/json")
		w, answered := httptest.NewRecorder(), make(chan struct{})
		go func() {
			defer close(answered)
			h.ServeHTTP(w, r)
		}()
		if <-answered; w.Code != http.StatusCreated {
			b.Fatal(w.Code, w.Body)
		}
	}
}

// BenchmarkGet reads one object repeatedly.
func BenchmarkGet(b *testing.B) {
	c := benchServer(b).CoreV1().ConfigMaps("ns")
	if _, err := c.Create(b.Context(), kilobyte("a"), metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	for b.Loop() {
		if _, err := c.Get(b.Context(), "a", metav1.GetOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkList reads 1,000 objects of a kilobyte.
func BenchmarkList(b *testing.B) {
	c := benchServer(b).CoreV1().ConfigMaps("ns")
	for i := range 1000 {
		if _, err := c.Create(b.Context(), kilobyte(fmt.Sprint("c-", i)), metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	for b.Loop() {
		l, err := c.List(b.Context(), metav1.ListOptions{})
		if err != nil || len(l.Items) != 1000 {
			b.Fatal(len(l.Items), err)
		}
	}
}

// sink is a client that only counts events.
type sink struct {
	header http.Header
	events *atomic.Int64
	ready  chan struct{}
	once   sync.Once
}

func (w *sink) Header() http.Header { return w.header }
func (w *sink) WriteHeader(int)     {}
func (w *sink) Write(p []byte) (int, error) {
	w.events.Add(int64(bytes.Count(p, []byte{'\n'})))
	return len(p), nil
}
func (w *sink) Flush() { w.once.Do(func() { close(w.ready) }) }

// BenchmarkWatchFanOut measures one write and its event to 200 watchers.
func BenchmarkWatchFanOut(b *testing.B) {
	engine := store.New(memory.Open(memory.Options{}))
	s, err := New(Options{Store: engine, Kinds: []*resource.Descriptor{configMaps()}})
	if err != nil {
		b.Fatal(err)
	}
	who := &user.DefaultInfo{Name: "a", Groups: []string{user.SystemPrivilegedGroup}}
	ctx, cancel := context.WithCancel(request.WithUser(b.Context(), who))
	var watchers sync.WaitGroup
	defer func() {
		cancel()
		watchers.Wait()
		s.end()
		s.lifetime.Group.Wait()
		if err := engine.Close(); err != nil {
			b.Error(err)
		}
	}()
	var events atomic.Int64
	for range 200 {
		w := &sink{header: http.Header{}, events: &events, ready: make(chan struct{})}
		r := httptest.NewRequest("GET", "/api/v1/namespaces/ns/configmaps?watch=1&resourceVersion=1", nil).WithContext(ctx)
		watchers.Go(func() { s.Handler().ServeHTTP(w, r) })
		<-w.ready
	}
	c := kubernetes.NewForConfigOrDie(protobuf(s.Config(who))).CoreV1().ConfigMaps("ns")
	b.ResetTimer()
	for i := 0; b.Loop(); i++ {
		if _, err := c.Create(ctx, kilobyte(fmt.Sprint("c-", i)), metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(events.Load())/b.Elapsed().Seconds(), "events/s")
}
