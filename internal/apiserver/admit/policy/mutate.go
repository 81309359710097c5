// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	admissionauthorizer "k8s.io/apiserver/pkg/admission/plugin/authorizer"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/resource"
)

// admissionAuthorizer answers the authorization checks of expressions.
type admissionAuthorizer = authorizer.UnconditionalAuthorizer

// Mutating is the plug-in MutatingAdmissionPolicy.
type Mutating struct {
	source[*mutations]
	meters *meters
}

var (
	_ admit.Mutator  = (*Mutating)(nil)
	_ admit.Hosted   = (*Mutating)(nil)
	_ admit.Follower = (*Mutating)(nil)
)

// mutations are a policy's compiled expressions.
type mutations struct {
	compiler *cel.CompositedCompiler
	matcher  matchconditions.Matcher
	patchers []patch.Patcher
	err      error
}

// NewMutating returns the plug-in.
func NewMutating(o Options) *Mutating {
	return &Mutating{source: source[*mutations]{
		name: "MutatingAdmissionPolicy", manifests: o.Manifests,
		point:    extension.MutatingPolicy,
		policies: schema.GroupResource{Group: group, Resource: "mutatingadmissionpolicies"},
		bindings: schema.GroupResource{Group: group, Resource: "mutatingadmissionpolicybindings"},
		read:     readMutating,
		readBinding: func(obj resource.Object) (*binding, error) {
			b, ok := obj.(*admissionregistrationv1.MutatingAdmissionPolicyBinding)
			if !ok {
				return nil, fmt.Errorf("read policy binding %s: it is a %T", obj.GetName(), obj)
			}
			return bindingOf(b.Name, b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources, nil), nil
		},
	}}
}

func readMutating(obj resource.Object) (*policy[*mutations], error) {
	p, ok := obj.(*admissionregistrationv1.MutatingAdmissionPolicy)
	if !ok {
		return nil, fmt.Errorf("read policy %s: it is a %T", obj.GetName(), obj)
	}
	out := &policy[*mutations]{name: p.Name, failure: p.Spec.FailurePolicy, params: p.Spec.ParamKind, object: p}
	out.criteria = criteriaOf(p.Spec.MatchConstraints)
	out.evaluator = sync.OnceValue(func() *mutations { return compileMutating(p) })
	return out, nil
}

func compileMutating(p *admissionregistrationv1.MutatingAdmissionPolicy) *mutations {
	c, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		return &mutations{err: fmt.Errorf("failed to initialize CEL compiler: %w", err)} // upstream's words
	}
	opts := cel.OptionalVariableDeclarations{HasParams: p.Spec.ParamKind != nil, HasAuthorizer: true}
	c.CompileAndStoreVariables(variables(p.Spec.Variables), opts, environment.StoredExpressions)
	m := &mutations{compiler: c}
	if conditions := p.Spec.MatchConditions; len(conditions) > 0 {
		m.matcher = matchconditions.NewMatcher(c.CompileCondition(conditionsOf(conditions), opts, environment.StoredExpressions),
			p.Spec.FailurePolicy, "policy", "validate", p.Name)
	}
	opts.HasPatchTypes = true
	for _, said := range p.Spec.Mutations {
		switch {
		case said.PatchType == admissionregistrationv1.PatchTypeJSONPatch && said.JSONPatch != nil:
			m.patchers = append(m.patchers, patch.NewJSONPatcher(
				c.CompileMutatingEvaluator(&patch.JSONPatchCondition{Expression: said.JSONPatch.Expression}, opts, environment.StoredExpressions)))
		case said.PatchType == admissionregistrationv1.PatchTypeApplyConfiguration && said.ApplyConfiguration != nil:
			m.patchers = append(m.patchers, patch.NewApplyConfigurationPatcher(
				c.CompileMutatingEvaluator(&patch.ApplyConfigurationCondition{Expression: said.ApplyConfiguration.Expression}, opts,
					environment.StoredExpressions)))
		}
	}
	return m
}

// call is the call of one policy through one binding with one parameter.
type call struct {
	policy  *policy[*mutations]
	binding *binding
	form    *matching.Form
	param   runtime.Object
}

// key identifies a call across the rounds of a request.
type key struct{ policy, binding, namespace, param string }

func (c *call) key() key {
	k := key{policy: c.policy.name, binding: c.binding.name}
	if o, ok := c.param.(metav1.Object); ok {
		k.namespace, k.param = o.GetNamespace(), o.GetName()
	}
	return k
}

