// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// TestMayFor checks that the signer's name and then its whole domain are authorized, and that an error of the
// authorizer allows nothing.
func TestMayFor(t *testing.T) {
	for _, c := range []struct {
		allowed string // the name that the user may approve for
		fail    error
		want    bool
		asked   []string
	}{
		{"example.com/a", nil, true, []string{"example.com/a"}},
		{"example.com/*", nil, true, []string{"example.com/a", "example.com/*"}},
		{"example.com/b", nil, false, []string{"example.com/a", "example.com/*"}},
		{"example.com/a", errors.New("no answer"), false, []string{"example.com/a", "example.com/*"}},
	} {
		alice := &user.DefaultInfo{Name: "alice"}
		var asked []string
		var p Authorizing
		err := p.Join(&Host{Authorize: func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			asked = append(asked, a.GetName())
			want := authorizer.AttributesRecord{
				User: alice, Verb: "approve", Name: a.GetName(),
				APIGroup: "certificates.k8s.io", APIVersion: "*", Resource: "signers", ResourceRequest: true,
			}
			if d := cmp.Diff(want, a); d != "" {
				t.Errorf("asked for something else (-want +got):\n%s", d)
			}
			if a.GetName() == c.allowed {
				return authorizer.DecisionAllow, "", c.fail
			}
			return authorizer.DecisionNoOpinion, "", c.fail
		}})
		if err != nil {
			t.Fatal(err)
		}
		got := p.Authorize.MayFor(t.Context(), alice, "approve", "example.com/a")
		if d := cmp.Diff(c.asked, asked); got != c.want || d != "" {
			t.Errorf("allowed for %s, error %v: %v, asked (-want +got):\n%s", c.allowed, c.fail, got, d)
		}
	}
}

// TestAuthorizer checks that the attributes reach the function, and that its result is returned.
func TestAuthorizer(t *testing.T) {
	fail := errors.New("no answer")
	var a authorizer.UnconditionalAuthorizer = Authorizer(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string,
		error) {
		return authorizer.DecisionDeny, a.GetVerb(), fail
	})
	decision, reason, err := a.Authorize(t.Context(), authorizer.AttributesRecord{Verb: "sign"})
	if decision != authorizer.DecisionDeny || reason != "sign" || err != fail {
		t.Errorf("got %v, %q, %v", decision, reason, err)
	}
}
