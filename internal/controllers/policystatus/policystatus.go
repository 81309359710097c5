// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package policystatus type-checks the expressions of ValidatingAdmissionPolicies against the schemas of the kinds that they match,
// built-in and custom, and writes the warnings into their status. It does not change what policies decide.
//
// The controller checks a policy once for each generation: kinds that are added later count from the policy's next generation. The schemas
// are those that the server publishes at /openapi/v3.
package policystatus

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/admissionregistration/v1"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// manager is the field manager of the status.
const manager = "validatingadmissionpolicy-status"

// Controller describes the loop.
func Controller() controllers.Controller {
	policies := []schema.GroupVersionResource{admissionv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies")}
	const name = "validatingadmissionpolicy-status-controller"
	return controllers.Controller{
		Name: name, Account: name, Inputs: policies, Outputs: policies, New: build,
		Syncs: &controllers.Syncs{Flag: "concurrent-validating-admission-policy-status-syncs", Default: 5},
	}
}

type controller struct {
	client   kubernetes.Interface
	policies listers.ValidatingAdmissionPolicyLister
	queue    *controllers.Queue[string]
	checker  validating.TypeChecker
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	policies := d.Informers.Admissionregistration().V1().ValidatingAdmissionPolicies()
	c := &controller{
		client: d.Client, policies: policies.Lister(), queue: controllers.NewQueue[string](d, manager, d.Syncs()),
		checker: validating.TypeChecker{SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: d.Discovery}, RestMapper: d.RESTMapper},
	}
	wake := func(p *admissionv1.ValidatingAdmissionPolicy) {
		if unchecked(p) {
			c.queue.Add(p.Name)
		}
	}
	err := controllers.Subscribe(d, policies.Informer(), controllers.Handler[*admissionv1.ValidatingAdmissionPolicy]{
		Add: wake, Update: func(_, p *admissionv1.ValidatingAdmissionPolicy) { wake(p) },
	})
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

func unchecked(p *admissionv1.ValidatingAdmissionPolicy) bool {
	return p.Generation > p.Status.ObservedGeneration
}

func (c *controller) sync(ctx context.Context, name string) error {
	policy, err := c.policies.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get policy: %w", err)
	}
	if !unchecked(policy) {
		return nil
	}
	err = controllers.Apply(ctx, c.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Patch, manager, controllers.Applied{
		Kind: admissionv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy"), Name: name,
		Fields: map[string]any{"status": map[string]any{
			"observedGeneration": policy.Generation,
			"typeChecking":       admissionv1.TypeChecking{ExpressionWarnings: c.checker.Check(policy)},
		}},
	}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
