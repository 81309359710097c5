// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package initializers

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/resource"
)

// configured returns a plug-in without users with the verb initialize, and with one initializer of config maps that are
// labelled on=yes.
func configured() *Plugin {
	p := New(clocktesting.NewFakeClock(metav1.Now().Time))
	p.host = &admit.Host{Authorize: func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionNoOpinion, "nobody may", nil
	}}
	p.rules.Store(&[]*rule{newRule(&v1alpha1.Initializer{
		Name: "a.example.com", ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"on": "yes"}},
		Rules: []v1alpha1.Rule{{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*"}}},
	})})
	return p
}

func creation(group string) *admit.Attributes {
	return &admit.Attributes{
		Operation: admit.Create, Version: "v1", Namespace: "ns", Name: "m",
		Descriptor: &resource.Descriptor{Group: group, Resource: "configmaps", Kind: "ConfigMap", Namespaced: true, Storage: "v1",
			Subresources: []resource.Subresource{
				{Name: "status", Strategy: &resource.Strategy{}}, {Name: "binding", Create: &resource.Create{}},
			}},
		Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m", Namespace: "ns", Labels: map[string]string{"on": "yes"}}},
	}
}

// TestSecondRound checks that in a second round the plug-in replaces its own annotation, which no user requested.
func TestSecondRound(t *testing.T) {
	for name, c := range map[string]struct {
		between   func(obj resource.Object)
		waits     bool
		forbidden bool
	}{
		"nothing changed":      {func(resource.Object) {}, true, false},
		"it matches no longer": {func(obj resource.Object) { obj.SetLabels(nil) }, false, false},
		"another wrote a list": {func(obj resource.Object) {
			obj.SetAnnotations(map[string]string{v1alpha1.InitializersAnnotation: `{"pending":[]}`})
		}, false, true},
		"another took it away":    {func(obj resource.Object) { obj.SetAnnotations(nil) }, true, false},
		"another wrote beside it": {func(obj resource.Object) { obj.GetAnnotations()["x"] = "y" }, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, a := configured(), creation("")
			if err := p.Mutate(t.Context(), nil, a); err != nil || !v1alpha1.Turn(a.Object, "a.example.com") {
				t.Fatalf("first round: %v, %v", a.Object, err)
			}
			c.between(a.Object)
			a.CallAgain()
			a.Again()
			err := p.Mutate(t.Context(), nil, a)
			if apierrors.IsForbidden(err) != c.forbidden || err != nil && !c.forbidden || !c.forbidden &&
				v1alpha1.Uninitialized(a.Object) != c.waits {
				t.Errorf("second round: %v, %v", a.Object, err)
			}
		})
	}
}

// TestNobodyWaits creates objects that never wait, whatever the rules.
func TestNobodyWaits(t *testing.T) {
	for name, change := range map[string]func(a *admit.Attributes){
		"a group that configures the server": func(a *admit.Attributes) { a.Descriptor.Group = "rbac.authorization.k8s.io" },
		"a kind that is not stored": func(a *admit.Attributes) {
			a.Descriptor.Create = func(context.Context, resource.Backend, resource.Object, *metav1.CreateOptions) (resource.Object, error) {
				return nil, nil
			}
		},
		"a kind of the server's own": func(a *admit.Attributes) { a.Descriptor.Group = v1alpha1.Group },
		"a deletion":                 func(a *admit.Attributes) { a.Operation = admit.Delete },
	} {
		a := creation("")
		change(a)
		if err := configured().Mutate(t.Context(), empty{}, a); err != nil || a.Object.GetAnnotations() != nil {
			t.Errorf("%s: %v, %v", name, a.Object, err)
		}
	}
}

// TestSubresources checks that a write to a subresource does not change the list.
func TestSubresources(t *testing.T) {
	const list = `{"pending":[{"name":"a.example.com"}]}`
	p, a := configured(), creation("")
	a.Subresource = "binding"
	a.Object.SetAnnotations(map[string]string{v1alpha1.InitializersAnnotation: list})
	if err := p.Mutate(t.Context(), empty{}, a); !apierrors.IsForbidden(err) {
		t.Errorf("by way of binding: %v", err)
	}
	p.host.Authorize = func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionAllow, "", nil
	}
	for _, c := range []struct{ was, is string }{{"", list}, {list, ""}, {list, `{"pending":[]}`}, {list, list}} {
		a := creation("")
		a.Operation, a.Subresource = admit.Update, "status"
		a.Old = a.Object.DeepCopyObject().(resource.Object)
		for obj, value := range map[resource.Object]string{a.Old: c.was, a.Object: c.is} {
			obj.SetAnnotations(map[string]string{"other": "x"})
			if value != "" {
				obj.GetAnnotations()[v1alpha1.InitializersAnnotation] = value
			}
		}
		err := p.Mutate(t.Context(), nil, a)
		if got := a.Object.GetAnnotations(); err != nil || got[v1alpha1.InitializersAnnotation] != c.was || got["other"] != "x" {
			t.Errorf("by way of status, %q to %q: %v, %v", c.was, c.is, got, err)
		}
	}
}

// TestExplained checks that the plug-in records its own changes in traces, so that objects need no comparison before
// and after it.
func TestExplained(t *testing.T) {
	if foreign := explain.Foreign([]string{Name}); len(foreign) > 0 {
		t.Errorf("package explain does not know what these change: %v", foreign)
	}
}

// empty is a backend without objects.
type empty struct{ resource.Backend }

func (empty) Get(_ context.Context, r schema.GroupResource, _, name string) (resource.Object, error) {
	return nil, apierrors.NewNotFound(r, name)
}
