// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podsecurity is the PodSecurity plug-in: a namespace's labels set the Pod Security Standards that its pods must
// meet (enforce), or whose violations cause warnings (warn) or audit annotations (audit).
package podsecurity

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configuration "k8s.io/pod-security-admission/admission/api"
	"k8s.io/pod-security-admission/admission/api/load"
	"k8s.io/pod-security-admission/admission/api/validation"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in from a PodSecurityConfiguration. Nil is kube-apiserver's default: privileged for namespaces
// without labels, no exemptions.
func New(config io.Reader) (admit.Plugin, error) {
	c, err := load.LoadFromReader(config)
	if err != nil {
		return nil, err
	}
	if errs := validation.ValidatePodSecurityConfiguration(c); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	defaults, err := configuration.ToPolicy(c.Defaults)
	if err != nil {
		return nil, err
	}
	evaluator, err := evaluator()
	if err != nil {
		return nil, fmt.Errorf("make pod security evaluator: %w", err)
	}
	return &plugin{evaluator: evaluator, defaults: defaults, exempt: c.Exemptions, meters: newMeters()}, nil
}

// evaluator evaluates the checks of the standards, which are the same for every server.
var evaluator = sync.OnceValues(func() (policy.Evaluator, error) { return policy.NewEvaluator(policy.DefaultChecks(), nil) })

type plugin struct {
	evaluator policy.Evaluator
	defaults  api.Policy
	exempt    configuration.PodSecurityExemptions
	meters    *meters
}

// Join implements [admit.Hosted].
func (p *plugin) Join(h *admit.Host) error { return p.meters.register(h.Metrics) }

func (*plugin) Name() string { return "PodSecurity" }

// Handles implements [admit.Filter].
func (*plugin) Handles(a *admit.Attributes) bool {
	if a.Object == nil || a.Operation != admit.Create && a.Operation != admit.Update {
		return false
	}
	switch obj := a.Object.(type) {
	case *corev1.Namespace:
		return a.Subresource == ""
	case *corev1.Pod:
		return true
	default:
		_, spec := template(obj)
		return spec != nil && a.Subresource == ""
	}
}

// Validate enforces on pods, warns and annotates for pods and pod templates, and checks the labels of namespaces.
func (p *plugin) Validate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if !p.Handles(a) {
		return nil
	}
	switch obj := a.Object.(type) {
	case *corev1.Namespace:
		return p.namespace(ctx, b, a, obj)
	case *corev1.Pod:
		return p.pod(ctx, b, a, obj)
	default:
		meta, spec := template(obj)
		p.controller(ctx, b, a, meta, spec)
		return nil
	}
}

func (p *plugin) namespace(ctx context.Context, b resource.Backend, a *admit.Attributes, ns *corev1.Namespace) error {
	wanted, errs := api.PolicyToEvaluate(ns.Labels, p.defaults)
	exempt := slices.Contains(p.exempt.Namespaces, ns.Name)
	old, ok := a.Old.(*corev1.Namespace)
	if a.Operation == admit.Create || !ok {
		if exempt && len(errs) == 0 {
			p.warnIgnored(a, ns, wanted)
		}
		return invalid(a, errs)
	}
	had, hadErrs := api.PolicyToEvaluate(old.Labels, p.defaults)
	if len(errs) > 0 && (len(hadErrs) == 0 || errs.ToAggregate().Error() != hadErrs.ToAggregate().Error()) {
		return invalid(a, errs)
	}
	if wanted.Enforce == had.Enforce || wanted.Enforce.Level == api.LevelPrivileged ||
		wanted.Enforce.Version == had.Enforce.Version && api.CompareLevels(wanted.Enforce.Level, had.Enforce.Level) < 1 {
		return nil
	}
	if exempt {
		p.warnIgnored(a, ns, wanted)
		return nil
	}
	pods, err := b.List(ctx, schema.GroupResource{Resource: "pods"}, ns.Name)
	if err != nil {
		a.Warn("failed to list pods while checking new PodSecurity enforce level")
		return nil //nolint:nilerr // as upstream: the check only produces warnings
	}
	for _, w := range p.violations(pods, ns.Name, wanted.Enforce) {
		a.Warn(w)
	}
	return nil
}

