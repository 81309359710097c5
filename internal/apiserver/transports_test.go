// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// dial opens a WebSocket as the administrator.
func dial(t *testing.T, f *fixture, path, accept, origin string) (*websocket.Conn, error) {
	t.Helper()
	c, err := websocket.NewConfig(strings.Replace(f.tls.Host, "https://", "wss://", 1)+path, "http://origin")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(f.tls.CertData, f.tls.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	c.TlsConfig = &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}}
	c.Header = http.Header{"Accept": {accept}}
	if origin == "" {
		c.Origin.Scheme, c.Origin.Host = "", ""
	}
	return websocket.DialConfig(c)
}

func TestWatchOverWebSocket(t *testing.T) {
	f := start(t)
	maps := kubernetes.NewForConfigOrDie(f.tls).CoreV1().ConfigMaps("ws")
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const path = "/api/v1/namespaces/ws/configmaps?watch=1&timeoutSeconds=20"
	for _, c := range []struct {
		name, accept string
		binary       bool
		// name decodes an event and returns its type, and the name of its object or of its row's object.
		read func(t *testing.T, b []byte) (string, string)
	}{
		{"JSON", "application/json", false, func(t *testing.T, b []byte) (string, string) {
			var e struct {
				Type   string
				Object corev1.ConfigMap
			}
			if err := json.Unmarshal(b, &e); err != nil {
				t.Fatal(err)
			}
			return e.Type, e.Object.Name
		}},
		{"table", "application/json;as=Table;v=v1;g=meta.k8s.io", false, func(t *testing.T, b []byte) (string, string) {
			var e struct {
				Type   string
				Object metav1.Table
			}
			if err := json.Unmarshal(b, &e); err != nil {
				t.Fatal(err)
			}
			return e.Type, fmt.Sprint(e.Object.Rows[0].Cells[0])
		}},
		{"protobuf", "application/vnd.kubernetes.protobuf", true, func(t *testing.T, b []byte) (string, string) {
			var e metav1.WatchEvent
			if err := e.Unmarshal(b); err != nil {
				t.Fatal(err)
			}
			var u apiruntime.Unknown
			if err := u.Unmarshal(bytes.TrimPrefix(e.Object.Raw, []byte("k8s\x00"))); err != nil {
				t.Fatal(err)
			}
			var cm corev1.ConfigMap
			if err := cm.Unmarshal(u.Raw); err != nil {
				t.Fatal(err)
			}
			return e.Type, cm.Name
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ws, err := dial(t, f, path, c.accept, "http://origin")
			if err != nil {
				t.Fatal(err)
			}
			defer ws.Close()
			frame := byte(255)
			codec := websocket.Codec{Unmarshal: func(data []byte, kind byte, v any) error {
				frame = kind
				*v.(*[]byte) = bytes.Clone(data)
				return nil
			}}
			var b []byte
			if err := codec.Receive(ws, &b); err != nil {
				t.Fatal(err)
			}
			if what, name := c.read(t, b); what != "ADDED" || name != "a" || (frame == websocket.BinaryFrame) != c.binary {
				t.Errorf("first event %s of %q in a frame of kind %d", what, name, frame)
			}
			made := "b-" + strings.ToLower(c.name)
			if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: made}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			for {
				if err := codec.Receive(ws, &b); err != nil {
					t.Fatal(err)
				}
				if what, name := c.read(t, b); name == made {
					if what != "ADDED" {
						t.Errorf("new object is %s", what)
					}
					break
				}
			}
		})
	}
	t.Run("ends by itself", func(t *testing.T) {
		ws, err := dial(t, f, "/api/v1/namespaces/none/configmaps?watch=1&timeoutSeconds=1", "*/*", "http://origin")
		if err != nil {
			t.Fatal(err)
		}
		defer ws.Close()
		var b []byte
		if err := websocket.Message.Receive(ws, &b); !errors.Is(err, io.EOF) {
			t.Errorf("got %q, error %v", b, err)
		}
	})
	t.Run("refused", func(t *testing.T) {
		for _, c := range [][3]string{
			{"/api/v1/namespaces/ws/configmaps?watch=1&resourceVersion=x", "*/*", "http://origin"},
			{"/api/v1/namespaces/ws/configmaps?watch=1", "application/yaml", "http://origin"},
			{"/api/v1/namespaces/ws/configmaps?watch=1", "*/*", ""},
		} {
			if ws, err := dial(t, f, c[0], c[1], c[2]); err == nil {
				ws.Close()
				t.Errorf("%v: was upgraded", c)
			}
		}
	})
}

// slow receives a response slowly, and records the memory in use meanwhile.
type slow struct {
	header http.Header
	code   int
	bytes  int64
	writes int
	peak   uint64
	each   int
	stop   func()
}

func (w *slow) Header() http.Header { return w.header }

func (w *slow) WriteHeader(code int) { w.code = code }

func (w *slow) Write(p []byte) (int, error) {
	w.bytes += int64(len(p))
	if w.writes++; w.writes%w.each == 0 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		w.peak = max(w.peak, m.HeapAlloc)
		if w.stop != nil {
			w.stop()
		}
	}
	return len(p), nil
}

