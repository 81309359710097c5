// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	admissionauthorizer "k8s.io/apiserver/pkg/admission/plugin/authorizer"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/warning"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/resource"
)

// Validating is the plug-in ValidatingAdmissionPolicy.
type Validating struct {
	source[validating.Validator]
	meters *meters
}

var (
	_ admit.Validator = (*Validating)(nil)
	_ admit.Hosted    = (*Validating)(nil)
	_ admit.Follower  = (*Validating)(nil)
)

// Limits of data in the audit log.
const (
	maxFailures   = 50
	maxAnnotation = 10 * 1024
)

// NewValidating returns the plug-in.
func NewValidating(o Options) *Validating {
	return &Validating{source: source[validating.Validator]{
		name: "ValidatingAdmissionPolicy", manifests: o.Manifests,
		point:    extension.ValidatingPolicy,
		policies: schema.GroupResource{Group: group, Resource: "validatingadmissionpolicies"},
		bindings: schema.GroupResource{Group: group, Resource: "validatingadmissionpolicybindings"},
		read:     readValidating,
		readBinding: func(obj resource.Object) (*binding, error) {
			b, ok := obj.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding)
			if !ok {
				return nil, fmt.Errorf("read policy binding %s: it is a %T", obj.GetName(), obj)
			}
			return bindingOf(b.Name, b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources, b.Spec.ValidationActions), nil
		},
	}}
}

func readValidating(obj resource.Object) (*policy[validating.Validator], error) {
	p, ok := obj.(*admissionregistrationv1.ValidatingAdmissionPolicy)
	if !ok {
		return nil, fmt.Errorf("read policy %s: it is a %T", obj.GetName(), obj)
	}
	out := &policy[validating.Validator]{name: p.Name, failure: p.Spec.FailurePolicy, params: p.Spec.ParamKind, object: p}
	out.criteria = criteriaOf(p.Spec.MatchConstraints)
	out.authorizes, out.namespaced = names(p, cel.AuthorizerVarName), names(p, cel.NamespaceVarName)
	out.evaluator = sync.OnceValue(func() validating.Validator { return compileValidating(p) })
	return out, nil
}

// names reports whether an expression of the policy may use a variable: its name stands in one.
func names(p *admissionregistrationv1.ValidatingAdmissionPolicy, variable string) bool {
	named := func(expression string) bool { return strings.Contains(expression, variable) }
	return slices.ContainsFunc(p.Spec.MatchConditions, func(c admissionregistrationv1.MatchCondition) bool { return named(c.Expression) }) ||
		slices.ContainsFunc(p.Spec.Variables, func(v admissionregistrationv1.Variable) bool { return named(v.Expression) }) ||
		slices.ContainsFunc(p.Spec.Validations, func(v admissionregistrationv1.Validation) bool {
			return named(v.Expression) || named(v.MessageExpression)
		}) ||
		slices.ContainsFunc(p.Spec.AuditAnnotations, func(a admissionregistrationv1.AuditAnnotation) bool { return named(a.ValueExpression) })
}

func compileValidating(p *admissionregistrationv1.ValidatingAdmissionPolicy) validating.Validator {
	with := cel.OptionalVariableDeclarations{HasParams: p.Spec.ParamKind != nil, HasAuthorizer: true}
	without := cel.OptionalVariableDeclarations{HasParams: with.HasParams}
	c, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		return validating.NewValidator(nil, nil, nil, nil, p.Spec.FailurePolicy, err)
	}
	c.CompileAndStoreVariables(variables(p.Spec.Variables), with, environment.StoredExpressions)
	var matcher matchconditions.Matcher
	if conditions := p.Spec.MatchConditions; len(conditions) > 0 {
		matcher = matchconditions.NewMatcher(c.CompileCondition(conditionsOf(conditions), with, environment.StoredExpressions),
			p.Spec.FailurePolicy, "policy", "validate", p.Name)
	}
	checks, messages, saying := make([]cel.ExpressionAccessor, len(p.Spec.Validations)),
		make([]cel.ExpressionAccessor, len(p.Spec.Validations)), false
	for i, v := range p.Spec.Validations {
		checks[i] = &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason}
		if v.MessageExpression != "" {
			messages[i], saying = &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}, true
		}
	}
	compiled := func(expressions []cel.ExpressionAccessor, declared cel.OptionalVariableDeclarations, any bool) cel.ConditionEvaluator {
		if !any {
			return silent{}
		}
		return c.CompileCondition(expressions, declared, environment.StoredExpressions)
	}
	audits := make([]cel.ExpressionAccessor, len(p.Spec.AuditAnnotations))
	for i, a := range p.Spec.AuditAnnotations {
		audits[i] = &validating.AuditAnnotationCondition{Key: a.Key, ValueExpression: a.ValueExpression}
	}
	return validating.NewValidator(
		c.CompileCondition(checks, with, environment.StoredExpressions), matcher,
		compiled(audits, with, len(audits) > 0), compiled(messages, without, saying), p.Spec.FailurePolicy, nil)
}

