// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

// stored are pods by namespace/name.
type stored map[string]resource.Object

func (s stored) List(context.Context, schema.GroupResource, string) ([]resource.Object, error) {
	all := make([]resource.Object, 0, len(s))
	for _, obj := range s {
		all = append(all, obj)
	}
	return all, nil
}

// TestLabels finds the same pods as a look at all of them, whatever comes between the questions.
func TestLabels(t *testing.T) {
	l, random := newLabels(), rand.New(rand.NewPCG(1, 2))
	if names, known := l.find("a", labels.SelectorFromSet(labels.Set{"app": "x"})); known || names != nil {
		t.Errorf("before it is loaded: %v", names)
	}
	select {
	case <-l.Follower().Wanted:
	default:
		t.Error("a question does not want it")
	}
	all := stored{}
	if err := l.load(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	for i := range 3000 {
		ns, name := pick("a", "b"), fmt.Sprint("pod-", random.IntN(20))
		c := &feed.Change{Resource: podsResource, Namespace: ns, Name: name}
		if random.IntN(3) > 0 {
			of := map[string]string{"tier": pick("", "front", "back")}
			if random.IntN(4) > 0 {
				of["app"] = pick("x", "y", "z")
			}
			c.Object = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: of}}
			all[ns+"/"+name] = c.Object
		} else {
			delete(all, ns+"/"+name)
		}
		if err := l.apply(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if random.IntN(100) == 0 {
			if err := l.load(t.Context(), all); err != nil {
				t.Fatal(err)
			}
		}
		by, err := labels.Parse(pick("app=x", "app in (x,y),tier!=front", "tier==", "app,tier=back", "other=x", "app!=x", ""))
		if err != nil {
			t.Fatal(err)
		}
		names, known := l.find("a", by)
		if label, _ := exact(by); known != (label != "") {
			t.Fatalf("%q is known: %t", by, known)
		}
		var found, want []string
		for _, n := range names {
			if obj := all["a/"+n]; obj != nil && by.Matches(labels.Set(obj.GetLabels())) {
				found = append(found, n)
			}
		}
		for _, obj := range all {
			if obj.GetNamespace() == "a" && known && by.Matches(labels.Set(obj.GetLabels())) {
				want = append(want, obj.GetName())
			}
		}
		slices.Sort(want)
		if !slices.Equal(found, want) {
			t.Fatalf("%d: %q finds %v, want %v", i, by, found, want)
		}
	}
	for i := range 3 * mostLabels {
		l.find("a", labels.SelectorFromSet(labels.Set{fmt.Sprint("l", i): "x"}))
	}
	if n := len(l.values); n > mostLabels {
		t.Errorf("pods are indexed by %d labels", n)
	}
	if _, known := l.find("", labels.SelectorFromSet(labels.Set{"app": "x"})); known {
		t.Error("all namespaces are one")
	}
}
