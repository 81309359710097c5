// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	kjson "sigs.k8s.io/json"

	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
	"github.com/mortise-dev/mortise/internal/apiserver/audit"
	"github.com/mortise-dev/mortise/internal/apiserver/merge"
	"github.com/mortise-dev/mortise/resource"
)

// Mutating is the plug-in MutatingAdmissionWebhook.
type Mutating struct{ generic }

var (
	_ admit.Mutator  = (*Mutating)(nil)
	_ admit.Hosted   = (*Mutating)(nil)
	_ admit.Follower = (*Mutating)(nil)
)

// NewMutating returns the plug-in.
func NewMutating(o Options) *Mutating {
	return &Mutating{generic{name: "MutatingAdmissionWebhook", kind: "MutatingWebhookConfiguration", step: "admit",
		point: extension.MutatingWebhook, options: o,
		resource: schema.GroupResource{Group: group, Resource: "mutatingwebhookconfigurations"}}}
}

// The prefixes of audit annotations' keys.
const (
	patchAnnotation    = "patch.webhook.admission.k8s.io/"
	mutationAnnotation = "mutation.webhook.admission.k8s.io/"
)

// rounds is the state of a request between the rounds of its mutation.
type rounds struct {
	output  resource.Object // the object after the first round
	invoked map[string]bool // called webhooks that request another call when others change the object after them
	due     map[string]bool // webhooks that must be called again
}

// require marks the called webhooks that request it for another call.
func (r *rounds) require() {
	for uid := range r.invoked {
		if r.due == nil {
			r.due = map[string]bool{}
		}
		r.due[uid] = true
	}
}

func (r *rounds) invoke(uid string) {
	if r.invoked == nil {
		r.invoked = map[string]bool{}
	}
	r.invoked[uid] = true
}

// Mutate calls the matching webhooks one after the other.
func (p *Mutating) Mutate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if err := p.Refuse(a); err != nil {
		return err
	}
	hooks := p.relevant(a)
	if len(hooks) == 0 {
		return nil
	}
	q := matching.NewRequest(p.host, b, a)
	memory, _ := a.Recall(p.name).(*rounds)
	if memory == nil {
		memory = &rounds{}
		a.Remember(p.name, memory)
	}
	if a.Round > 0 && !apiequality.Semantic.DeepEqual(memory.output, a.Object) {
		memory.require()
	}
	r := &reviews{q: q}
	called := false
	for i, h := range hooks {
		form, err := p.matches(ctx, h, q)
		if err != nil {
			return err
		}
		if form == nil || a.Round > 0 && !memory.due[h.uid] {
			continue
		}
		v, err := q.In(ctx, form)
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		called = true
		begun := time.Now()
		changed, err := p.mutate(ctx, h, q, r, v, i)
		p.observe(h, q, time.Since(begun), err)
		if changed {
			memory.require()
			a.CallAgain()
		}
		if h.again {
			memory.invoke(h.uid)
		}
		if err = explained(ctx, trace.Mutate, h, begun, changed, err, func(err error) error { return p.settle(ctx, h, q, i, err) }); err != nil {
			return err
		}
	}
	if err := q.Settle(); err != nil {
		return err
	}
	if called && a.Round == 0 && a.Object != nil { // needed only if a mutator requests another round
		memory.output = a.Object.DeepCopyObject().(resource.Object)
	}
	return nil
}

// settle decides what a failed call means: nil if the request continues.
func (p *generic) settle(ctx context.Context, h *hook, q *matching.Request, i int, err error) error {
	var f *failed
	if !errors.As(err, &f) {
		var no rejected
		if errors.As(err, &no) {
			return no.StatusError
		}
		return err
	}
	if !h.ignore {
		if p.protection.Guard && p.letThrough(ctx, h, q, i, f) {
			return nil
		}
		return apierrors.NewInternalError(f)
	}
	p.host.Log.WarnContext(ctx, "Webhook failed, ignoring it by its failurePolicy", "configuration", h.configuration, "webhook", h.name,
		"error", f)
	if !errors.Is(f, context.Canceled) {
		p.passedOver(h, q, i)
	}
	if p.step == "admit" && ctx.Err() != nil {
		return late()
	}
	return nil
}

// passedOver counts a request that continues without a failed webhook, and records it in the audit log.
func (p *generic) passedOver(h *hook, q *matching.Request, i int) {
	p.meter.failOpen.WithLabelValues(h.name, p.step).Inc()
	begin, round := "failed-open.validating.webhook.admission.k8s.io/", 0
	if p.step == "admit" {
		begin, round = "failed-open."+mutationAnnotation, q.Round
	}
	q.Annotate(fmt.Sprintf("%sround_%d_index_%d", begin, round, i), h.name)
}

