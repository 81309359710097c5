// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	errLost    = errors.New("connection reset by peer (an injected fault)")
	errCrashed = errors.New("the controller has crashed (an injected fault)")
)

// injector lets requests go wrong. It is safe for concurrent use.
type injector struct {
	mu      sync.Mutex
	faults  []Fault // those that are still to come
	off     bool
	counted map[string]int  // requests by class, and by class and resource
	gone    map[string]bool // resources whose next watch gets 410
}

func newInjector(faults []Fault) *injector {
	return &injector{faults: append([]Fault(nil), faults...), counted: map[string]int{}, gone: map[string]bool{}}
}

// stop ends all faults that are still to come.
func (i *injector) stop() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.off = true
}

// The classes of requests.
const (
	write   = "write"
	update  = "update" // also a write
	watches = "watch"
	read    = "read"
)

// classes returns the classes of a request, and its resource.
func classes(r *http.Request) (of []string, resource string) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	skip := 2 // api/v1
	if len(parts) > 0 && parts[0] == "apis" {
		skip = 3
	}
	if len(parts) <= skip || parts[0] != "api" && parts[0] != "apis" {
		return nil, ""
	}
	parts = parts[skip:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	resource = parts[0]
	switch {
	case resource == "events" || strings.HasSuffix(resource, "reviews"):
		return nil, resource
	case r.Method == http.MethodGet && (r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1"):
		return []string{watches}, resource
	case r.Method == http.MethodGet:
		return []string{read}, resource
	case r.Method == http.MethodPut, r.Method == http.MethodPatch:
		return []string{write, update}, resource
	case r.Method == http.MethodPost, r.Method == http.MethodDelete:
		return []string{write}, resource
	}
	return nil, resource
}

// class is the class that a kind counts.
func (k FaultKind) class() string {
	switch {
	case k.watches():
		return watches
	case k == Conflict:
		return update
	}
	return write
}

// next counts a request and returns its fault, if any.
func (i *injector) next(r *http.Request) (f Fault, resource string, ok bool) {
	of, resource := classes(r)
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, class := range of {
		i.counted[class]++
		i.counted[class+" "+resource]++
	}
	if i.off {
		return Fault{}, resource, false
	}
	for n, f := range i.faults {
		for _, class := range of {
			count := i.counted[class]
			if f.Resource != "" {
				count = i.counted[class+" "+f.Resource]
			}
			if f.Kind.class() == class && (f.Resource == "" || f.Resource == resource) && count >= f.At {
				i.faults = append(i.faults[:n:n], i.faults[n+1:]...)
				return f, resource, true
			}
		}
	}
	return Fault{}, resource, false
}

// isGone reports whether a watch gets 410, once.
func (i *injector) isGone(resource string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	is := i.gone[resource]
	delete(i.gone, resource)
	return is && !i.off
}

func (i *injector) setGone(resource string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.gone[resource] = true
}

// client wraps the transport of a client. Crash is called at a crash; nil: nothing restarts.
func (i *injector) client(crash func()) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper { return &faulty{injector: i, next: next, crash: crash} }
}

// faulty is the transport of one client.
type faulty struct {
	*injector
	next  http.RoundTripper
	crash func()
}

