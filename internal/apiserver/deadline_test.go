// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// sluggish is a plug-in that blocks until the request's deadline.
type sluggish struct{}

func (sluggish) Name() string { return "Slow" }

func (sluggish) Mutate(ctx context.Context, _ resource.Backend, a *admit.Attributes) error {
	if strings.HasPrefix(a.Name, "slow") {
		<-ctx.Done()
		return apierrors.NewInternalError(ctx.Err())
	}
	return nil
}

const lateAnswer = `{"metadata":{},"status":"Failure","message":"Timeout: request did not complete within the allotted timeout","reason":"Timeout","details":{},"code":504}` + "\n"

// TestLateAnswers checks that a request has the deadline of its client, at most that of the server. A late response is
// a timeout error in upstream's words, without any output of the handler.
func TestLateAnswers(t *testing.T) {
	engine := store.New(memory.Open(memory.Options{}))
	s, err := New(Options{Store: engine, Kinds: []*resource.Descriptor{configMaps()}, Admission: admit.Chain{sluggish{}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.end()
		s.lifetime.Group.Wait()
		if err := engine.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
	})
	const at = "/api/v1/namespaces/ns/configmaps"
	late := func(path, name string) {
		t.Helper()
		w := as(s, "root", "POST", path, `{"metadata":{"name":"`+name+`"}}`)
		if w.Code != http.StatusGatewayTimeout || w.Body.String() != lateAnswer || w.Header().Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("%s: %d %s %q", path, w.Code, w.Header().Get("Content-Type"), w.Body)
		}
		for name := range w.Header() {
			switch name {
			case "Audit-Id", "Cache-Control", "Content-Type":
			default:
				t.Errorf("%s: a late answer has the header %s", path, name)
			}
		}
	}
	late(at+"?timeout=20ms", "slow-1")
	s.opts.FlowControl.RequestTimeout = 20 * time.Millisecond
	late(at, "slow-2")
	late(at+"?timeout=10s", "slow-3")
	late(at+"?timeout=0s", "slow-4")
	late(at+"?timeout=-1s", "slow-5")
	s.opts.FlowControl.RequestTimeout = time.Minute
	for path, want := range map[string]int{
		at + "?timeout=1s": http.StatusCreated, at + "?timeout=": http.StatusCreated, at + "?timeout=x": http.StatusBadRequest,
		at + "?timeout=5": http.StatusBadRequest,
	} {
		if w := as(s, "root", "POST", path, `{"metadata":{"generateName":"quick-"}}`); w.Code != want {
			t.Errorf("%s: %d, want %d: %s", path, w.Code, want, w.Body)
		}
	}
	w := as(s, "root", "POST", at+"?timeout=x", `{}`)
	if !strings.Contains(w.Body.String(),
		`"message":"invalid timeout specified in the request URL - time: invalid duration \"x\"","reason":"BadRequest","code":400`) {
		t.Errorf("a wrong timeout: %s", w.Body)
	}
}
