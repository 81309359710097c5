// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package eventsink_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/eventsink"
)

type server func(*http.Request) (*http.Response, error)

func (s server) RoundTrip(r *http.Request) (*http.Response, error) { return s(r) }

// TestWritesEnd checks that the write of an Event ends with the sink's context, or after the limit, if the server asks for repetitions
// without end.
func TestWritesEnd(t *testing.T) {
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", ResourceVersion: "1"}}
	for name, after := range map[string]time.Duration{"context": 1500 * time.Millisecond, "limit": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				busy := server(func(r *http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}, Request: r,
						Body: io.NopCloser(strings.NewReader(""))}, nil
				})
				client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://here", Transport: busy, QPS: -1})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), after)
				defer cancel()
				sink := eventsink.New(ctx, client.CoreV1())
				begun := time.Now()
				if _, err := sink.Create(event); err == nil {
					t.Error("Create answers without an error")
				}
				want := min(after, eventsink.Limit)
				if took := time.Since(begun); took != want {
					t.Errorf("Create took %v, want %v", took, want)
				}
				if after < eventsink.Limit {
					return
				}
				if _, err := sink.Update(event); err == nil {
					t.Error("Update answers without an error")
				}
				if _, err := sink.Patch(event, []byte("{}")); err == nil {
					t.Error("Patch answers without an error")
				}
				if took := time.Since(begun); took != 3*want {
					t.Errorf("three writes took %v, want %v", took, 3*want)
				}
			})
		})
	}
}
