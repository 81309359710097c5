// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/resource"
)

// A nil trace costs nothing.
func TestNoTraceCostsNothing(t *testing.T) {
	var none *Recorder
	if none.Traces(&request.RequestInfo{IsResourceRequest: true, Verb: "create"}) {
		t.Error("nobody keeps traces, and yet")
	}
	ctx, d, p := t.Context(), pods(), pod("a")
	if n := testing.AllocsPerRun(100, func() {
		w := From(ctx)
		w.Enter(Store)
		w.Asks("a")
		w.Given(d, "", p)
		w.Mutated("x", 0, p, nil)
		w.Validated(0, "x", 0, nil)
		w.Committed(d, nil, p, nil, nil, 1)
		w.Step(Step{})
		w.Finish(nil, Answer{})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if w := From(ctx); w.Keeps() {
		t.Error("a trace that is not there keeps")
	}
}

// FuzzRecord checks that every record is decoded or rejected. It begins with a small record with one item of each type:
// the fuzzer minimizes interesting inputs byte by byte, which takes minutes for a large one.
func FuzzRecord(f *testing.F) {
	s := newServer(&testing.T{}, 1<<20)
	small := s.begin("create", "pods", "", "")
	small.Asks("a")
	small.Body("application/json", []byte(`{}`))
	small.Given(pods(), "", pod("a"))
	small.Step(Step{Phase: trace.Mutate, Kind: trace.Webhook, Configuration: "b", Name: "c", Result: trace.Changed})
	small.Committed(pods(), nil, pod("a"), nil, []byte(`{"a":1}`), 7)
	s.finish(small, "d", http.StatusCreated)
	s.full.each(func(b []byte) bool { f.Add(bytes.Clone(b)); return true })
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := read(b)
		if err != nil {
			return
		}
		_, errSteps := rec.eachStep()
		_, errCommits := rec.eachCommit(nil)
		if errSteps == nil && errCommits == nil && rec.numbers[numRefusedAt] >= 0 && rec.numbers[numRefusedAt] < int64(stageCount) {
			_, _ = s.Recorder.view(rec, objects{}) // contents need not be JSON
		}
	})
}

func BenchmarkTrace(b *testing.B) {
	s := New(Options{Mutators: []string{"ServiceAccount"}})
	d := kind("configmaps", func() resource.Object { return &corev1.ConfigMap{} })
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b", UID: "c"}}
	data := bytes.Repeat([]byte("x"), 1200)
	info := &request.RequestInfo{IsResourceRequest: true, Verb: "create", APIVersion: "v1", Resource: "configmaps", Namespace: "b"}
	r := httptest.NewRequest(http.MethodPost, "/api/v1/namespaces/b/configmaps", nil)
	b.ReportAllocs()
	for b.Loop() {
		w := s.Begin(info, time.Now())
		ctx := With(b.Context(), w)
		for _, st := range []Stage{Authenticate, Audit, Impersonate, FlowControl, Authorize, Decode} {
			From(ctx).Enter(st)
		}
		w.Asks("jane")
		w.Body("application/json", data)
		w.Enter(Mutate)
		w.Given(d, "", obj)
		for range 10 {
			w.Mutated("ServiceAccount", 0, obj, nil)
			w.Validated(1, "x", 0, nil)
		}
		w.Enter(Store)
		w.Committed(d, nil, obj, nil, data, 1)
		w.Finish(r, Answer{ID: "83b57932-e5b8-4c88-bbb4-d0114d2d2b1d", Code: 201})
	}
}
