// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package clusterroleaggregation fills each cluster role that has an aggregation rule with the rules of the roles that it selects. An
// extension can so add to admin, edit and view by labelling a role of its own.
package clusterroleaggregation

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/rbac/v1"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// manager is the field manager of the aggregated rules.
const manager = "clusterrole-aggregation-controller"

// Controller describes the loop.
func Controller() controllers.Controller {
	roles := []schema.GroupVersionResource{rbacv1.SchemeGroupVersion.WithResource("clusterroles")}
	const name = "clusterrole-aggregation-controller"
	return controllers.Controller{Name: name, Account: name, Inputs: roles, Outputs: roles, New: build}
}

type controller struct {
	client kubernetes.Interface
	roles  listers.ClusterRoleLister
	queue  *controllers.Queue[string]
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	roles := d.Informers.Rbac().V1().ClusterRoles()
	c := &controller{client: d.Client, roles: roles.Lister(), queue: controllers.NewQueue[string](d, "ClusterRoleAggregator", 5)}
	// Only trying tells which role selects which: each change concerns every aggregating role.
	return c, controllers.Subscribe(d, roles.Informer(), controllers.Handler[*rbacv1.ClusterRole]{
		Add:    func(r *rbacv1.ClusterRole) { c.changed(nil, r) },
		Update: c.changed,
		Delete: func(r *rbacv1.ClusterRole) { c.changed(r, nil) },
	})
}

func (c *controller) changed(old, updated *rbacv1.ClusterRole) {
	if old != nil && updated != nil && equality.Semantic.DeepEqual(old.Rules, updated.Rules) &&
		equality.Semantic.DeepEqual(old.Labels, updated.Labels) &&
		equality.Semantic.DeepEqual(old.AggregationRule, updated.AggregationRule) {
		return
	}
	all, err := c.roles.List(labels.Everything())
	if err != nil {
		panic(fmt.Errorf("a lister of everything cannot err: %w", err))
	}
	for _, r := range all {
		if r.AggregationRule != nil {
			c.queue.Add(r.Name)
		}
	}
}

// Run reconciles until ctx ends.
func (c *controller) Run(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }

func (c *controller) sync(ctx context.Context, name string) error {
	role, err := c.roles.Get(name)
	if apierrors.IsNotFound(err) || err == nil && role.AggregationRule == nil {
		return nil
	} else if err != nil {
		return fmt.Errorf("get cluster role: %w", err)
	}
	all, err := c.roles.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list cluster roles: %w", err)
	}
	rules, err := gather(role, all)
	if err != nil {
		return fmt.Errorf("aggregate cluster role %s: %w", name, err)
	}
	if equality.Semantic.DeepEqual(rules, role.Rules) {
		return nil
	}
	fields := map[string]any{}
	if len(rules) > 0 {
		fields["rules"] = rules
	}
	return controllers.Apply(ctx, c.client.RbacV1().ClusterRoles().Patch, manager, controllers.Applied{
		Kind: rbacv1.SchemeGroupVersion.WithKind("ClusterRole"), Name: name, Fields: fields,
	})
}

// gather lists the rules of the roles that role's selectors match: selector by selector, by name, each rule once.
func gather(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	all = slices.SortedFunc(slices.Values(all), func(a, b *rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) })
	rules := []rbacv1.PolicyRule{}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, err
		}
		for _, r := range all {
			if r.Name == role.Name || !selector.Matches(labels.Set(r.Labels)) {
				continue
			}
			for _, rule := range r.Rules {
				if !slices.ContainsFunc(rules, func(have rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(have, rule) }) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules, nil
}
