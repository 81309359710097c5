// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package initializers

import (
	"cmp"
	"context"
	"errors"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
	"github.com/mortise-dev/mortise/resource"
)

var configurations = schema.GroupResource{Group: v1alpha1.Group, Resource: v1alpha1.Resource}

// rule is one initializer as it is evaluated.
type rule struct {
	v1alpha1.Pending
	criteria matching.Criteria
}

// Follows implements [admit.Follower].
func (p *Plugin) Follows() []schema.GroupResource { return []schema.GroupResource{configurations} }

// Load reads all configurations.
func (p *Plugin) Load(ctx context.Context, b resource.Backend) error {
	p.reading.Lock()
	defer p.reading.Unlock()
	stored, err := b.List(ctx, configurations, "")
	if err != nil {
		return err
	}
	slices.SortFunc(stored, func(a, b resource.Object) int { return cmp.Compare(a.GetName(), b.GetName()) })
	var rules []*rule
	var errs []error
	where := map[string]string{}
	for _, obj := range stored {
		c, err := read(obj)
		if err != nil {
			errs = append(errs, err) // the others are in force all the same
			continue
		}
		for i := range c.Initializers {
			r := newRule(&c.Initializers[i])
			rules = append(rules, r)
			if where[r.Name] == "" {
				where[r.Name] = v1alpha1.Kind + "/" + c.Name
			}
		}
	}
	p.rules.Store(&rules)
	p.host.Ledger.RegisterAll(extension.Initializer, where)
	return errors.Join(errs...)
}

// Committed implements [admit.Follower].
func (p *Plugin) Committed(ctx context.Context, b resource.Backend, _ schema.GroupResource, _, _ string) error {
	return p.Load(ctx, b)
}

func newRule(i *v1alpha1.Initializer) *rule {
	r := &rule{Pending: v1alpha1.Pending{
		Name: i.Name, DeadlineSeconds: cmp.Or(i.DeadlineSeconds, v1alpha1.DefaultDeadlineSeconds), FailurePolicy: cmp.Or(i.FailurePolicy, v1alpha1.Fail),
	}}
	for _, of := range i.Rules {
		r.criteria.Rules = append(r.criteria.Rules, admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: of.APIGroups, APIVersions: of.APIVersions, Resources: of.Resources},
		})
	}
	everything := &metav1.LabelSelector{}
	r.criteria.Select(cmp.Or(i.NamespaceSelector, everything), cmp.Or(i.ObjectSelector, everything))
	return r
}

// settings are those of an initializer that somebody names: its configuration's, else the defaults.
func (p *Plugin) settings(name string) v1alpha1.Pending {
	for _, r := range *p.rules.Load() {
		if r.Name == name {
			return r.Pending
		}
	}
	return v1alpha1.Pending{Name: name, DeadlineSeconds: v1alpha1.DefaultDeadlineSeconds, FailurePolicy: v1alpha1.Fail}
}

// matching are the initializers that a request's new object must pass.
func (p *Plugin) matching(ctx context.Context, q *matching.Request) ([]v1alpha1.Pending, error) {
	var found []v1alpha1.Pending
	for _, r := range *p.rules.Load() {
		if slices.ContainsFunc(found, func(f v1alpha1.Pending) bool { return f.Name == r.Name }) {
			continue
		}
		form, err := r.criteria.Match(ctx, q)
		if err != nil {
			return nil, err
		}
		if form != nil {
			found = append(found, r.Pending)
		}
	}
	return found, nil
}
