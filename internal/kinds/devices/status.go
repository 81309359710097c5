// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/resource"
)

// Authorize decides as the request chain does. Writing a claim's status needs further permissions: binding to allocate it, and the driver
// of each device whose status is written. Nil: these are not checked.
type Authorize func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)

// authorizedStatus adds the permission checks for the parts of a claim's status to its validation.
func (ask Authorize) authorizedStatus(
	check func(ctx context.Context, obj, old resource.Object) field.ErrorList,
) func(ctx context.Context, obj, old resource.Object) field.ErrorList {
	return func(ctx context.Context, obj, old resource.Object) field.ErrorList {
		var errs field.ErrorList
		claim, before := obj.(*resourcev1.ResourceClaim), old.(*resourcev1.ResourceClaim)
		if u, ok := request.UserFrom(ctx); ok && ask != nil {
			errs = append(ask.binding(ctx, u, claim, before), ask.drivers(ctx, u, claim, before)...)
		}
		return append(errs, check(ctx, obj, old)...)
	}
}

func (ask Authorize) binding(ctx context.Context, u user.Info, claim, old *resourcev1.ResourceClaim) field.ErrorList {
	if kind.Same(claim.Status.Allocation, old.Status.Allocation) && kind.Same(claim.Status.ReservedFor, old.Status.ReservedFor) {
		return nil
	}
	verb := verbOf(ctx)
	if err := ask.may(ctx, u, verb, resourcev1.SubresourceBinding, "", ""); err != nil {
		return field.ErrorList{field.Forbidden(field.NewPath("status", "allocation"),
			fmt.Sprintf(`changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", verb="%s" permission: %s`,
				verb, err))}
	}
	return nil
}

func (ask Authorize) drivers(ctx context.Context, u user.Info, claim, old *resourcev1.ResourceClaim) field.ErrorList {
	if claim.Status.Allocation == nil {
		return nil // the update drops its devices
	}
	verb := verbOf(ctx)
	verbs := []string{resourcev1.VerbPrefixArbitraryNode + verb}
	if onNode(u, claim.Status.Allocation) {
		verbs = []string{resourcev1.VerbPrefixAssociatedNode + verb, verbs[0]}
	}
	var errs field.ErrorList
	for _, driver := range told(claim, old) {
		var first error
		for _, v := range verbs {
			err := ask.may(ctx, u, v, resourcev1.SubresourceDriver, claim.Namespace, driver)
			if err == nil {
				first = nil
				break
			}
			if first == nil {
				first = err
			}
		}
		if first != nil {
			errs = append(errs, field.Forbidden(field.NewPath("status", "devices"),
				fmt.Sprintf(`changing status.devices requires resource="resourceclaims/driver", verb="%s" permission: %s`, verbs, first)))
		}
	}
	return errs
}

// told returns the drivers of the devices whose status the update changes, sorted.
func told(claim, old *resourcev1.ResourceClaim) []string {
	type device struct{ driver, pool, name, share string }
	of := func(s *resourcev1.AllocatedDeviceStatus) device {
		d := device{driver: s.Driver, pool: s.Pool, name: s.Device}
		if s.ShareID != nil {
			d.share = *s.ShareID
		}
		return d
	}
	before := map[device]*resourcev1.AllocatedDeviceStatus{}
	for i := range old.Status.Devices {
		before[of(&old.Status.Devices[i])] = &old.Status.Devices[i]
	}
	var out []string
	for i := range claim.Status.Devices {
		s := &claim.Status.Devices[i]
		was, ok := before[of(s)]
		delete(before, of(s))
		if !ok || !kind.Same(was, s) {
			out = append(out, s.Driver)
		}
	}
	for d := range before {
		out = append(out, d.driver)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// onNode reports whether the user is a service account whose token is bound to the one node that the claim is allocated on.
func onNode(u user.Info, a *resourcev1.AllocationResult) bool {
	if a.NodeSelector == nil || len(a.NodeSelector.NodeSelectorTerms) != 1 {
		return false
	}
	t := a.NodeSelector.NodeSelectorTerms[0]
	if len(t.MatchExpressions) != 0 || len(t.MatchFields) != 1 {
		return false
	}
	f := t.MatchFields[0]
	if f.Key != "metadata.name" || f.Operator != "In" || len(f.Values) != 1 || f.Values[0] == "" {
		return false
	}
	_, _, err := serviceaccount.SplitUsername(u.GetName())
	return err == nil && slices.Equal(u.GetExtra()[serviceaccount.NodeNameKey], f.Values)
}

func verbOf(ctx context.Context) string {
	if info, ok := request.RequestInfoFrom(ctx); ok {
		return info.Verb
	}
	return "update"
}

// may checks a verb on a part of claims that has no path of its own.
func (ask Authorize) may(ctx context.Context, u user.Info, verb, sub, namespace, name string) error {
	a := authorizer.AttributesRecord{
		User: u, Verb: verb, APIGroup: "resource.k8s.io", APIVersion: "v1", Resource: "resourceclaims", Subresource: sub,
		Namespace: namespace, Name: name, ResourceRequest: true,
	}
	decision, reason, err := ask(ctx, a)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	var why []string
	if err != nil {
		why = append(why, err.Error())
	}
	if reason != "" {
		why = append(why, reason)
	}
	text := fmt.Sprintf("User %q cannot %s resource %q in API group %q", u.GetName(), verb, "resourceclaims/"+sub, a.APIGroup)
	if namespace != "" {
		text += fmt.Sprintf(" in the namespace %q", namespace)
	} else {
		text += " at the cluster scope"
	}
	if len(why) > 0 {
		text += ": " + strings.Join(why, ": ")
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: a.APIGroup, Resource: a.Resource}, name, fmt.Errorf("%s", text))
}
