// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
)

// TestAlways checks that AlwaysAllow allows and lists everything, and that AlwaysDeny has no opinion, a reason, and an
// empty list.
func TestAlways(t *testing.T) {
	all := []string{"*"}
	for _, c := range []struct {
		z            always
		name, reason string
		rules        []authorizationv1.ResourceRule
		paths        []authorizationv1.NonResourceRule
	}{
		{always{authorize.Allow}, "alwaysallow", "", []authorizationv1.ResourceRule{{Verbs: all, APIGroups: all, Resources: all}},
			[]authorizationv1.NonResourceRule{{Verbs: all, NonResourceURLs: all}}},
		{always{authorize.NoOpinion}, "alwaysdeny", "Everything is forbidden.", nil, nil},
	} {
		d, reason, err := c.z.Authorize(t.Context(), &authorize.Attributes{})
		if d != c.z.d || reason != c.reason || err != nil || c.z.Name() != c.name {
			t.Errorf("%s: %v %q %v", c.z.Name(), d, reason, err)
		}
		rules, paths, incomplete, err := c.z.Review(t.Context(), nil, "ns")
		if diff := cmp.Diff(c.rules, rules) + cmp.Diff(c.paths, paths); diff != "" || incomplete || err != nil {
			t.Errorf("%s: %v %v\n%s", c.name, incomplete, err, diff)
		}
	}
}

func TestHash(t *testing.T) {
	if got := hash([]byte("x")); got != "sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881" || hash(nil) != "" {
		t.Errorf("%s, %s", got, hash(nil))
	}
}
