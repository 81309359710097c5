// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package metadatareflector

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestTells is what one hears of lists and events: each change once, and of what a new list lacks that it is gone.
func TestTells(t *testing.T) {
	object := func(name, uid, version string) any {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(uid),
			ResourceVersion: version}}
	}
	var heard []string
	r := New(
		func(o metav1.Object) { heard = append(heard, "+"+string(o.GetUID())+"@"+o.GetResourceVersion()) },
		func(g Deleted) { heard = append(heard, "-"+g.Name+string(g.UID)) },
	)
	steps := []struct {
		what string
		do   func() error
		want []string
	}{
		{"first list", func() error { return r.Replace([]any{object("a", "1", "5"), object("b", "2", "6")}, "6") }, []string{"+1@5", "+2@6"}},
		{"same again", func() error { return r.Update(object("a", "1", "5")) }, nil},
		{"changed", func() error { return r.Update(object("a", "1", "7")) }, []string{"+1@7"}},
		{"new", func() error { return r.Add(object("c", "3", "8")) }, []string{"+3@8"}},
		{"gone", func() error { return r.Delete(object("c", "3", "9")) }, []string{"-c3"}},
		{"gone twice", func() error { return r.Delete(object("c", "3", "9")) }, nil},
		{"made anew while nobody looked", func() error { return r.Replace([]any{object("a", "4", "12")}, "12") },
			[]string{"-b2", "-a1", "+4@12"}},
	}
	for i, s := range steps {
		heard = nil
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.what, err)
		}
		if diff := cmp.Diff(s.want, heard); diff != "" {
			t.Errorf("%s: heard (-want +got):\n%s", s.what, diff)
		}
		select {
		case <-r.synced:
		default:
			t.Errorf("step %d: not synced after the first list", i)
		}
	}
	if err := r.Add("no object"); err == nil {
		t.Error("what has no metadata was taken")
	}
}
