// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/resource"
)

// Whoever writes a claim's status is asked for the parts that it changes.
func TestPartsOfStatus(t *testing.T) {
	node := &resourcev1.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: "In", Values: []string{"n1"}}},
	}}}}
	claim := func(a *resourcev1.AllocationResult, drivers ...string) *resourcev1.ResourceClaim {
		c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
		c.Status.Allocation = a
		for _, d := range drivers {
			c.Status.Devices = append(c.Status.Devices, resourcev1.AllocatedDeviceStatus{Driver: d, Pool: "p", Device: "d"})
		}
		return c
	}
	joe := &user.DefaultInfo{Name: "joe"}
	bound := &user.DefaultInfo{Name: "system:serviceaccount:ns:sa",
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"n1"}}}
	none := func(context.Context, resource.Object, resource.Object) field.ErrorList { return nil }
	for _, c := range []struct {
		name     string
		who      user.Info
		obj, old *resourcev1.ResourceClaim
		may      []string
		asked    []string
		errs     []string
	}{
		{"no change", joe, claim(node, "a"), claim(node, "a"), nil, nil, nil},
		{"allocated", joe, claim(node), claim(nil), nil, []string{"update binding /"}, []string{"status.allocation"}},
		{"allocated by leave", joe, claim(node), claim(nil), []string{"update binding /"}, []string{"update binding /"}, nil},
		{"two drivers", joe, claim(node, "b", "a"), claim(node), []string{"arbitrary-node:update driver ns/a"},
			[]string{"arbitrary-node:update driver ns/a", "arbitrary-node:update driver ns/b"}, []string{"status.devices"}},
		{"a driver on its node", bound, claim(node, "a"), claim(node), []string{"associated-node:update driver ns/a"},
			[]string{"associated-node:update driver ns/a"}, nil},
		{"a driver on its node, by the wider leave", bound, claim(node, "a"), claim(node), []string{"arbitrary-node:update driver ns/a"},
			[]string{"associated-node:update driver ns/a", "arbitrary-node:update driver ns/a"}, nil},
		{"a device goes", joe, claim(node), claim(node, "a"), nil, []string{"arbitrary-node:update driver ns/a"}, []string{"status.devices"}},
		{"all goes", joe, claim(nil), claim(node, "a"), []string{"update binding /"}, []string{"update binding /"}, nil},
	} {
		var asked []string
		ask := Authorize(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			q := a.GetVerb() + " " + a.GetSubresource() + " " + a.GetNamespace() + "/" + a.GetName()
			asked = append(asked, q)
			if slices.Contains(c.may, q) {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "", nil
		})
		var errs []string
		for _, e := range ask.authorizedStatus(none)(request.WithUser(t.Context(), c.who), c.obj, c.old) {
			errs = append(errs, e.Field)
		}
		if diff := cmp.Diff(c.asked, asked); diff != "" {
			t.Errorf("%s: asked (-want +got):\n%s", c.name, diff)
		}
		if diff := cmp.Diff(c.errs, errs); diff != "" {
			t.Errorf("%s: errors (-want +got):\n%s", c.name, diff)
		}
	}
}
