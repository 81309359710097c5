// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

// fixture follows a source whose manifests are names; a name with an exclamation mark is bad.
type fixture struct {
	sets chan string
	mu   sync.Mutex
	log  bytes.Buffer
}

func (f *fixture) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log.Write(p)
}

func (f *fixture) logged() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log.String()
}

func start(t *testing.T, o Options) *fixture {
	t.Helper()
	f := &fixture{sets: make(chan string, 100)}
	o.Logger = slog.New(slog.NewTextHandler(f, nil))
	o.Decode = func(data []byte, source string, file bool) ([]*corev1.Pod, error) {
		if strings.Contains(string(data), "!") {
			return nil, errors.New("bad manifest")
		}
		var out []*corev1.Pod
		for name := range strings.FieldsSeq(string(data)) {
			out = append(out, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		return out, nil
	}
	o.Set = func(source string, pods []*corev1.Pod) {
		names := []string{source + ":"}
		for _, p := range pods {
			names = append(names, p.Name)
		}
		f.sets <- strings.Join(names, " ")
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	return f
}

// await waits for a set. What is told meanwhile was true meanwhile.
func (f *fixture) await(t *testing.T, want string) {
	t.Helper()
	limit, last := time.After(30*time.Second), ""
	for {
		select {
		case last = <-f.sets:
			if last == want {
				return
			}
		case <-limit:
			t.Fatalf("%q, want %q\n%s", last, want, f.logged())
		}
	}
}

// put writes a file as a whole.
func put(t *testing.T, path, text string) {
	t.Helper()
	hidden := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	if err := os.WriteFile(hidden, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(hidden, path); err != nil {
		t.Fatal(err)
	}
}

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "b.yaml"), "b")
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	// The clock stands still: only the kernel tells.
	f := start(t, Options{Path: dir, FilePeriod: time.Hour, Clock: clocktesting.NewFakeClock(time.Now())})
	f.await(t, "file: b")
	put(t, filepath.Join(dir, "a.yaml"), "a")
	f.await(t, "file: a b")
	put(t, filepath.Join(dir, "a.yaml"), "a2")
	f.await(t, "file: a2 b")
	put(t, filepath.Join(dir, "b.yaml"), "b!")
	put(t, filepath.Join(dir, "c.yaml"), "c")
	f.await(t, "file: a2 b c")
	if !strings.Contains(f.logged(), "bad manifest") || !strings.Contains(f.logged(), "b.yaml") {
		t.Errorf("log: %s", f.logged())
	}
	if err := os.Remove(filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	f.await(t, "file: a2 c")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	f.await(t, "file:")
}

func TestSingleFileThatComesLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pod.yaml")
	f := start(t, Options{Path: path, FilePeriod: time.Hour, Clock: clocktesting.NewFakeClock(time.Now())})
	f.await(t, "file:")
	put(t, path, "p")
	f.await(t, "file: p")
	put(t, path, "q")
	f.await(t, "file: q")
}

func TestDirectoryThatComesLaterIsFoundInTime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "yet")
	fake := clocktesting.NewFakeClock(time.Now())
	f := start(t, Options{Path: dir, FilePeriod: 20 * time.Second, Clock: fake})
	f.await(t, "file:")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "p"), "p")
	fake.Step(20 * time.Second)
	f.await(t, "file: p")
}

func TestURL(t *testing.T) {
	answers := make(chan string, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := <-answers
		answers <- text
		if r.Header.Get("Password") != "open" || text == "fail" {
			http.Error(w, "no", http.StatusTeapot)
			return
		}
		w.Write([]byte(text))
	}))
	defer srv.Close()
	set := func(text string) {
		select {
		case <-answers:
		default:
		}
		answers <- text
	}
	set("a b")
	f := start(t, Options{URL: srv.URL, URLPeriod: 5 * time.Millisecond, Header: http.Header{"password": {"open"}}, Clock: clock.RealClock{}})
	f.await(t, "http: a b")
	set("fail")
	set("c!")
	set("d")
	f.await(t, "http: d")
	set("")
	f.await(t, "http:")
}