func (p *plugin) pod(ctx context.Context, b resource.Backend, a *admit.Attributes, pod *corev1.Pod) error {
	switch a.Subresource {
	case "exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status":
		return nil
	}
	if p.exempted(a) {
		return nil
	}
	levels, errs, err := p.levels(ctx, b, a)
	if err != nil {
		p.meters.failed(a, true)
		refused := apierrors.NewInternalError(fmt.Errorf("failed to lookup namespace %q", a.Namespace)) // upstream's words
		a.Annotate(api.AuditAnnotationPrefix+"error", fmt.Sprintf("%v: %v", refused, err))
		return refused
	}
	if len(errs) == 0 && levels.FullyPrivileged() {
		p.meters.evaluated(a, true, levels.Enforce, enforcing)
		a.Annotate(api.AuditAnnotationPrefix+api.EnforcedPolicyAnnotationKey, "privileged:latest")
		return nil
	}
	if old, ok := a.Old.(*corev1.Pod); ok && a.Operation == admit.Update && !significant(pod, old) {
		return nil
	}
	return p.evaluate(a, levels, errs, &pod.ObjectMeta, &pod.Spec, true)
}

func (p *plugin) controller(ctx context.Context, b resource.Backend, a *admit.Attributes, meta *metav1.ObjectMeta, spec *corev1.PodSpec) {
	if p.exempted(a) {
		return
	}
	levels, errs, err := p.levels(ctx, b, a)
	if err != nil {
		p.meters.failed(a, true)
		a.Annotate(api.AuditAnnotationPrefix+"error", fmt.Sprintf("failed to lookup namespace %q: %v", a.Namespace, err))
		return
	}
	if len(errs) == 0 && levels.Warn.Level == api.LevelPrivileged && levels.Audit.Level == api.LevelPrivileged {
		return
	}
	// Without enforcement evaluate returns nothing to reject.
	_ = p.evaluate(a, levels, errs, meta, spec, false)
}

func (p *plugin) levels(ctx context.Context, b resource.Backend, a *admit.Attributes) (api.Policy, field.ErrorList, error) {
	ns, err := b.Get(ctx, schema.GroupResource{Resource: "namespaces"}, "", a.Namespace)
	if err != nil {
		return api.Policy{}, nil, err
	}
	levels, errs := api.PolicyToEvaluate(ns.GetLabels(), p.defaults)
	return levels, errs, nil
}

func (p *plugin) evaluate(a *admit.Attributes, levels api.Policy, errs field.ErrorList, meta *metav1.ObjectMeta, spec *corev1.PodSpec,
	enforce bool) error {
	if p.exemptClass(spec) {
		p.spare(a, "runtimeClass")
		return nil
	}
	if len(errs) > 0 {
		p.meters.failed(a, false)
		a.Annotate(api.AuditAnnotationPrefix+"error", fmt.Sprintf("Failed to parse policy: %v", errs.ToAggregate()))
	}
	results := map[api.LevelVersion]policy.AggregateCheckResult{}
	check := func(lv api.LevelVersion) policy.AggregateCheckResult {
		r, ok := results[lv]
		if !ok {
			r = policy.AggregateCheckResults(p.evaluator.EvaluatePod(lv, meta, spec))
			results[lv] = r
		}
		return r
	}
	var refused error
	if enforce {
		a.Annotate(api.AuditAnnotationPrefix+api.EnforcedPolicyAnnotationKey, levels.Enforce.String())
		r := check(levels.Enforce)
		p.meters.evaluated(a, r.Allowed, levels.Enforce, enforcing)
		if !r.Allowed {
			refused = apierrors.NewForbidden(a.Descriptor.GroupResource(), name(a),
				fmt.Errorf("violates PodSecurity %q: %s", levels.Enforce.String(), r.ForbiddenDetail()))
		}
	}
	if r := check(levels.Audit); !r.Allowed {
		p.meters.evaluated(a, false, levels.Audit, auditing)
		a.Annotate(api.AuditAnnotationPrefix+api.AuditViolationsAnnotationKey,
			fmt.Sprintf("would violate PodSecurity %q: %s", levels.Audit.String(), r.ForbiddenDetail()))
	}
	if refused != nil {
		return refused
	}
	if r := check(levels.Warn); !r.Allowed {
		p.meters.evaluated(a, false, levels.Warn, warning)
		a.Warn(fmt.Sprintf("would violate PodSecurity %q: %s", levels.Warn.String(), r.ForbiddenDetail()))
	}
	return nil
}

