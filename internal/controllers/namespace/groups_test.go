// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// served has each resource hold one object until its collection is deleted. Who answers for hung.example.com does not answer.
type served struct {
	mu      sync.Mutex
	deleted []string
}

func (s *served) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.Path, "/hung.example.com/") {
		<-r.Context().Done()
		return nil, context.Cause(r.Context())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.HasSuffix(r.URL.Path, "/unlisted") && r.Method == http.MethodGet {
		body := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"MethodNotAllowed","code":405}`
		return &http.Response{StatusCode: http.StatusMethodNotAllowed, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	}
	body := `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{},"items":[]}`
	if r.Method == http.MethodDelete {
		s.deleted = append(s.deleted, r.URL.Path)
	} else if !slices.Contains(s.deleted, r.URL.Path) {
		body = strings.Replace(body, "[]", `[{"metadata":{"name":"a"}}]`, 1)
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// A group whose server hangs holds up no other, and is waited for half a minute at most.
func TestAHungGroupHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &served{}
		client, err := metadata.NewForConfig(&rest.Config{Host: "http://x", Transport: s, QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		groups := map[string][]schema.GroupVersionResource{}
		for _, g := range []string{"a.example.com", "hung.example.com", "z.example.com"} {
			groups[g] = []schema.GroupVersionResource{{Group: g, Version: "v1", Resource: "things"}, {Group: g, Version: "v1", Resource: "others"}}
		}
		c := &controller{metadata: client, clock: clock.RealClock{}}
		left := newRemains()
		began, done := time.Now(), make(chan struct{})
		go func() {
			defer close(done)
			c.emptyGroups(t.Context(), groups, "ns", left)
		}()
		synctest.Wait() // all wait for the hung one
		s.mu.Lock()
		slices.Sort(s.deleted)
		want := []string{
			"/apis/a.example.com/v1/namespaces/ns/others", "/apis/a.example.com/v1/namespaces/ns/things",
			"/apis/z.example.com/v1/namespaces/ns/others", "/apis/z.example.com/v1/namespaces/ns/things",
		}
		if diff := cmp.Diff(want, s.deleted); diff != "" {
			t.Errorf("deleted while one hangs (-want +got):\n%s", diff)
		}
		s.mu.Unlock()
		<-done
		if took := time.Since(began); took != groupTime {
			t.Errorf("it took %v", took)
		}
		if left.objects() != 0 || left.failure() == nil ||
			!strings.Contains(left.failure().Error(), `group "hung.example.com" is not emptied within 30s`) {
			t.Errorf("%d objects, %v", left.objects(), left.failure())
		}
	})
}

// What cannot be listed is deleted all the same.
func TestWhatIsNotListed(t *testing.T) {
	s := &served{}
	client, err := metadata.NewForConfig(&rest.Config{Host: "http://x", Transport: s, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	c := &controller{metadata: client, clock: clock.RealClock{}}
	left := newRemains()
	c.emptyOf(t.Context(), schema.GroupVersionResource{Group: "a.example.com", Version: "v1", Resource: "unlisted"}, "ns", left)
	if diff := cmp.Diff([]string{"/apis/a.example.com/v1/namespaces/ns/unlisted"}, s.deleted); diff != "" || left.failure() != nil {
		t.Errorf("%v, deleted (-want +got):\n%s", left.failure(), diff)
	}
}