// silent replaces an empty list of expressions, which need no preparation.
type silent struct{}

// ForInput returns no results and the whole budget.
func (silent) ForInput(_ context.Context, _ *admission.VersionedAttributes, _ *admissionv1.AdmissionRequest, _ cel.OptionalVariableBindings,
	_ *corev1.Namespace, budget int64) ([]cel.EvaluationResult, int64, error) {
	return nil, budget, nil
}

// CompilationErrors returns nil.
func (silent) CompilationErrors() []error { return nil }

func variables(vs []admissionregistrationv1.Variable) []cel.NamedExpressionAccessor {
	out := make([]cel.NamedExpressionAccessor, len(vs))
	for i, v := range vs {
		out[i] = &validating.Variable{Name: v.Name, Expression: v.Expression}
	}
	return out
}

func conditionsOf(cs []admissionregistrationv1.MatchCondition) []cel.ExpressionAccessor {
	out := make([]cel.ExpressionAccessor, len(cs))
	for i := range cs {
		out[i] = (*matchconditions.MatchCondition)(&cs[i])
	}
	return out
}

// verdict collects the violations of a request.
type verdict struct {
	q        *matching.Request
	meters   *meters
	ledger   *extension.Ledger
	trace    *explain.Trace
	denial   string // the first denial; empty: none
	reason   metav1.StatusReason
	failures []failure
}

// failure is a violation as in the audit log.
type failure struct {
	Message           string                                     `json:"message"`
	Policy            string                                     `json:"policy"`
	Binding           string                                     `json:"binding"`
	ExpressionIndex   int                                        `json:"expressionIndex"`
	ValidationActions []admissionregistrationv1.ValidationAction `json:"validationActions"`
}

func (v *verdict) deny(policy, binding, message string, reason metav1.StatusReason) {
	if v.denial != "" {
		return
	}
	v.denial, v.reason = fmt.Sprintf("ValidatingAdmissionPolicy '%s' denied request: %s", policy, message), reason // upstream's words
	if binding != "" {
		// upstream's words
		v.denial = fmt.Sprintf("ValidatingAdmissionPolicy '%s' with binding '%s' denied request: %s", policy, binding, message)
	}
}

// wrong records that a policy or its binding cannot be evaluated.
func (v *verdict) wrong(p *policy[validating.Validator], b *binding, err error) {
	explainRefusal(v.trace, trace.Validate, p, b, err)
	v.ledger.Book(extension.Ref{Point: extension.ValidatingPolicy, Name: p.name}, 0, err)
	switch {
	case p.ignores():
	case b == nil:
		v.deny(p.name, "", "failed to configure policy: "+err.Error(), "") // upstream's words
	default:
		v.deny(p.name, b.name, "failed to configure binding: "+err.Error(), "") // upstream's words
	}
}

// Validate evaluates the matching policies.
func (s *Validating) Validate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if err := s.Refuse(a); err != nil {
		return err
	}
	policies := s.relevant(a)
	if len(policies) == 0 {
		return nil
	}
	v := &verdict{q: matching.NewRequest(s.host, b, a), meters: s.meters, ledger: s.host.Ledger, trace: explain.From(ctx)}
	var authz admissionAuthorizer // shared by all policies that use it; it caches its decisions
	for _, p := range policies {
		if p.authorizes && authz == nil {
			authz = admissionauthorizer.NewCachingAuthorizer(admit.Authorizer(s.host.Authorize))
		}
		if err := s.evaluate(ctx, b, v, p, authz); err != nil {
			return err
		}
	}
	v.audit()
	return v.status()
}