// violations returns warnings about existing pods of a namespace whose enforced level becomes stricter.
func (p *plugin) violations(pods []resource.Object, namespace string, enforce api.LevelVersion) []string {
	const most = 3000 // pods that are checked
	ordered := p.unlike(pods)
	total := len(ordered)
	if len(ordered) > most {
		ordered = ordered[:most]
	}
	first, count := map[string]string{}, map[string]int{}
	for _, pod := range ordered {
		r := policy.AggregateCheckResults(p.evaluator.EvaluatePod(enforce, &pod.ObjectMeta, &pod.Spec))
		if r.Allowed {
			continue
		}
		why := r.ForbiddenReason()
		if count[why] == 0 || pod.Name < first[why] {
			first[why] = pod.Name
		}
		count[why]++
	}
	var head, lines []string
	if len(ordered) < total {
		head = append(head, fmt.Sprintf("new PodSecurity enforce level only checked against the first %d of %d existing pods", len(ordered),
			total))
	}
	for why, n := range count {
		switch n {
		case 1:
			lines = append(lines, fmt.Sprintf("%s: %s", first[why], why))
		case 2:
			lines = append(lines, fmt.Sprintf("%s (and 1 other pod): %s", first[why], why))
		default:
			lines = append(lines, fmt.Sprintf("%s (and %d other pods): %s", first[why], n-1, why))
		}
	}
	slices.Sort(lines)
	if len(lines) > 0 {
		head = append(head, fmt.Sprintf("existing pods in namespace %q violate the new PodSecurity enforce level %q", namespace,
			enforce.String()))
	}
	return append(head, lines...)
}

// unlike returns the pods that are not exempt, with one pod of each controller before the others.
func (p *plugin) unlike(objs []resource.Object) []*corev1.Pod {
	var ones, others []*corev1.Pod
	seen := map[string]bool{}
	for _, obj := range objs {
		pod, ok := obj.(*corev1.Pod)
		if !ok || p.exemptClass(&pod.Spec) {
			continue
		}
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner != nil && seen[string(owner.UID)] {
			others = append(others, pod)
			continue
		}
		if owner != nil {
			seen[string(owner.UID)] = true
		}
		ones = append(ones, pod)
	}
	return append(ones, others...)
}

// significant reports whether an update changes an image or adds a container.
func significant(pod, old *corev1.Pod) bool {
	images := func(cs []corev1.Container) string {
		var b strings.Builder
		for _, c := range cs {
			b.WriteString(c.Image)
			b.WriteByte('\n')
		}
		return b.String()
	}
	if images(pod.Spec.Containers) != images(old.Spec.Containers) || images(pod.Spec.InitContainers) != images(old.Spec.InitContainers) {
		return true
	}
	for _, c := range pod.Spec.EphemeralContainers {
		same := func(o corev1.EphemeralContainer) bool { return o.Name == c.Name && o.Image == c.Image }
		if !slices.ContainsFunc(old.Spec.EphemeralContainers, same) {
			return true
		}
	}
	return false
}

// template returns the pod template of obj, or nil.
func template(obj resource.Object) (*metav1.ObjectMeta, *corev1.PodSpec) {
	var t *corev1.PodTemplateSpec
	switch o := obj.(type) {
	case *corev1.PodTemplate:
		t = &o.Template
	case *corev1.ReplicationController:
		t = o.Spec.Template
	case *appsv1.ReplicaSet:
		t = &o.Spec.Template
	case *appsv1.Deployment:
		t = &o.Spec.Template
	case *appsv1.DaemonSet:
		t = &o.Spec.Template
	case *appsv1.StatefulSet:
		t = &o.Spec.Template
	case *batchv1.Job:
		t = &o.Spec.Template
	case *batchv1.CronJob:
		t = &o.Spec.JobTemplate.Spec.Template
	}
	if t == nil {
		return nil, nil
	}
	return &t.ObjectMeta, &t.Spec
}

func invalid(a *admit.Attributes, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: a.Descriptor.Group, Kind: a.Descriptor.Kind}, name(a), errs)
}

func name(a *admit.Attributes) string {
	if a.Name == "" {
		return a.Object.GetName()
	}
	return a.Name
}