// mutate calls one webhook and applies its patch.
func (p *Mutating) mutate(ctx context.Context, h *hook, q *matching.Request, r *reviews, v *matching.Versioned, i int) (changed bool,
	err error) {
	where := fmt.Sprintf("round_%d_index_%d", q.Round, i)
	defer func() {
		if b, err := json.Marshal(mutation{h.configuration, h.name, changed}); err == nil {
			q.Annotate(mutationAnnotation+where, string(b))
		}
	}()
	a, err := p.call(ctx, h, q, r, v, true)
	if err != nil || len(a.patch) == 0 {
		return false, err
	}
	if a.unreadable != nil {
		// upstream's words
		return false, &failed{h.title, fmt.Errorf("received undecodable patch in webhook response: %w", a.unreadable),
			http.StatusServiceUnavailable}
	}
	patch := a.changes
	if len(patch) == 0 {
		return false, nil
	}
	if v.Object == nil {
		// upstream's words
		return false, apierrors.NewInternalError(fmt.Errorf(
			"admission webhook %s attempted to modify the object, which is not supported for this operation", h.title))
	}
	if a.patchType != admissionv1.PatchTypeJSONPatch {
		// upstream's words
		return false, &failed{h.title, fmt.Errorf("unsupported patch type %q", a.patchType), refusal(h.title, a.result).ErrStatus.Code}
	}
	raw, err := r.raw(v.Object)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	if err := merge.CheckOperations(raw.Raw, a.patch, len(patch)); err != nil {
		return false, apierrors.NewInternalError(err)
	}
	patched, err := patch.Apply(raw.Raw)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	obj, err := p.decode(q, v, patched)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	changed = !apiequality.Semantic.DeepEqual(v.Object, obj)
	if audit.Reaches(ctx, auditinternal.LevelRequest) {
		if b, err := json.Marshal(patching{h.configuration, h.name, patch, string(admissionv1.PatchTypeJSONPatch)}); err == nil {
			audit.AnnotateAt(ctx, auditinternal.LevelRequest, patchAnnotation+where, string(b))
		}
	}
	q.Default(obj, &v.Form)
	patchedTo(ctx, raw.Raw, patched, obj, changed)
	q.Change(v, obj)
	return changed, nil
}

// decode decodes a patched object. If the patch removed the kind, it stays the same; if the patch changed it, the object is decoded as
// that kind, and refused.
func (p *Mutating) decode(q *matching.Request, v *matching.Versioned, data []byte) (resource.Object, error) {
	obj := q.Empty(v.Object)
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if err := u.UnmarshalJSON(data); err != nil {
			return nil, err
		}
		return u, nil
	}
	said, err := jsonserializer.DefaultMetaFactory.Interpret(data)
	if err != nil {
		return nil, err
	}
	as := *said
	if as.Kind == "" {
		as.Kind = v.Kind.Kind
	}
	if as.Version == "" && as.Group == "" {
		as.Group, as.Version = v.Kind.Group, v.Kind.Version
	}
	if as != v.Kind {
		other := p.empty(as)
		if other == nil {
			// upstream's words
			return nil, fmt.Errorf("no kind %q is registered for version %q in scheme %q", as.Kind, as.GroupVersion(), "pkg/runtime/scheme.go:111")
		}
		if err := kjson.UnmarshalCaseSensitivePreserveInts(data, other); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("converting (%s.%s) to (%s): unknown conversion", as.Version, as.Kind, v.Kind.Kind) // upstream's words
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, obj); err != nil {
		return nil, err
	}
	return obj, nil
}

// empty returns an empty object of another built-in kind; nil if there is no such kind.
func (p *Mutating) empty(gvk schema.GroupVersionKind) resource.Object {
	for _, d := range p.host.Kinds() {
		if v := d.Version(gvk.Version); d.Group == gvk.Group && d.Kind == gvk.Kind && v != nil && v.New != nil {
			return v.New()
		}
	}
	return nil
}

// mutation and patching are the values of audit annotations.
type mutation struct {
	Configuration string `json:"configuration"`
	Webhook       string `json:"webhook"`
	Mutated       bool   `json:"mutated"`
}

type patching struct {
	Configuration string          `json:"configuration"`
	Webhook       string          `json:"webhook"`
	Patch         jsonpatch.Patch `json:"patch,omitempty"`
	PatchType     string          `json:"patchType,omitempty"`
}
