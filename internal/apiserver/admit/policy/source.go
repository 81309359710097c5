// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/manifests"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

const group = "admissionregistration.k8s.io"

// policy is one policy with its bindings. E is the type of its compiled expressions.
type policy[E any] struct {
	name     string
	static   bool
	failure  *admissionregistrationv1.FailurePolicyType
	params   *admissionregistrationv1.ParamKind
	object   resource.Object
	bindings []*binding

	criteria   *matching.Criteria // nil: it has none, which is an error
	authorizes bool               // its expressions may use the authorizer
	namespaced bool               // they may read the namespace
	evaluator  func() E
}

// ignores reports whether the policy is passed over where it is wrong itself.
func (p *policy[E]) ignores() bool {
	return p.failure != nil && *p.failure == admissionregistrationv1.Ignore
}

// binding is one binding of a policy.
type binding struct {
	name     string
	policy   string
	params   *admissionregistrationv1.ParamRef
	actions  []admissionregistrationv1.ValidationAction
	criteria *matching.Criteria // nil: everything that the policy matches
}

// criteriaOf parses constraints; nil: there are none.
func criteriaOf(m *admissionregistrationv1.MatchResources) *matching.Criteria {
	if m == nil {
		return nil
	}
	c := &matching.Criteria{Anything: true}
	c.Equivalent = m.MatchPolicy != nil && *m.MatchPolicy == admissionregistrationv1.Equivalent
	for _, r := range m.ResourceRules {
		c.Rules, c.Names = append(c.Rules, r.RuleWithOperations), append(c.Names, r.ResourceNames)
	}
	for _, r := range m.ExcludeResourceRules {
		c.Excluded, c.ExcludedNames = append(c.Excluded, r.RuleWithOperations), append(c.ExcludedNames, r.ResourceNames)
	}
	c.Select(m.NamespaceSelector, m.ObjectSelector)
	return c
}

func bindingOf(name, policy string, params *admissionregistrationv1.ParamRef, m *admissionregistrationv1.MatchResources,
	actions []admissionregistrationv1.ValidationAction) *binding {
	return &binding{name: name, policy: policy, params: params, actions: actions, criteria: criteriaOf(m)}
}

// matches reports whether the binding is about a request.
func (b *binding) matches(ctx context.Context, q *matching.Request) (bool, error) {
	if b.criteria == nil {
		return true, nil
	}
	f, err := b.criteria.Match(ctx, q)
	return f != nil, err
}

// source is the common part of both plug-ins: policies of one kind, and their bindings.
type source[E any] struct {
	admit.Readiness
	name               string
	policies, bindings schema.GroupResource
	point              extension.Point // of the policies, in the ledger
	read               func(resource.Object) (*policy[E], error)
	readBinding        func(resource.Object) (*binding, error)

	host   *admit.Host
	active atomic.Pointer[[]*policy[E]] // policies with bindings, by name; nil: none

	// manifests is a directory of policies that come before those of the API; empty: none.
	manifests string

	mu       sync.Mutex
	policy   map[string]*policy[E]
	bound    map[string]*binding
	fromFile []*policy[E]
	hash     string          // hash of the source of fromFile
	listed   map[string]bool // the policies in the ledger
}

// Options of the plug-ins.
type Options struct {
	// Manifests is a directory of policies and bindings that come before those of the API; empty: none.
	Manifests string
}

// Run follows the directory of manifests until ctx ends.
func (s *source[E]) Run(ctx context.Context) error {
	if s.manifests == "" {
		<-ctx.Done()
		return nil
	}
	manifests.Follow(ctx, s.host.Log, s.manifests, s.readManifests)
	return nil
}

// readManifests reads the directory, and reports whether there were changes.
func (s *source[E]) readManifests() (bool, error) {
	ps, bs, hash, err := manifests.Policies(s.host, s.policies, s.bindings, s.manifests)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if hash == s.hash {
		return false, nil
	}
	of := map[string][]*binding{}
	for _, obj := range bs {
		b, err := s.readBinding(obj)
		if err != nil {
			return false, err
		}
		of[b.policy] = append(of[b.policy], b)
	}
	var all []*policy[E]
	for _, obj := range ps {
		p, err := s.read(obj)
		if err != nil {
			return false, err
		}
		if p.static, p.bindings = true, of[p.name]; len(p.bindings) > 0 {
			all = append(all, p)
		}
	}
	s.fromFile, s.hash = all, hash
	s.arrange()
	return true, nil
}

