// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// raw is a plain HTTP client of the server, over HTTP/2 or with a connection for each request.
func raw(t *testing.T, f *fixture, http2 bool) *http.Client {
	t.Helper()
	config, err := rest.TLSConfigFor(f.tls)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: http2, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// watchRaw starts a watch after a revision and returns its body.
func watchRaw(ctx context.Context, client *http.Client, f *fixture, rv string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, "GET", f.tls.Host+"/api/v1/namespaces/ns/configmaps?watch=1&resourceVersion="+rv, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("status %d", response.StatusCode), response.Body.Close())
	}
	return response.Body, nil
}

// told is an event of a watch.
type told struct {
	Type   string
	Object struct {
		Kind     string
		Metadata struct{ Name, ResourceVersion string }
		Code     int
		Reason   string
		Message  string
	}
}

// used returns the memory that this process, client and server, uses.
func used() int64 {
	runtime.GC()
	runtime.GC() // objects freed by the first run may have held others
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// TestThousandWatchers lets a thousand clients watch one kind. All receive the same changes in the same order, an idle
// one takes little memory, and all end with the server and leave nothing behind.
func TestThousandWatchers(t *testing.T) {
	const watchers, writes = 1000, 10
	f := start(t)
	c := kubernetes.NewForConfigOrDie(f.inProcess).CoreV1().ConfigMaps("ns")
	first, err := c.Create(t.Context(), kilobyte("first"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client := raw(t, f, true)
	warm, err := watchRaw(t.Context(), client, f, first.ResourceVersion) // the other watches reuse its connection
	if err != nil {
		t.Fatal(err)
	}
	defer warm.Close()
	before, goroutines := used(), runtime.NumGoroutine()
	var begun, seen, ended sync.WaitGroup
	begun.Add(watchers)
	seen.Add(watchers)
	for i := range watchers {
		ended.Go(func() {
			body, err := watchRaw(context.Background(), client, f, first.ResourceVersion)
			begun.Done()
			if err != nil {
				t.Error("begin watch:", err)
				seen.Done()
				return
			}
			defer body.Close()
			lines := bufio.NewReaderSize(body, 2<<10)
			for n := range writes {
				var e told
				line, err := lines.ReadBytes('\n')
				if err == nil {
					err = json.Unmarshal(line, &e)
				}
				if err != nil || e.Type != "ADDED" || e.Object.Metadata.Name != fmt.Sprint("n-", n) {
					t.Errorf("watcher %d, event %d: %.100s, %v", i, n, line, err)
					break
				}
			}
			seen.Done()
			if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
				t.Errorf("watcher %d ended with %.100q, %v", i, rest, err)
			}
		})
	}
	begun.Wait()
	if each := (used() - before) / watchers; each > 128<<10 {
		t.Errorf("an idle watch takes %d bytes of client and server", each)
	}
	for n := range writes {
		if _, err := c.Create(t.Context(), kilobyte(fmt.Sprint("n-", n)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	seen.Wait()
	f.end() // the server ends its watches
	ended.Wait()
	client.CloseIdleConnections()
	// the clients see the end before the server's goroutines have finished
	late, look := time.After(20*time.Second), time.NewTicker(time.Millisecond)
	defer look.Stop()
	for n := runtime.NumGoroutine(); n > goroutines+100; n = runtime.NumGoroutine() {
		select {
		case <-look.C:
		case <-late:
			t.Fatalf("%d goroutines are left, there were %d", n, goroutines)
		}
	}
}

// TestStuckWatcher has one client that does not read: it delays neither writers nor other watchers. When it reads
// again, the server reports that it was too slow. If the writes took longer than the server waits for a client that
// takes no bytes (30 s), the connection may have been closed instead.
func TestStuckWatcher(t *testing.T) {
	const others, writes = 2, 110 // 100 MB, of which a watch may lag 64; sockets buffer some
	f := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := kubernetes.NewForConfigOrDie(f.inProcess).CoreV1().ConfigMaps("ns")
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			first, err := c.Create(ctx, kilobyte("first-"+strings.ToLower(name[5:6])), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			stuck, err := watchRaw(ctx, raw(t, f, http2), f, first.ResourceVersion)
			if err != nil {
				t.Fatal(err)
			}
			defer stuck.Close()
			client := raw(t, f, http2)
			var seen sync.WaitGroup
			for range others {
				body, err := watchRaw(ctx, client, f, first.ResourceVersion)
				if err != nil {
					t.Fatal(err)
				}
				seen.Go(func() {
					defer body.Close()
					lines := bufio.NewScanner(body)
					lines.Buffer(nil, 2<<20)
					for n := range writes {
						if !lines.Scan() || !strings.HasPrefix(lines.Text(), `{"type":"`) || strings.HasPrefix(lines.Text(), `{"type":"ERROR"`) {
							t.Errorf("a client that reads, event %d: %.100s, %v", n, lines.Text(), lines.Err())
							return
						}
					}
				})
			}
			large := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "large-" + strings.ToLower(name[5:6])}}
			for n := range writes {
				large.Data = map[string]string{"k": fmt.Sprint(n, strings.Repeat("x", 900<<10))}
				var err error
				if n == 0 {
					_, err = c.Create(ctx, large, metav1.CreateOptions{})
				} else {
					_, err = c.Update(ctx, large, metav1.UpdateOptions{})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			seen.Wait()
			mayBeCut := time.Since(begun) > 20*time.Second
			var last told
			events, cut := 0, false
			for lines := bufio.NewReaderSize(stuck, 2<<20); ; events++ {
				line, err := lines.ReadBytes('\n')
				if err == io.EOF && len(line) == 0 {
					break
				}
				if cut = err != nil; cut {
					t.Logf("the connection was cut after %d events: %v", events, err)
					break
				}
				last = told{}
				if err := json.Unmarshal(line, &last); err != nil {
					t.Fatal(err)
				}
			}
			if cut && !mayBeCut {
				t.Errorf("the connection of a client that did not read for less than 20 s was cut after %d events", events)
			}
			if !cut && (last.Type != "ERROR" || last.Object.Code != http.StatusGone || last.Object.Reason != string(metav1.StatusReasonExpired)) {
				t.Errorf("a client that did not read got %d events, the last %+v", events, last)
			}
			if events >= writes {
				t.Errorf("a client that did not read got all %d events", events)
			}
		})
	}
}
