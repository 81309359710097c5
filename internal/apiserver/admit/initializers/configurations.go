// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package initializers

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

var configurations = schema.GroupResource{Group: v1alpha1.Group, Resource: v1alpha1.Resource}

// rule is one compiled initializer.
type rule struct {
	v1alpha1.Pending
	criteria matching.Criteria
}

// Follows implements [admit.Follower].
func (p *Plugin) Follows() []schema.GroupResource { return []schema.GroupResource{configurations} }

// Load replaces all configurations with the stored ones. One that cannot be read does not affect the others.
func (p *Plugin) Load(ctx context.Context, stored feed.Lister) error {
	all, err := stored.List(ctx, configurations, "")
	if err != nil {
		return err
	}
	clear(p.configurations)
	var errs []error
	for _, obj := range all {
		errs = append(errs, feed.Fail(stored, configurations, obj, p.take(obj.GetName(), obj)))
	}
	p.arrange()
	return errors.Join(errs...)
}

// Apply applies a change of a configuration.
func (p *Plugin) Apply(_ context.Context, c *feed.Change) error {
	err := p.take(c.Name, c.Object)
	p.arrange()
	return err
}

// take stores a configuration under its name, or removes it if obj is nil. A configuration that cannot be read has no
// effect.
func (p *Plugin) take(name string, obj resource.Object) error {
	delete(p.configurations, name)
	if obj == nil {
		return nil
	}
	c, err := read(obj)
	if err != nil {
		return err
	}
	p.configurations[name] = c
	return nil
}

// arrange rebuilds the rules that requests read, sorted by the names of their configurations.
func (p *Plugin) arrange() {
	var rules []*rule
	where := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(p.configurations)) {
		c := p.configurations[name]
		for i := range c.Initializers {
			r := newRule(&c.Initializers[i])
			rules = append(rules, r)
			if where[r.Name] == "" {
				where[r.Name] = v1alpha1.Kind + "/" + name
			}
		}
	}
	p.rules.Store(&rules)
	p.host.Ledger.RegisterAll(extension.Initializer, where)
}

func newRule(i *v1alpha1.Initializer) *rule {
	r := &rule{Pending: v1alpha1.Pending{
		Name: i.Name, DeadlineSeconds: cmp.Or(i.DeadlineSeconds, v1alpha1.DefaultDeadlineSeconds),
		FailurePolicy: cmp.Or(i.FailurePolicy, v1alpha1.Fail),
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

// settings returns the deadline and failure policy of a named initializer: its configuration's, or the defaults.
func (p *Plugin) settings(name string) v1alpha1.Pending {
	for _, r := range *p.rules.Load() {
		if r.Name == name {
			return r.Pending
		}
	}
	return v1alpha1.Pending{Name: name, DeadlineSeconds: v1alpha1.DefaultDeadlineSeconds, FailurePolicy: v1alpha1.Fail}
}

// matching returns the initializers that a request's new object must pass.
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
