// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"context"
	"errors"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/resource"
)

// step is a plug-in that records its calls.
type step struct {
	name  string
	calls *[]string
	do    func(a *Attributes) error
}

func (s step) Name() string { return s.name }

func (s step) call(a *Attributes) error {
	*s.calls = append(*s.calls, s.name)
	if s.do == nil {
		return nil
	}
	return s.do(a)
}

type mutatingStep struct{ step }

func (s mutatingStep) Mutate(_ context.Context, _ resource.Backend, a *Attributes) error {
	return s.call(a)
}

type validatingStep struct{ step }

func (s validatingStep) Validate(_ context.Context, _ resource.Backend, a *Attributes) error {
	return s.call(a)
}

// TestChain checks that mutators and validators are called separately, in order, up to the first error.
func TestChain(t *testing.T) {
	var calls []string
	refused := errors.New("refused")
	var refuse string
	plugin := func(name string) step {
		return step{name: name, calls: &calls, do: func(*Attributes) error {
			if name == refuse {
				return refused
			}
			return nil
		}}
	}
	chain := Chain{
		mutatingStep{plugin("m1")}, validatingStep{plugin("v1")}, mutatingStep{plugin("m2")}, validatingStep{plugin("v2")},
		mutatingStep{plugin("m3")},
	}
	for _, c := range []struct {
		refuse string
		call   func(context.Context, resource.Backend, *Attributes) error
		want   []string
	}{
		{"", chain.Mutate, []string{"m1", "m2", "m3"}},
		{"m2", chain.Mutate, []string{"m1", "m2"}},
		{"", chain.Validate, []string{"v1", "v2"}},
		{"v1", chain.Validate, []string{"v1"}},
	} {
		calls, refuse = nil, c.refuse
		var want error
		if c.refuse != "" {
			want = refused
		}
		if err := c.call(t.Context(), nil, &Attributes{}); err != want || !slices.Equal(calls, c.want) {
			t.Errorf("%q refuses: called %v, error %v; want %v", c.refuse, calls, err, c.want)
		}
	}
}

// TestCallAgain checks that all mutators are called a second time if one requests it, and never a third time.
func TestCallAgain(t *testing.T) {
	var calls []string
	var rounds []int
	first := step{name: "first", calls: &calls}
	second := step{name: "second", calls: &calls, do: func(a *Attributes) error {
		rounds = append(rounds, a.Round)
		a.CallAgain()
		return nil
	}}
	if err := (Chain{mutatingStep{first}, mutatingStep{second}}).Mutate(t.Context(), nil, &Attributes{}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"first", "second", "first", "second"}; !slices.Equal(calls, want) || !slices.Equal(rounds, []int{0, 1}) {
		t.Errorf("called %v in rounds %v, want %v", calls, rounds, want)
	}
}

// TestRemember checks that each plug-in has its own value.
func TestRemember(t *testing.T) {
	var a Attributes
	if got := a.Recall("one"); got != nil {
		t.Errorf("remembered %v of nothing", got)
	}
	a.Remember("one", 1)
	a.Remember("two", 2)
	a.Remember("one", 3)
	if one, two := a.Recall("one"), a.Recall("two"); one != 3 || two != 2 {
		t.Errorf("remembered %v and %v, want 3 and 2", one, two)
	}
}

// TestEnd checks that each function is called once when a write has ended, and again after a retry.
func TestEnd(t *testing.T) {
	var told []string
	tell := func(name string) func(error) {
		return func(err error) { told = append(told, name+": "+errString(err)) }
	}
	var a Attributes
	a.OnEnd(tell("one"))
	a.OnEnd(tell("two"))
	a.End(errors.New("conflict"))
	a.End(errors.New("late"))
	a.OnEnd(tell("one"))
	a.End(nil)
	if want := []string{"one: conflict", "two: conflict", "one: "}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

func errString(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestKind checks that a subresource has its own kind if there is one, and otherwise the resource's.
func TestKind(t *testing.T) {
	scale := schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}
	deployment := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	d := &resource.Descriptor{Group: "apps", Resource: "deployments", Kind: "Deployment", Subresources: []resource.Subresource{
		{Name: "scale", GroupVersionKind: scale}, {Name: "status"},
	}}
	for subresource, want := range map[string]schema.GroupVersionKind{
		"": deployment, "scale": scale, "status": deployment, "other": deployment,
	} {
		a := Attributes{Descriptor: d, Version: "v1", Subresource: subresource}
		if got := a.Kind(); got != want {
			t.Errorf("%q is of kind %v, want %v", subresource, got, want)
		}
		if got, want := a.Resource(), (schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}); got != want {
			t.Errorf("%q is of resource %v, want %v", subresource, got, want)
		}
	}
}