// round is the state of a request after the first round of its mutation. There are at most two rounds.
type round struct {
	output  resource.Object
	patched bool         // a policy was applied
	again   map[key]bool // calls that may be repeated
}

// mutation is one round of a request's mutation.
type mutation struct {
	q     *matching.Request
	wrong *refusals
	ns    *corev1.Namespace
	authz admissionAuthorizer
	due   map[key]bool // calls of the second round
}

// refusals collects errors of policies.
type refusals struct {
	q      *matching.Request
	ledger *extension.Ledger
	trace  *explain.Trace
	causes []string
	reason metav1.StatusReason
}

func (r *refusals) add(p *policy[*mutations], b *binding, err error, reason metav1.StatusReason) {
	explainRefusal(r.trace, trace.Mutate, p, b, err)
	r.ledger.Book(extension.Ref{Point: extension.MutatingPolicy, Name: p.name}, 0, err)
	if p.ignores() {
		return
	}
	if len(r.causes) == 0 {
		r.reason = reason
	}
	if b == nil {
		r.causes = append(r.causes, fmt.Sprintf("policy %q denied request: %s", p.name, err)) // upstream's words
		return
	}
	r.causes = append(r.causes, fmt.Sprintf("policy '%s' with binding '%s' denied request: %s", p.name, b.name, err)) // upstream's words
}

func (r *refusals) status() error {
	if len(r.causes) == 0 {
		return nil
	}
	err := admit.Forbidden(r.q.Attributes, errors.New("admission request denied by policy")) // upstream's words
	if st := (*apierrors.StatusError)(nil); errors.As(err, &st) {
		st.ErrStatus.Message = r.causes[0]
		if r.reason != "" {
			st.ErrStatus.Reason = r.reason
		}
		for _, c := range r.causes {
			st.ErrStatus.Details.Causes = append(st.ErrStatus.Details.Causes, metav1.StatusCause{Message: c})
		}
	}
	return err
}

// Mutate applies the matching policies one after the other.
func (s *Mutating) Mutate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if err := s.Refuse(a); err != nil {
		return err
	}
	policies := s.relevant(a)
	if len(policies) == 0 {
		return nil
	}
	q := matching.NewRequest(s.host, b, a)
	wrong := &refusals{q: q, ledger: s.host.Ledger, trace: explain.From(ctx)}
	var calls []call
	for _, p := range policies {
		calls = s.calls(ctx, b, q, p, wrong, calls)
	}
	if len(calls) > 0 {
		if err := s.apply(ctx, q, calls, wrong); err != nil {
			return err
		}
	}
	return wrong.status()
}

// calls adds the calls of a policy.
func (s *Mutating) calls(ctx context.Context, b resource.Backend, q *matching.Request, p *policy[*mutations], wrong *refusals,
	calls []call) []call {
	form, err := match(ctx, p, q)
	if err != nil {
		wrong.add(p, nil, fmt.Errorf("failed to configure policy: %w", err), "") // upstream's words
		return calls
	}
	if form == nil {
		return calls
	}
	kind, err := findParams(s.host, p.params)
	if err != nil {
		wrong.add(p, nil, fmt.Errorf("failed to configure policy: %w", err), "") // upstream's words
		return calls
	}
	for _, bind := range p.bindings {
		ok, err := bind.matches(ctx, q)
		if err == nil && !ok {
			continue
		}
		var params []runtime.Object
		if err == nil {
			params, err = kind.collect(ctx, b, bind.params, q.Namespace)
		}
		if err != nil {
			wrong.add(p, bind, fmt.Errorf("failed to configure binding: %w", err), "") // upstream's words
			continue
		}
		for _, param := range params {
			calls = append(calls, call{p, bind, form, param})
		}
	}
	return calls
}

