// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package sharedobjects_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/sharedobjects"
)

type server func(*http.Request) (*http.Response, error)

func (s server) RoundTrip(r *http.Request) (*http.Response, error) { return s(r) }

func answer(r *http.Request, code int, body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: r}
}

// ask watches pods of a server.
func ask(t *testing.T, s server, otherwise func() (watch.Interface, error)) (watch.Interface, error) {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://here", Transport: s, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return sharedobjects.Watch(t.Context(), client.CoreV1().RESTClient().Get().Resource("pods"), otherwise)
}

var errBytes = errors.New("asked for bytes")

func bytes() (watch.Interface, error) { return nil, errBytes }

// TestWatch: the very objects come, however far the server is ahead, and after the watch is stopped the server hears of it.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := make([]*corev1.Pod, 1000)
		for i := range pods {
			pods[i] = &corev1.Pod{}
		}
		body, _ := io.Pipe()
		var last error
		w, err := ask(t, func(r *http.Request) (*http.Response, error) {
			receiver := sharedobjects.FromContext(r.Context())
			receiver.Begin()
			go func() {
				defer receiver.End()
				for _, p := range pods {
					if err := receiver.Send(r.Context(), watch.Event{Type: watch.Added, Object: p}); err != nil {
						t.Errorf("tell: %v", err)
					}
				}
				<-r.Context().Done()
				for last == nil { // nobody takes any more
					last = receiver.Send(r.Context(), watch.Event{Type: watch.Deleted, Object: pods[0]})
				}
			}()
			return answer(r, http.StatusOK, body), nil
		}, bytes)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range pods {
			if e := <-w.ResultChan(); e.Type != watch.Added || e.Object != want {
				t.Fatalf("event %d is %v", i, e)
			}
		}
		w.Stop()
		w.Stop()
		synctest.Wait()
		for e := range w.ResultChan() {
			if e.Type != watch.Deleted {
				t.Errorf("after its end %v came", e)
			}
		}
		if last == nil {
			t.Error("the server was not told that nobody takes any more")
		}
	})
}

// TestWatchOtherwise: who does not know of handing over is asked for bytes, after its answer was closed, and errors are errors.
func TestWatchOtherwise(t *testing.T) {
	closed := false
	body := &closing{strings.NewReader(""), &closed}
	if _, err := ask(t, func(r *http.Request) (*http.Response, error) { return answer(r, http.StatusOK, body), nil }, bytes); !errors.Is(err,
		errBytes) || !closed {
		t.Errorf("got %v, closed %v; want to be asked for bytes", err, closed)
	}
	said := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`
	if _, err := ask(t, func(r *http.Request) (*http.Response, error) {
		return answer(r, http.StatusGone, io.NopCloser(strings.NewReader(said))), nil
	}, bytes); !apierrors.IsResourceExpired(err) {
		t.Errorf("got %v, want the server's error", err)
	}
}

type closing struct {
	io.Reader
	closed *bool
}

func (c *closing) Close() error {
	*c.closed = true
	return nil
}