// RoundTrip implements [http.RoundTripper].
func (t *faulty) RoundTrip(r *http.Request) (*http.Response, error) {
	f, resource, ok := t.injector.next(r)
	if of, _ := classes(r); len(of) > 0 && of[0] == watches && t.isGone(resource) {
		return answer(r, apierrors.NewResourceExpired("too old resource version (an injected fault)").Status()), nil
	}
	if !ok {
		return t.next.RoundTrip(r)
	}
	switch f.Kind {
	case Drop:
		return nil, t.lose(r, errLost)
	case CrashBefore:
		t.crashes()
		return nil, t.lose(r, errCrashed)
	case Delay:
		select {
		case <-time.After(f.Delay):
		case <-r.Context().Done():
			return nil, t.lose(r, r.Context().Err())
		}
	case Duplicate:
		return t.twice(r)
	case Conflict:
		_ = t.lose(r, nil)
		err := apierrors.NewConflict(schema.GroupResource{Resource: resource}, "", errors.New("an injected fault"))
		return answer(r, err.Status()), nil
	case TooMany:
		_ = t.lose(r, nil)
		return answer(r, apierrors.NewTooManyRequests("an injected fault", 1).Status()), nil
	case WebhookDead:
		_ = t.lose(r, nil)
		err := apierrors.NewInternalError(errors.New("failed calling webhook: connection refused (an injected fault)"))
		return answer(r, err.Status()), nil
	}
	w, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	switch f.Kind {
	case LoseAnswer, CrashAfter:
		_, _ = io.Copy(io.Discard, w.Body)
		_ = w.Body.Close()
		if f.Kind == CrashAfter {
			t.crashes()
			return nil, errCrashed
		}
		return nil, errLost
	case DelayAnswer:
		select {
		case <-time.After(f.Delay):
		case <-r.Context().Done():
			_ = w.Body.Close()
			return nil, r.Context().Err()
		}
	case EndWatch, Gone:
		b := &cutBody{ReadCloser: w.Body}
		b.timer = time.AfterFunc(f.Delay, func() {
			if f.Kind == Gone {
				t.setGone(resource)
			}
			b.cut()
		})
		w.Body = b
	case LagWatch:
		w.Body = &lateBody{ReadCloser: w.Body, by: f.Delay, closed: make(chan struct{})}
	}
	return w, nil
}

func (t *faulty) crashes() {
	if t.crash != nil {
		t.crash()
	}
}

// lose closes the body of a request that is not sent.
func (*faulty) lose(r *http.Request, err error) error {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return err
}

// twice sends a request twice.
func (t *faulty) twice(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, fmt.Errorf("read request: %w", err)
		}
		_ = r.Body.Close()
	}
	for last := false; ; last = true {
		again := r.Clone(r.Context())
		again.Body = io.NopCloser(bytes.NewReader(body))
		w, err := t.next.RoundTrip(again)
		if err != nil || last {
			return w, err
		}
		_, _ = io.Copy(io.Discard, w.Body)
		_ = w.Body.Close()
	}
}

// answer is a response with a status.
func answer(r *http.Request, s metav1.Status) *http.Response {
	s.Kind, s.APIVersion = "Status", "v1"
	body, err := json.Marshal(s)
	if err != nil {
		panic(err) // a status is JSON
	}
	w := &http.Response{
		Status: http.StatusText(int(s.Code)), StatusCode: int(s.Code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)),
		ContentLength: int64(len(body)), Request: r,
	}
	if s.Code == http.StatusTooManyRequests {
		w.Header.Set("Retry-After", "1")
	}
	return w
}

// cutBody is a stream that ends when it is cut.
type cutBody struct {
	io.ReadCloser
	timer *time.Timer

	mu    sync.Mutex
	ended bool
}

func (b *cutBody) cut() {
	b.mu.Lock()
	b.ended = true
	b.mu.Unlock()
	_ = b.ReadCloser.Close()
}

// Read implements [io.Reader].
func (b *cutBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended && err != nil {
		err = io.EOF
	}
	return n, err
}

// Close implements [io.Closer].
func (b *cutBody) Close() error {
	b.timer.Stop()
	return b.ReadCloser.Close()
}

// lateBody is a stream whose parts are late.
type lateBody struct {
	io.ReadCloser
	by      time.Duration
	closing sync.Once
	closed  chan struct{}
}

// Read implements [io.Reader].
func (b *lateBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	select {
	case <-time.After(b.by):
	case <-b.closed:
	}
	return n, err
}

// Close implements [io.Closer].
func (b *lateBody) Close() error {
	b.closing.Do(func() { close(b.closed) })
	return b.ReadCloser.Close()
}