// apply calls policies in order, each with the object that the previous one returned. In the second round it repeats
// the calls that request it, if the object has changed since.
func (s *Mutating) apply(ctx context.Context, q *matching.Request, calls []call, wrong *refusals) error {
	m := &mutation{q: q, wrong: wrong}
	first, _ := q.Recall(s.name).(*round)
	if first != nil && (first.patched || !apiequality.Semantic.DeepEqual(first.output, q.Object)) {
		m.due = first.again
	}
	var err error
	if m.ns, err = namespaceOf(ctx, q); err != nil {
		return err
	}
	m.authz = admissionauthorizer.NewCachingAuthorizer(admit.Authorizer(s.host.Authorize))
	now := &round{again: map[key]bool{}}
	for i := range calls {
		c := &calls[i]
		did, err := s.one(ctx, m, c)
		if err != nil {
			return err
		}
		now.patched = now.patched || did.patched
		if p, ok := c.policy.object.(*admissionregistrationv1.MutatingAdmissionPolicy); ok &&
			p.Spec.ReinvocationPolicy == admissionregistrationv1.IfNeededReinvocationPolicy {
			now.again[c.key()] = did.called
		}
	}
	if now.patched {
		q.CallAgain()
	}
	if err := q.Settle(); err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to convert object: %w", err)) // upstream's words
	}
	if q.Object != nil {
		now.output = q.Object.DeepCopyObject().(resource.Object)
	}
	q.Remember(s.name, now)
	return nil
}

// done is the result of a call.
type done struct{ called, patched bool }

// one calls one policy. It collects the policy's errors; a returned error ends the request.
func (s *Mutating) one(ctx context.Context, m *mutation, c *call) (did done, err error) {
	compiled := c.policy.evaluator()
	if compiled.err != nil {
		return done{}, apierrors.NewInternalError(compiled.err)
	}
	ctx = compiled.compiler.CreateContext(ctx)
	v, err := m.q.In(ctx, c.form)
	if err != nil {
		m.wrong.add(c.policy, nil, fmt.Errorf("failed to configure policy: %w", err), "") // upstream's words
		return done{}, nil
	}
	if compiled.matcher != nil {
		r := compiled.matcher.Match(ctx, m.q.Library(v), c.param, m.authz)
		if r.Error != nil {
			m.wrong.add(c.policy, c.binding, r.Error, metav1.StatusReasonInvalid)
			return done{}, nil
		}
		if !r.Matches {
			return done{}, nil
		}
	}
	if m.q.Round > 0 && !m.due[c.key()] {
		return done{}, nil
	}
	did.called = true
	before, started, failed := v.Object, time.Now(), false
	for _, p := range compiled.patchers {
		if v.Object == nil {
			break // nothing to change
		}
		begun := time.Now()
		obj, err := s.patch(ctx, m, v, p, c.param)
		s.meters.mutated(c, time.Since(begun), err)
		if err != nil {
			if st := (*apierrors.StatusError)(nil); errors.As(err, &st) {
				s.host.Ledger.Book(s.ref(c.policy.name), time.Since(started), st)
				return done{}, st
			}
			m.wrong.add(c.policy, c.binding, err, metav1.StatusReasonInvalid)
			failed = true
			continue
		}
		did.patched = true
		v = m.q.Change(v, obj)
	}
	if !failed {
		s.host.Ledger.Book(s.ref(c.policy.name), time.Since(started), nil)
	}
	if did.patched || !failed {
		explainMutation(ctx, c, started, before, v.Object)
	}
	return did, nil
}

// patch applies one mutation.
func (s *Mutating) patch(ctx context.Context, m *mutation, v *matching.Versioned, p patch.Patcher, param runtime.Object) (resource.Object,
	error) {
	q := m.q
	d := s.host.Kind(v.Resource.GroupResource())
	if q.Subresource != "" && v.Kind.Kind != d.Kind {
		d = nil
	}
	if s.host.Types == nil {
		return nil, apierrors.NewServiceUnavailable("schemas of kinds are not available")
	}
	types, err := s.host.Types(d)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	out, err := p.Patch(ctx, patch.Request{
		MatchedResource: v.Resource, VersionedAttributes: q.Library(v), ObjectInterfaces: interfaces{v: v, q: q, kinds: s.host.Kinds},
		OptionalVariables: cel.OptionalVariableBindings{VersionedParams: param, Authorizer: m.authz}, Namespace: m.ns, TypeConverter: types,
	}, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return nil, err
	}
	obj, ok := out.(resource.Object)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("a mutation made a %T", out))
	}
	if err := sameKind(v, out); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if u, free := out.(*unstructured.Unstructured); free {
		if _, free := v.Object.(*unstructured.Unstructured); !free {
			obj = q.Empty(v.Object)
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, obj); err != nil {
				return nil, err
			}
		}
	} else if out == v.Object { // a test operation of a JSON patch failed
		obj = out.DeepCopyObject().(resource.Object)
	}
	q.Default(obj, &v.Form)
	return obj, nil
}
