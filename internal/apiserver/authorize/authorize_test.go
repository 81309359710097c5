// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authorize_test

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
)

type fixed struct {
	name   string
	d      authorize.Decision
	reason string
	err    error
}

func (f fixed) Name() string { return f.name }

func (f fixed) Authorize(context.Context, *authorize.Attributes) (authorize.Decision, string, error) {
	return f.d, f.reason, f.err
}

func TestChain(t *testing.T) {
	broken, worse := errors.New("broken"), errors.New("worse")
	for _, c := range []struct {
		name   string
		chain  authorize.Chain
		d      authorize.Decision
		reason string
		err    string
	}{
		{"nobody", nil, authorize.NoOpinion, "", ""},
		{"the first opinion ends it", authorize.Chain{fixed{"a", authorize.Allow, "because", nil}, fixed{"b", authorize.Deny, "no", nil}},
			authorize.Allow, "because", ""},
		{"a denial ends it", authorize.Chain{fixed{"a", authorize.NoOpinion, "hm", nil}, fixed{"b", authorize.Deny, "no", nil},
			fixed{"c", authorize.Allow, "", nil}}, authorize.Deny, "no", ""},
		{"an error does not end it", authorize.Chain{fixed{"a", authorize.NoOpinion, "", broken}, fixed{"b", authorize.Allow, "yes", nil}},
			authorize.Allow, "yes", ""},
		{"an opinion's own error comes with it", authorize.Chain{fixed{"a", authorize.Deny, "", broken}}, authorize.Deny, "", "broken"},
		{"reasons of all, by name", authorize.Chain{fixed{"a", authorize.NoOpinion, "hm", nil}, fixed{"b", authorize.NoOpinion, "well", nil}},
			authorize.NoOpinion, "a: hm\nb: well", ""},
		{"one error is itself", authorize.Chain{fixed{"a", authorize.NoOpinion, "", broken}, fixed{"b", authorize.NoOpinion, "", nil}},
			authorize.NoOpinion, "", "broken"},
		{"errors of all", authorize.Chain{fixed{"a", authorize.NoOpinion, "", broken}, fixed{"b", authorize.NoOpinion, "", worse}},
			authorize.NoOpinion, "", "[broken, worse]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, reason, err := c.chain.Authorize(t.Context(), &authorize.Attributes{})
			text := ""
			if err != nil {
				text = err.Error()
			}
			if d != c.d || reason != c.reason || text != c.err {
				t.Errorf("got %v %q %q, want %v %q %q", d, reason, text, c.d, c.reason, c.err)
			}
		})
	}
}

// TestSelectors checks that valid requirements appear in both forms of attributes, and that invalid ones are an error
// and narrow nothing.
func TestSelectors(t *testing.T) {
	a := authorize.Of(&request.RequestInfo{Verb: "list", Resource: "pods", IsResourceRequest: true,
		FieldSelector: "spec.nodeName=a,status.phase!=Failed", LabelSelector: "app in (x,y),!z"}, &user.DefaultInfo{Name: "jane"})
	if len(a.Fields) != 2 || a.FieldsError != nil || len(a.Labels) != 2 || a.LabelsError != nil {
		t.Errorf("got %v %v %v %v", a.Fields, a.FieldsError, a.Labels, a.LabelsError)
	}
	var seen authorize.Attributes
	z := authorize.Func(func(_ context.Context, a *authorize.Attributes) (authorize.Decision, string, error) {
		seen = *a
		return authorize.Deny, "no", nil
	})
	d, reason, err := authorize.Standard(z)(t.Context(), a.Standard())
	if d != authorizer.DecisionDeny || reason != "no" || err != nil {
		t.Errorf("the standard form answers %v %q %v", d, reason, err)
	}
	if len(seen.Fields) != 2 || len(seen.Labels) != 2 || seen.User.GetName() != "jane" || seen.Resource != "pods" {
		t.Errorf("on the way through the standard form attributes became %+v", seen)
	}
	b := authorize.Of(&request.RequestInfo{FieldSelector: "a=b=c\\", LabelSelector: "a in"}, nil)
	if b.Fields != nil || b.FieldsError == nil || b.Labels != nil || b.LabelsError == nil {
		t.Errorf("unreadable selectors: %+v", b)
	}
}
