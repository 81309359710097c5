// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission/metrics"
	celplugin "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/webhook"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/manifests"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

const group = "admissionregistration.k8s.io"

// hook is one parsed webhook.
type hook struct {
	uid           string // of configuration, name, and index among the webhooks of that name
	configuration string
	name          string
	title         string // the quoted name for errors
	static        bool   // from a file: it also sees requests that webhooks of the API do not see
	criteria      matching.Criteria
	ignore        bool // continue when a call fails
	sideEffects   *admissionregistrationv1.SideEffectClass
	timeout       time.Duration // 0: only the request's deadline
	versions      []string
	again         bool // call again when others changed the object after it

	ref     extension.Ref
	service types.NamespacedName // that it is behind; empty: none
	target  [sha256.Size]byte    // digest of the settings that decide how it is called
	policy  extension.Policy
	client  func() (*webhook.Client, error)
	matcher func() matchconditions.Matcher // nil: no conditions
}

// common has the fields that mutating and validating webhooks share.
type common struct {
	name          string
	client        admissionregistrationv1.WebhookClientConfig
	rules         []admissionregistrationv1.RuleWithOperations
	failure       *admissionregistrationv1.FailurePolicyType
	match         *admissionregistrationv1.MatchPolicyType
	namespaces    *metav1.LabelSelector
	objects       *metav1.LabelSelector
	sideEffects   *admissionregistrationv1.SideEffectClass
	timeout       *int32
	versions      []string
	conditions    []admissionregistrationv1.MatchCondition
	reinvocations *admissionregistrationv1.ReinvocationPolicyType
}

func mutating(c *admissionregistrationv1.MutatingWebhookConfiguration) []common {
	out := make([]common, len(c.Webhooks))
	for i, w := range c.Webhooks {
		out[i] = common{w.Name, w.ClientConfig, w.Rules, w.FailurePolicy, w.MatchPolicy, w.NamespaceSelector, w.ObjectSelector,
			w.SideEffects, w.TimeoutSeconds, w.AdmissionReviewVersions, w.MatchConditions, w.ReinvocationPolicy}
	}
	return out
}

func validating(c *admissionregistrationv1.ValidatingWebhookConfiguration) []common {
	out := make([]common, len(c.Webhooks))
	for i, w := range c.Webhooks {
		out[i] = common{w.Name, w.ClientConfig, w.Rules, w.FailurePolicy, w.MatchPolicy, w.NamespaceSelector, w.ObjectSelector,
			w.SideEffects, w.TimeoutSeconds, w.AdmissionReviewVersions, w.MatchConditions, nil}
	}
	return out
}

// read parses the webhooks of a configuration.
func (p *generic) read(obj resource.Object, static bool) ([]*hook, error) {
	var said []common
	switch c := obj.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		said = mutating(c)
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		said = validating(c)
	default:
		return nil, fmt.Errorf("read webhook configuration %s: it is a %T", obj.GetName(), obj)
	}
	seen := map[string]int{}
	hooks := make([]*hook, len(said))
	for i := range said {
		w := &said[i]
		hooks[i] = p.hook(w, obj.GetName(), seen[w.name])
		hooks[i].static = static
		p.breaker(hooks[i], obj.GetAnnotations()[BreakerAnnotation])
		seen[w.name]++
	}
	return hooks, nil
}

