// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package table

import (
	"encoding/json"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/mortise-dev/mortise/resource"
)

var v1 = Target{Kind: "Table", Group: "meta.k8s.io", Version: "v1"}

func pod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "p", Namespace: "n", ResourceVersion: "7", CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
	}}
}

func asJSON(t *testing.T, v any) map[string]any {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestInclude(t *testing.T) {
	meta := map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
		"metadata": map[string]any{"name": "p", "namespace": "n", "resourceVersion": "7", "creationTimestamp": "2026-01-02T03:04:05Z"}}
	for _, c := range []struct {
		include metav1.IncludeObjectPolicy
		want    any
	}{
		{"", meta},
		{metav1.IncludeMetadata, meta},
		{metav1.IncludeNone, nil},
		{metav1.IncludeObject, map[string]any{"whole": true}},
	} {
		conv := Converter{Target: v1, Options: Options{Include: c.include}, Object: func(resource.Object) (runtime.RawExtension, error) {
			return runtime.RawExtension{Raw: []byte(`{"whole":true}`)}, nil
		}}
		table, err := conv.One(pod())
		if err != nil {
			t.Fatal(err)
		}
		m := asJSON(t, table)
		row := m["rows"].([]any)[0].(map[string]any)
		if d := cmp.Diff(c.want, row["object"]); d != "" {
			t.Errorf("include %q: %s", c.include, d)
		}
		if d := cmp.Diff([]any{"p", "2026-01-02T03:04:05Z"}, row["cells"]); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff(map[string]any{"resourceVersion": "7"}, m["metadata"]); d != "" {
			t.Error(d)
		}
	}
}

func TestOnlyTheFirstEventHasHeaders(t *testing.T) {
	conv := Converter{Target: v1}
	for i, want := range []int{2, 0, 0} {
		table, err := conv.Event(pod())
		if err != nil {
			t.Fatal(err)
		}
		if len(table.ColumnDefinitions) != want {
			t.Errorf("event %d: %d columns, want %d", i, len(table.ColumnDefinitions), want)
		}
	}
}

func TestEmptyLists(t *testing.T) {
	conv := Converter{Target: v1}
	table, err := conv.List(nil, metav1.ListMeta{ResourceVersion: "3"})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(nil, asJSON(t, table)["rows"]); d != "" {
		t.Error(d)
	}
	conv.Columns = Default{}
	if table, err = conv.List(nil, metav1.ListMeta{ResourceVersion: "3"}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]any{}, asJSON(t, table)["rows"]); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(nil, asJSON(t, PartialList(v1, nil, metav1.ListMeta{}))["items"]); d != "" {
		t.Error(d)
	}
}

func TestParseOptions(t *testing.T) {
	if o, err := ParseOptions(url.Values{"includeObject": {"None"}}); err != nil || o.Include != metav1.IncludeNone {
		t.Errorf("None: %v, %v", o, err)
	}
	_, err := ParseOptions(url.Values{"includeObject": {"All"}})
	if !errors.IsBadRequest(err) {
		t.Errorf("All: %v", err)
	}
}

func TestTarget(t *testing.T) {
	for _, c := range []struct {
		target Target
		known  bool
	}{
		{v1, true},
		{Target{"Table", "meta.k8s.io", "v1beta1"}, true},
		{Target{"Table", "meta.k8s.io", "v1alpha9"}, false},
		{Target{"PartialObjectMetadataList", "meta.k8s.io", "v1"}, true},
		{Target{"Pod", "meta.k8s.io", "v1"}, false},
	} {
		if c.target.Known() != c.known {
			t.Errorf("%v: known is %v", c.target, !c.known)
		}
	}
	err := Target{Kind: "PartialObjectMetadata", Group: "meta.k8s.io", Version: "v1"}.Check(true, "*v1.PodList")
	if want := "you requested PartialObjectMetadata, but the requested object is a list (*v1.PodList)"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := v1.Check(true, ""); err != nil {
		t.Error(err)
	}
}

// Columns may define the order of a list's rows; the list itself keeps its order.
func TestRowsInTheColumnsOrder(t *testing.T) {
	hubs := []resource.Object{&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}}}
	c := &Converter{Columns: backwards{Default{}}, Target: v1}
	table, err := c.List(hubs, metav1.ListMeta{})
	if err != nil {
		t.Fatal(err)
	}
	if table.Rows[0].Cells[0] != "b" || table.Rows[1].Cells[0] != "a" || hubs[0].GetName() != "a" {
		t.Errorf("rows %v %v, list begins with %s", table.Rows[0].Cells, table.Rows[1].Cells, hubs[0].GetName())
	}
}

type backwards struct{ Default }

func (backwards) Order(objs []resource.Object) { slices.Reverse(objs) }