// TestListsAreStreamed lists 32 MiB of objects in each medium, and allows the server a few MiB beyond its previous
// memory.
func TestListsAreStreamed(t *testing.T) {
	const objects, size = 2048, 16 << 10
	kind := configMaps()
	kind.Codec = resource.ProtobufCodec(corev1.SchemeGroupVersion.WithKind("ConfigMap"), kind.Versions[0].New)
	engine := store.New(memory.Open(memory.Options{}))
	f, err := New(Options{Store: engine, Kinds: []*resource.Descriptor{kind}, ViewBytes: 4 << 20, Features: Features{CBOR: true}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		f.end()
		f.lifetime.Group.Wait()
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	}()
	admin := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	maps := kubernetes.NewForConfigOrDie(f.Config(admin)).CoreV1().ConfigMaps("big")
	for i := range objects {
		text := strings.Repeat(fmt.Sprintf("%08x", i*7919), size/8)
		if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m%d", i)},
			Data: map[string]string{"k": text}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const total, most = objects * size, 8 << 20
	for _, c := range []struct {
		accept, encoding string
		least            int64
	}{
		{"application/json", "", total},
		{"application/json", "gzip", 1 << 10},
		{"application/vnd.kubernetes.protobuf", "", total},
		{"application/vnd.kubernetes.protobuf", "gzip", 1 << 10},
		{"application/cbor", "", total},
		{"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "", objects * 200},
		{"application/json;as=Table;v=v1;g=meta.k8s.io", "", objects * 200},
	} {
		t.Run(c.accept+" "+c.encoding, func(t *testing.T) {
			ask := func(ctx context.Context, w *slow) {
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://in-process/api/v1/namespaces/big/configmaps", http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				r.Header = http.Header{"Accept": {c.accept}, "Accept-Encoding": {c.encoding}}
				r.RemoteAddr = "127.0.0.1:0"
				defer func() {
					if p := recover(); p != nil && p != http.ErrAbortHandler {
						panic(p)
					}
				}()
				f.handler.ServeHTTP(w, r.WithContext(request.WithUser(ctx, admin)))
			}
			ask(t.Context(), &slow{header: http.Header{}, each: 1 << 30}) // fills the cache of encodings
			runtime.GC()
			var before runtime.MemStats
			runtime.ReadMemStats(&before)
			w := &slow{header: http.Header{}, each: 128}
			if c.least < total && c.encoding == "" {
				w.each = 8
			}
			ask(t.Context(), w)
			if w.code != http.StatusOK || w.bytes < c.least || w.peak == 0 {
				t.Fatalf("code %d, %d bytes in %d writes", w.code, w.bytes, w.writes)
			}
			if w.peak > before.HeapAlloc+most {
				t.Errorf("%d MiB of heap on top of %d", (w.peak-before.HeapAlloc)>>20, before.HeapAlloc>>20)
			}
			// a client that leaves does not receive the rest
			ctx, cancel := context.WithCancel(t.Context())
			gone := &slow{header: http.Header{}, each: 1, stop: cancel}
			ask(ctx, gone)
			if gone.writes > 16 { // a compressor makes several writes
				t.Errorf("%d writes to a client that is gone", gone.writes)
			}
		})
	}
}

// TestCompression checks which responses are compressed, and their headers.
func TestCompression(t *testing.T) {
	f := start(t)
	maps := kubernetes.NewForConfigOrDie(f.tls).CoreV1().ConfigMaps("zip")
	for name, size := range map[string]int{"small": 100, "large": 200 << 10} {
		if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name},
			Data: map[string]string{"k": strings.Repeat("x", size)}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	config := rest.CopyConfig(f.tls)
	config.DisableCompression = true
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	const root = "/api/v1/namespaces/zip/configmaps"
	for _, c := range []struct {
		path, encoding string
		want           bool
	}{
		{root + "/small", "gzip", false},
		{root + "/large", "gzip", true},
		{root + "/large", "deflate, gzip", true},
		{root + "/large", "gzip;q=1", false},
		{root + "/large", "", false},
		{root, "gzip", true},
		{root + "?fieldSelector=metadata.name%3Dsmall", "gzip", false},
		{root + "?watch=1&timeoutSeconds=1", "gzip", false},
		{root + "?watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "gzip", true},
	} {
		t.Run(c.encoding+" "+c.path, func(t *testing.T) {
			t.Parallel()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.tls.Host+c.path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Accept-Encoding", c.encoding)
			res, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			zipped := res.Header.Get("Content-Encoding") == "gzip"
			if zipped != c.want || zipped != (res.Header.Get("Vary") == "Accept-Encoding") {
				t.Errorf("%s for %q: headers %v", c.path, c.encoding, res.Header)
			}
			if zipped {
				z, err := gzip.NewReader(bytes.NewReader(body))
				if err == nil {
					body, err = io.ReadAll(z)
				}
				if err != nil {
					t.Errorf("%s: %v", c.path, err)
				}
			}
			for d := json.NewDecoder(bytes.NewReader(body)); ; {
				var v map[string]any
				if err := d.Decode(&v); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Errorf("%s for %q: %v", c.path, c.encoding, err)
					break
				}
			}
		})
	}
}

// TestCompressedWatchIsNotHeldBack waits for an event of an open compressed watch.
func TestCompressedWatchIsNotHeldBack(t *testing.T) {
	f := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var zipped atomic.Bool
	config := rest.CopyConfig(f.tls)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			res, err := next.RoundTrip(r)
			if err == nil && res.Uncompressed {
				zipped.Store(true)
			}
			return res, err
		})
	})
	maps := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("zip")
	yes := true
	w, err := maps.Watch(ctx, metav1.ListOptions{SendInitialEvents: &yes, AllowWatchBookmarks: true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for i, size := range []int{10, 20 << 10, 10} {
		name := fmt.Sprintf("m%d", i)
		if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name},
			Data: map[string]string{"k": strings.Repeat("x", size)}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for {
			e, ok := <-w.ResultChan()
			if !ok {
				t.Fatal("watch ended")
			}
			if cm, ok := e.Object.(*corev1.ConfigMap); ok && cm.Name == name {
				break
			}
		}
	}
	if !zipped.Load() {
		t.Error("the watch was not compressed")
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