func (p *generic) hook(w *common, configuration string, nth int) *hook {
	h := &hook{
		uid:           fmt.Sprintf("%s/%s/%d", configuration, w.name, nth), // names of configurations from files differ from those of the API
		configuration: configuration,
		name:          w.name,
		ignore:        w.failure != nil && *w.failure == admissionregistrationv1.Ignore,
		sideEffects:   w.sideEffects,
		versions:      w.versions,
		again:         w.reinvocations != nil && *w.reinvocations == admissionregistrationv1.IfNeededReinvocationPolicy,
		ref:           extension.Ref{Point: p.point, Name: configuration + "/" + w.name},
	}
	h.criteria = matching.Criteria{Rules: w.rules, Equivalent: w.match != nil && *w.match == admissionregistrationv1.Equivalent}
	h.criteria.Select(w.namespaces, w.objects)
	if w.timeout != nil {
		h.timeout = time.Duration(*w.timeout) * time.Second
	}
	target := targetOf(w)
	h.title, h.service = p.titleOf(h), serviceOf(&target)
	flat := target
	flat.Service = nil
	h.target = sha256.Sum256(fmt.Appendf(nil, "%+v %+v", flat, target.Service))
	h.policy.Timeout = h.timeout
	h.client = sync.OnceValues(func() (*webhook.Client, error) { return p.caller.Client(target) })
	if len(w.conditions) > 0 {
		h.matcher = sync.OnceValue(func() matchconditions.Matcher {
			expressions := make([]celplugin.ExpressionAccessor, len(w.conditions))
			for i, c := range w.conditions {
				expressions[i] = &matchconditions.MatchCondition{Name: c.Name, Expression: c.Expression}
			}
			compiled := p.compiler().CompileCondition(expressions, celplugin.OptionalVariableDeclarations{HasAuthorizer: true},
				environment.StoredExpressions)
			return matchconditions.NewMatcher(compiled, w.failure, "webhook", p.step, w.name)
		})
	}
	return h
}

func targetOf(w *common) webhook.Target {
	t := webhook.Target{Name: w.name, CABundle: w.client.CABundle}
	if w.client.URL != nil {
		t.URL = *w.client.URL
	}
	if s := w.client.Service; s != nil {
		t.Service = &webhook.Service{Name: s.Name, Namespace: s.Namespace}
		t.Service.Port = 443
		if s.Port != nil {
			t.Service.Port = *s.Port
		}
		if s.Path != nil {
			t.Service.Path = *s.Path
		}
	}
	return t
}

// generic is the common part of both plug-ins: the webhooks of one kind of configuration.
type generic struct {
	admit.Readiness
	name       string // of the plug-in
	kind       string // the configurations' kind
	step       string // "admit" or "validating", as in metrics
	point      extension.Point
	resource   schema.GroupResource
	options    Options
	protection Protection

	host   *admit.Host
	caller *webhook.Caller
	meter  *meters

	hooks atomic.Pointer[[]*hook] // all, in order; nil: none

	mu     sync.Mutex
	by     map[string][]*hook // those of the API, by configuration
	static []*hook
	hash   string // of the source of static
}

// Options of the plug-ins.
type Options struct {
	// Kubeconfig is a file with the credentials for calls of webhooks; empty: none.
	Kubeconfig string
	// Manifests is a directory of configurations that come before those of the API; empty: none.
	Manifests string
}

// Name returns upstream's name of the plug-in.
func (p *generic) Name() string { return p.name }

// Join makes the client for calls of webhooks.
func (p *generic) Join(h *admit.Host) (err error) {
	p.host = h
	p.by = map[string][]*hook{}
	p.caller, err = webhook.NewAdmission(h.Ledger, h.Services, p.options.Kubeconfig)
	if err != nil {
		return err
	}
	p.caller.Dial(h.Egress.Cluster(), h.Egress.ControlPlane())
	p.meter = newMeters(h.Metrics)
	return nil
}

// compiler returns the compiler of match conditions.
func (p *generic) compiler() celplugin.ConditionCompiler {
	return celplugin.NewConditionCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
}

// Follows returns the kind of configuration, and endpoint slices, whose changes reset breakers.
func (p *generic) Follows() []schema.GroupResource {
	return []schema.GroupResource{p.resource, endpointSlices}
}

// Run follows the directory of manifests until ctx ends.
func (p *generic) Run(ctx context.Context) error {
	if p.options.Manifests == "" {
		<-ctx.Done()
		return nil
	}
	manifests.Follow(ctx, p.host.Log, p.options.Manifests, p.readManifests)
	return nil
}

// readManifests reads the directory, and reports whether its content has changed.
func (p *generic) readManifests() (bool, error) {
	all, hash, err := manifests.Webhooks(p.host, p.resource, p.options.Manifests)
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if hash == p.hash {
		return false, nil
	}
	var hooks []*hook
	for _, obj := range all {
		hs, err := p.read(obj, true)
		if err != nil {
			return false, err
		}
		hooks = append(hooks, hs...)
	}
	p.static, p.hash = hooks, hash
	p.arrange()
	return true, nil
}