// Name returns upstream's name of the plug-in.
func (s *source[E]) Name() string { return s.name }

// Join implements [admit.Hosted].
func (s *source[E]) Join(h *admit.Host) error {
	s.host, s.policy, s.bound = h, map[string]*policy[E]{}, map[string]*binding{}
	return nil
}

// Follows returns the kinds of policies and of bindings.
func (s *source[E]) Follows() []schema.GroupResource {
	return []schema.GroupResource{s.policies, s.bindings}
}

// Load replaces all policies and bindings with the stored ones.
func (s *source[E]) Load(ctx context.Context, stored feed.Lister) error {
	if s.manifests != "" {
		if _, err := s.readManifests(); err != nil {
			return err
		}
	}
	found := map[schema.GroupResource][]resource.Object{}
	for _, r := range s.Follows() {
		all, err := stored.List(ctx, r, "")
		if err != nil {
			return err
		}
		found[r] = all
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.policy)
	clear(s.bound)
	for r, all := range found {
		for _, obj := range all {
			if err := feed.Fail(stored, r, obj, s.take(r, obj)); err != nil {
				return err
			}
		}
	}
	s.arrange()
	return nil
}

func (s *source[E]) take(r schema.GroupResource, obj resource.Object) error {
	if r == s.policies {
		p, err := s.read(obj)
		if err != nil {
			return err
		}
		s.policy[p.name] = p
		return nil
	}
	b, err := s.readBinding(obj)
	if err != nil {
		return err
	}
	s.bound[b.name] = b
	return nil
}

// Apply applies a change of a policy or binding.
func (s *source[E]) Apply(_ context.Context, c *feed.Change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.Object != nil:
		if err := s.take(c.Resource, c.Object); err != nil {
			return err
		}
	case c.Resource == s.policies:
		delete(s.policy, c.Name)
	default:
		delete(s.bound, c.Name)
	}
	s.arrange()
	return nil
}

// ref returns the reference of a policy in the ledger.
func (s *source[E]) ref(policy string) extension.Ref {
	return extension.Ref{Point: s.point, Name: policy}
}

// arrange rebuilds the list that requests read: policies from files first, then by name. Bindings are sorted by name.
func (s *source[E]) arrange() {
	of := map[string][]*binding{}
	for _, name := range slices.Sorted(maps.Keys(s.bound)) {
		b := s.bound[name]
		of[b.policy] = append(of[b.policy], b)
	}
	all := slices.Clone(s.fromFile)
	for _, name := range slices.Sorted(maps.Keys(s.policy)) {
		if len(of[name]) == 0 {
			continue
		}
		p := *s.policy[name]
		p.bindings = of[name]
		all = append(all, &p)
	}
	listed := make(map[string]bool, len(all))
	for _, p := range all {
		s.host.Ledger.Register(s.ref(p.name), s.policies.Resource+"/"+p.name)
		listed[p.name] = true
	}
	for name := range s.listed {
		if !listed[name] {
			s.host.Ledger.Unregister(s.ref(name))
		}
	}
	s.listed = listed
	if len(all) == 0 {
		s.active.Store(nil)
		return
	}
	s.active.Store(&all)
}

// Handles implements [admit.Filter].
func (s *source[E]) Handles(a *admit.Attributes) bool {
	return len(s.relevant(a)) > 0 || s.Refuse(a) != nil
}

// relevant returns the policies that may apply to a request. No policy applies to reviews of users. To policies and
// bindings themselves only policies from files apply.
func (s *source[E]) relevant(a *admit.Attributes) []*policy[E] {
	all := s.active.Load()
	if all == nil || a.Descriptor.Group == "authorization.k8s.io" || a.Descriptor.Group == "authentication.k8s.io" {
		return nil
	}
	if a.Descriptor.Group == group && configuresPolicies(a.Descriptor.Resource) {
		n := slices.IndexFunc(*all, func(p *policy[E]) bool { return !p.static })
		if n < 0 {
			n = len(*all)
		}
		return (*all)[:n]
	}
	return *all
}

// configuresPolicies reports whether policies must not be about a resource, so that none can keep itself from being mended.
func configuresPolicies(r string) bool {
	switch r {
	case "validatingadmissionpolicies", "validatingadmissionpolicybindings", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings":
		return true
	}
	return false
}
