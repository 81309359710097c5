// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package ownerreferences is the OwnerReferencesPermissionEnforcement plug-in: a user who changes the owners of an object
// must be allowed to delete it, since it is deleted with its owner; and a user who sets blockOwnerDeletion must be allowed
// to set finalizers on that owner. It is off by default.
package ownerreferences

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return &plugin{} }

type plugin struct {
	admit.Authorizing
	kinds func() []*resource.Descriptor
}

func (*plugin) Name() string { return "OwnerReferencesPermissionEnforcement" }

// Join implements [admit.Hosted].
func (p *plugin) Join(h *admit.Host) error {
	p.kinds = h.Kinds
	return p.Authorizing.Join(h)
}

// Validate checks the permissions that a change of owner references needs.
func (p *plugin) Validate(ctx context.Context, _ resource.Backend, a *admit.Attributes) error {
	// An update of a pod's status cannot change its owner references.
	if a.Operation != admit.Create && a.Operation != admit.Update || a.Is("", "pods", "status") || a.Object == nil {
		return nil
	}
	owners, had := a.Object.GetOwnerReferences(), ownersOf(a.Old)
	if equality.Semantic.DeepEqual(owners, had) || len(owners) == 0 && len(had) == 0 {
		return nil
	}
	// A user who creates an object needs no permission to delete it.
	if a.Operation == admit.Update {
		d, reason, err := p.Authorize(ctx, authorizer.AttributesRecord{
			User: a.User, Verb: "delete", Namespace: a.Namespace, APIGroup: a.Descriptor.Group, APIVersion: a.Version,
			Resource:    a.Descriptor.Resource,
			Subresource: a.Subresource, Name: a.Name, ResourceRequest: true,
		})
		if d != authorizer.DecisionAllow {
			return admit.Forbidden(a, fmt.Errorf("cannot set an ownerRef on a resource you can't delete: %v, %v", reason,
				err)) //nolint:errorlint // upstream's words
		}
	}
	blocking := newlyBlocking(owners, had)
	if len(blocking) == 0 || p.mayAll(ctx, a) {
		return nil
	}
	for _, ref := range blocking {
		if err := p.mayBlock(ctx, a, ref); err != nil {
			return err
		}
	}
	return nil
}

// mayAll reports whether the user may set finalizers on all objects.
func (p *plugin) mayAll(ctx context.Context, a *admit.Attributes) bool {
	d, _, _ := p.Authorize(ctx, authorizer.AttributesRecord{
		User: a.User, Verb: "update", APIGroup: "*", APIVersion: "*", Resource: "*", Subresource: "finalizers", Name: "*", ResourceRequest: true,
	})
	return d == authorizer.DecisionAllow
}

func (p *plugin) mayBlock(ctx context.Context, a *admit.Attributes, ref metav1.OwnerReference) error {
	owners, err := p.resources(ref)
	if err != nil {
		return admit.Forbidden(a, fmt.Errorf(
			"cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion %s Kind %s: %v", ref.APIVersion, ref.Kind,
			err)) //nolint:errorlint // upstream's words
	}
	for _, owner := range owners {
		asked := authorizer.AttributesRecord{
			User: a.User, Verb: "update", APIGroup: owner.Group, APIVersion: owner.version, Resource: owner.Resource, Subresource: "finalizers",
			Name: ref.Name, ResourceRequest: true,
		}
		if owner.Namespaced {
			asked.Namespace = a.Namespace
		}
		if d, reason, err := p.Authorize(ctx, asked); d != authorizer.DecisionAllow {
			return admit.Forbidden(a, fmt.Errorf(
				"cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: %v, %v", reason,
				err)) //nolint:errorlint // upstream's words
		}
	}
	return nil
}

// served is a kind in one of its versions.
type served struct {
	*resource.Descriptor
	version string
}

// resources returns the resources that serve the owner's kind or the kind of its list.
func (p *plugin) resources(ref metav1.OwnerReference) ([]served, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, err
	}
	var found []served
	for _, d := range p.kinds() {
		if d.Group == gv.Group && (d.Kind == ref.Kind || d.Kind+"List" == ref.Kind) &&
			slices.ContainsFunc(d.Versions, func(v resource.Version) bool { return v.Name == gv.Version }) {
			found = append(found, served{d, gv.Version})
		}
	}
	if len(found) == 0 {
		return nil, &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: gv.Group, Kind: ref.Kind}, SearchedVersions: []string{gv.Version}}
	}
	return found, nil
}

func ownersOf(obj resource.Object) []metav1.OwnerReference {
	if obj == nil {
		return nil
	}
	return obj.GetOwnerReferences()
}

// newlyBlocking returns the references that block the owner's deletion now and did not before.
func newlyBlocking(owners, had []metav1.OwnerReference) []metav1.OwnerReference {
	blocks := func(r metav1.OwnerReference) bool { return r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion }
	var out []metav1.OwnerReference
	for _, ref := range owners {
		before := slices.IndexFunc(had, func(h metav1.OwnerReference) bool { return h.UID == ref.UID })
		if blocks(ref) && (before < 0 || !blocks(had[before])) {
			out = append(out, ref)
		}
	}
	return out
}