// Load replaces all configurations with the stored ones.
func (p *generic) Load(ctx context.Context, stored feed.Lister) error {
	if p.options.Manifests != "" {
		if _, err := p.readManifests(); err != nil {
			return err
		}
	}
	all, err := stored.List(ctx, p.resource, "")
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	by := make(map[string][]*hook, len(all))
	for _, obj := range all {
		hooks, err := p.read(obj, false)
		if err := feed.Fail(stored, p.resource, obj, err); err != nil {
			return err
		}
		by[obj.GetName()] = hooks
	}
	p.by = by
	p.arrange()
	return nil
}

// Apply applies a change of a configuration or of an endpoint slice.
func (p *generic) Apply(_ context.Context, c *feed.Change) error {
	if c.Resource == endpointSlices {
		if c.Object != nil { // a deleted slice makes no webhook reachable
			p.moved(c.Namespace, c.Object.GetLabels()[discoveryv1.LabelServiceName])
		}
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Object == nil {
		delete(p.by, c.Name)
	} else {
		hooks, err := p.read(c.Object, false)
		if err != nil {
			return err
		}
		p.forgive(p.by[c.Name], hooks)
		p.by[c.Name] = hooks
	}
	p.arrange()
	return nil
}

// arrange rebuilds the list that requests read: webhooks from files first, then by configuration.
func (p *generic) arrange() {
	all := slices.Clone(p.static)
	for _, name := range slices.Sorted(maps.Keys(p.by)) {
		all = append(all, p.by[name]...)
	}
	where := make(map[string]string, len(all))
	for _, h := range all {
		where[h.ref.Name] = cmp.Or(map[bool]string{true: "file " + h.configuration}[h.static], p.resource.Resource+"/"+h.configuration)
	}
	p.host.Ledger.RegisterAll(p.point, where)
	if len(all) == 0 {
		p.hooks.Store(nil)
		return
	}
	p.hooks.Store(&all)
}

// Handles implements [admit.Filter].
func (p *generic) Handles(a *admit.Attributes) bool {
	return len(p.relevant(a)) > 0 || p.Refuse(a) != nil
}

// relevant returns the webhooks that may apply to a request. No webhook applies to reviews of users. To configurations
// of webhooks and policies only webhooks from files apply, so that no other one can prevent its own repair.
func (p *generic) relevant(a *admit.Attributes) []*hook {
	all := p.hooks.Load()
	if all == nil || virtual(a.Descriptor) {
		return nil
	}
	if a.Descriptor.Group == group {
		return (*all)[:len(staticOf(*all))]
	}
	return *all
}

func staticOf(all []*hook) []*hook {
	n := slices.IndexFunc(all, func(h *hook) bool { return !h.static })
	if n < 0 {
		return all
	}
	return all[:n]
}

// virtual reports whether a resource is one that asks about users.
func virtual(d *resource.Descriptor) bool {
	switch d.Group {
	case "authentication.k8s.io":
		return d.Resource == "tokenreviews" || d.Resource == "selfsubjectreviews"
	case "authorization.k8s.io":
		return true
	}
	return false
}

// matches returns the form in which the webhook is called for the request; nil: it is not called.
func (p *generic) matches(ctx context.Context, h *hook, q *matching.Request) (*matching.Form, error) {
	form, err := h.criteria.Match(ctx, q)
	if form == nil || err != nil || h.matcher == nil {
		return form, err
	}
	v, err := q.In(ctx, form)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	r := h.matcher().Match(ctx, q.Library(v), nil, admit.Authorizer(p.host.Authorize))
	switch {
	case r.Error != nil:
		return nil, apierrors.NewForbidden(q.Resource().GroupResource(), q.Name, r.Error)
	case !r.Matches:
		step := p.step
		if step != "admit" {
			step = "validate" // upstream's word here, unlike elsewhere
		}
		metrics.Metrics.ObserveMatchConditionExclusion(ctx, h.name, "webhook", step, string(q.Operation))
		return nil, nil
	}
	return form, nil
}
