// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOneAfterTheOther(t *testing.T) {
	obj := &metav1.ObjectMeta{Annotations: map[string]string{"kept": "yes"}}
	if err := SetInitializers(obj, &Initializers{Pending: []Pending{{Name: "a.b.c"}, {Name: "d.e.f"}}}); err != nil {
		t.Fatal(err)
	}
	if !Uninitialized(obj) || !Turn(obj, "a.b.c") || Turn(obj, "d.e.f") {
		t.Errorf("at first: %v", obj.Annotations)
	}
	if err := Finish(obj, "d.e.f"); err == nil {
		t.Error("the second went first")
	}
	if err := Finish(obj, "a.b.c"); err != nil || !Turn(obj, "d.e.f") {
		t.Errorf("after the first: %v, %v", obj.Annotations, err)
	}
	rejected := obj.DeepCopy()
	if err := Reject(rejected, "d.e.f", 403, metav1.StatusReasonForbidden, "not here"); err != nil {
		t.Fatal(err)
	}
	i, err := InitializersOf(rejected)
	want := &Initializers{Pending: []Pending{{Name: "d.e.f"}},
		Result: &metav1.Status{Status: "Failure", Code: 403, Reason: "Forbidden", Message: "not here"}}
	if diff := cmp.Diff(want, i); diff != "" || err != nil || !Uninitialized(rejected) || Turn(rejected, "d.e.f") {
		t.Errorf("rejected: %v\n%s", err, diff)
	}
	if err := Finish(obj, "d.e.f"); err != nil || Uninitialized(obj) {
		t.Errorf("at last: %v, %v", obj.Annotations, err)
	}
	if diff := cmp.Diff(map[string]string{"kept": "yes"}, obj.Annotations); diff != "" {
		t.Error(diff)
	}
	if err := Finish(obj, "d.e.f"); err == nil {
		t.Error("an initializer finished twice")
	}
}

func TestWhatIsNoList(t *testing.T) {
	for value, want := range map[string]string{
		"":                             "unexpected end of JSON input",
		"yes":                          "invalid character",
		`{"pending":[{"name":""}]}`:    "pending[0] has no name",
		strings.Repeat(" ", 256<<10+1): "want 262144 at most",
	} {
		obj := &metav1.ObjectMeta{Annotations: map[string]string{InitializersAnnotation: value}}
		_, err := InitializersOf(obj)
		if err == nil || !strings.Contains(err.Error(), want) || Uninitialized(obj) || Turn(obj, "") {
			t.Errorf("%.40q: %v, want %q", value, err, want)
		}
		if Finish(obj, "a.b.c") == nil || Reject(obj, "a.b.c", 500, "", "") == nil {
			t.Errorf("%.40q was changed", value)
		}
	}
}

type asked struct{ urls []string }

func (a *asked) RoundTrip(r *http.Request) (*http.Response, error) {
	a.urls = append(a.urls, r.Method+" "+r.URL.RequestURI())
	return nil, nil
}

func TestSeeUninitialized(t *testing.T) {
	a := &asked{}
	see := SeeUninitialized(a)
	for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
		r, err := http.NewRequestWithContext(t.Context(), method, "https://host/api/v1/pods?limit=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := see.RoundTrip(r); err != nil { //nolint:bodyclose // there is no answer
			t.Fatal(err)
		}
		if r.URL.RawQuery != "limit=1" {
			t.Errorf("the caller's request was changed: %s", r.URL)
		}
	}
	want := []string{
		"GET /api/v1/pods?includeUninitialized=true&limit=1", "POST /api/v1/pods?includeUninitialized=true&limit=1",
		"PUT /api/v1/pods?limit=1", "DELETE /api/v1/pods?limit=1",
	}
	if diff := cmp.Diff(want, a.urls); diff != "" {
		t.Error(diff)
	}
}

// FuzzInitializers reads anything without harm, and what it reads it writes again as the same.
func FuzzInitializers(f *testing.F) {
	f.Add(`{"pending":[{"name":"a.b.c","deadlineSeconds":3,"failurePolicy":"Ignore"}],"since":"2026-11-21T07:00:00Z"}`)
	f.Add(`{"pending":[],"result":{"status":"Failure","code":403,"reason":"Forbidden","message":"no"}}`)
	f.Add(`{"pending":null}`)
	f.Fuzz(func(t *testing.T, value string) {
		i, err := DecodeInitializers(value)
		if err != nil {
			return
		}
		text, err := i.Encode()
		if err != nil {
			t.Fatalf("read but not written: %v", err)
		}
		again, err := DecodeInitializers(text)
		if err != nil {
			t.Fatalf("written but not read: %v", err)
		}
		if second, err := again.Encode(); err != nil || second != text {
			t.Errorf("%s became %s (%v)", text, second, err)
		}
		obj := &metav1.ObjectMeta{}
		if err := SetInitializers(obj, i); err != nil || Uninitialized(obj) == i.Done() {
			t.Errorf("%s: %v, uninitialised %v", text, err, Uninitialized(obj))
		}
	})
}