// evaluate evaluates one policy through each of its bindings. authz is nil for policies that do not use it.
func (s *Validating) evaluate(ctx context.Context, b resource.Backend, v *verdict, p *policy[validating.Validator],
	authz admissionAuthorizer) error {
	form, err := match(ctx, p, v.q)
	if err != nil {
		v.wrong(p, nil, err)
		return nil
	}
	if form == nil {
		return nil
	}
	kind, err := findParams(s.host, p.params)
	if err != nil {
		v.wrong(p, nil, err)
		return nil
	}
	notes := map[string][]string{} // audit annotations
	for _, bind := range p.bindings {
		ok, err := bind.matches(ctx, v.q)
		if err == nil && !ok {
			continue
		}
		if err != nil {
			v.wrong(p, bind, err)
			continue
		}
		params, err := kind.collect(ctx, b, bind.params, v.q.Namespace)
		if err != nil {
			v.wrong(p, bind, err)
			continue
		}
		if len(params) == 0 {
			continue
		}
		in, err := v.q.In(ctx, form)
		if err != nil {
			v.wrong(p, bind, fmt.Errorf("failed to convert object version: %w", err)) // upstream's words
			continue
		}
		ns, err := namespaceOf(ctx, v.q)
		if err != nil {
			return err
		}
		if !p.namespaced {
			ns = nil // so that it is not converted for expressions
		}
		for _, param := range params {
			begun := time.Now()
			r := p.evaluator().Validate(ctx, form.Resource, v.q.Library(in), param, ns, celconfig.RuntimeCELCostBudget, authz)
			v.ledger.Book(s.ref(p.name), time.Since(begun), evaluationError(&r))
			explainVerdict(v.trace, p, bind, begun, &r)
			if err := v.take(ctx, p, bind, &r, notes); err != nil {
				return err
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(notes)) {
		v.q.Annotate(p.name+"/"+key, strings.Join(notes[key], ", "))
	}
	return nil
}

// evaluationError returns why a policy could not be evaluated; nil: it could. A denial is not an error.
func evaluationError(r *validating.ValidateResult) error {
	for i := range r.Decisions {
		if d := &r.Decisions[i]; d.Evaluation == validating.EvalError {
			return errors.New(d.Message)
		}
	}
	return nil
}

// match returns the form in which a request matches a policy.
func match[E any](ctx context.Context, p *policy[E], q *matching.Request) (*matching.Form, error) {
	if p.criteria == nil {
		return nil, errors.New("policy contained no match constraints, a required field") // upstream's words
	}
	return p.criteria.Match(ctx, q)
}

// namespaceOf returns the namespace for expressions: nil for cluster-scoped objects and for namespaces themselves.
func namespaceOf(ctx context.Context, q *matching.Request) (*corev1.Namespace, error) {
	if q.Namespace == "" || q.Kind() == corev1.SchemeGroupVersion.WithKind("Namespace") {
		return nil, nil
	}
	return q.NamespaceObject(ctx)
}

// take adds the result of one evaluation.
func (v *verdict) take(ctx context.Context, p *policy[validating.Validator], b *binding, r *validating.ValidateResult,
	notes map[string][]string) error {
	for i, d := range r.Decisions {
		switch d.Action {
		case validating.ActionAdmit:
			if d.Evaluation == validating.EvalError {
				v.meters.decided(p, b, &d, "allow")
			}
			continue
		case validating.ActionDeny:
		default:
			// upstream's words
			return fmt.Errorf("unrecognized evaluation decision '%s' for ValidatingAdmissionPolicyBinding '%s' with ValidatingAdmissionPolicy '%s'",
				d.Action, b.name, p.name)
		}
		for _, action := range b.actions {
			switch action {
			case admissionregistrationv1.Deny:
				v.deny(p.name, b.name, d.Message, d.Reason)
				v.meters.decided(p, b, &d, "deny")
			case admissionregistrationv1.Audit:
				v.failures = append(v.failures, failure{d.Message, p.name, b.name, i, b.actions})
				v.meters.decided(p, b, &d, "audit")
			case admissionregistrationv1.Warn:
				// upstream's words
				warning.AddWarning(ctx, "", fmt.Sprintf("Validation failed for ValidatingAdmissionPolicy '%s' with binding '%s': %s", p.name, b.name,
					d.Message))
				v.meters.decided(p, b, &d, "warn")
			}
		}
	}
	for _, n := range r.AuditAnnotations {
		switch n.Action {
		case validating.AuditAnnotationActionPublish:
			value := n.Value[:min(len(n.Value), maxAnnotation)]
			if !slices.Contains(notes[n.Key], value) {
				notes[n.Key] = append(notes[n.Key], value)
			}
		case validating.AuditAnnotationActionError:
			v.deny(p.name, b.name, n.Error, "")
			v.meters.decided(p, b, &validating.PolicyDecision{Evaluation: validating.EvalError, Message: n.Error, Elapsed: n.Elapsed}, "deny")
		}
	}
	return nil
}

// audit adds the violations of bindings with the action Audit to the audit event.
func (v *verdict) audit() {
	if len(v.failures) == 0 {
		return
	}
	if text, err := json.Marshal(v.failures[:min(len(v.failures), maxFailures)]); err == nil {
		v.q.Annotate("validation.policy.admission.k8s.io/validation_failure", string(text))
	}
}

// status returns the status of the rejection; nil if the request is admitted.
func (v *verdict) status() error {
	if v.denial == "" {
		return nil
	}
	err := admit.Forbidden(v.q.Attributes, errors.New(v.denial))
	if st := (*apierrors.StatusError)(nil); errors.As(err, &st) {
		if st.ErrStatus.Reason = v.reason; v.reason == "" {
			st.ErrStatus.Reason = metav1.StatusReasonInvalid
		}
		st.ErrStatus.Code = codeOf(st.ErrStatus.Reason)
		st.ErrStatus.Details.Causes = append(st.ErrStatus.Details.Causes, metav1.StatusCause{Message: v.denial})
	}
	return err
}

func codeOf(r metav1.StatusReason) int32 {
	switch r {
	case metav1.StatusReasonForbidden:
		return http.StatusForbidden
	case metav1.StatusReasonUnauthorized:
		return http.StatusUnauthorized
	case metav1.StatusReasonRequestEntityTooLarge:
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusUnprocessableEntity
}
