// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package initializers

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/resource"
)

// Name is the plug-in's name.
const Name = "Initializers"

// Verb is the verb that an initializer needs on its resources, in addition to the verbs for reading and writing them.
const Verb = "initialize"

// Plugin makes new objects wait for their initializers.
type Plugin struct {
	admit.Readiness
	clock clock.Clock
	host  *admit.Host

	configurations map[string]*v1alpha1.InitializerConfiguration // by name; only Load and Apply use it
	rules          atomic.Pointer[[]*rule]

	held  *held
	meter *meter
}

var (
	_ admit.Mutator  = (*Plugin)(nil)
	_ admit.Hosted   = (*Plugin)(nil)
	_ admit.Follower = (*Plugin)(nil)
	_ admit.Runner   = (*Plugin)(nil)
)

// New makes a plug-in that reads the time from c.
func New(c clock.Clock) *Plugin {
	p := &Plugin{clock: c, configurations: map[string]*v1alpha1.InitializerConfiguration{}}
	p.rules.Store(&[]*rule{})
	p.held = newHeld()
	return p
}

// Name implements [admit.Plugin].
func (p *Plugin) Name() string { return Name }

// Join implements [admit.Hosted].
func (p *Plugin) Join(h *admit.Host) error {
	p.host = h
	return p.tellOf(h)
}

var annotationPath = field.NewPath("metadata", "annotations").Key(v1alpha1.InitializersAnnotation)

// Mutate adds the pending initializers to a new object. It checks the user and the change when a waiting object is
// updated.
func (p *Plugin) Mutate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	switch {
	case a.Object == nil || a.Operation != admit.Create && a.Operation != admit.Update:
		return nil
	case a.Operation == admit.Create && a.Subresource == "":
		if err := p.Refuse(a); err != nil {
			return err
		}
	case a.Subresource != "":
		if err := p.mayBelow(ctx, b, a); err != nil {
			return err
		}
		return p.below(a)
	}
	write := p.update
	if a.Operation == admit.Create {
		write = p.create
	}
	if t := explain.From(ctx); t.Keeps() {
		return p.explain(t, a, func() error { return write(ctx, b, a) })
	}
	return write(ctx, b, a)
}

// explain records in the request's trace what an object waits for.
func (p *Plugin) explain(t *explain.Trace, a *admit.Attributes, write func() error) error {
	begun, before := p.clock.Now(), a.Object.DeepCopyObject().(resource.Object)
	err := write()
	if err != nil || a.Object.GetAnnotations()[v1alpha1.InitializersAnnotation] == before.GetAnnotations()[v1alpha1.InitializersAnnotation] {
		return err
	}
	s := explain.Step{Phase: trace.Mutate, Kind: trace.Plugin, Name: Name, Result: trace.Changed, Took: p.clock.Since(begun)}
	if s.Before, err = json.Marshal(before); err == nil {
		s.After, err = json.Marshal(a.Object)
	}
	if err != nil { // the trace then says only that there was a change
		s.Before, s.After = nil, nil
	}
	t.Step(s)
	return nil
}

// mayBelow rejects changes of a waiting object through subresources (its status, its scale, the node of a pod) by users
// without the verb initialize. It allows requests that do not change the object (a token, an eviction), and requests
// that complete a deletion.
func (p *Plugin) mayBelow(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if a.Operation == admit.Create && a.Subresource != "binding" {
		return nil
	}
	stored := a.Old
	if sub := a.Descriptor.Subresource(a.Subresource); sub == nil || sub.Strategy == nil {
		obj, err := b.Get(ctx, a.Descriptor.GroupResource(), a.Namespace, a.Name)
		if err != nil {
			return nil // the update reports that the object does not exist
		}
		stored = obj
	}
	if stored == nil || stored.GetDeletionTimestamp() != nil || !v1alpha1.Uninitialized(stored) {
		return nil
	}
	return p.mayInitialize(ctx, a, "update to uninitialized resource denied") // upstream's words
}

// below prevents a write to a subresource from changing what an object waits for.
func (p *Plugin) below(a *admit.Attributes) error {
	value, has := a.Object.GetAnnotations()[v1alpha1.InitializersAnnotation]
	sub := a.Descriptor.Subresource(a.Subresource)
	switch {
	case sub == nil || sub.Strategy == nil:
		if has && a.Operation == admit.Create {
			return admit.Forbidden(a, fmt.Errorf("initializers cannot be set by way of %s", a.Subresource))
		}
		return nil
	case a.Old == nil:
		return nil
	}
	was, had := a.Old.GetAnnotations()[v1alpha1.InitializersAnnotation]
	if has == had && value == was {
		return nil
	}
	all := make(map[string]string, len(a.Object.GetAnnotations())+1)
	for k, v := range a.Object.GetAnnotations() {
		all[k] = v
	}
	if delete(all, v1alpha1.InitializersAnnotation); had {
		all[v1alpha1.InitializersAnnotation] = was
	}
	a.Object.SetAnnotations(all)
	return nil
}

// written is the annotation that the plug-in wrote into an object in the first round.
type written string

func (p *Plugin) create(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	value, has := a.Object.GetAnnotations()[v1alpha1.InitializersAnnotation]
	if has && a.Recall(Name) == any(written(value)) {
		has = false // second round: the object may match other initializers now
		if err := v1alpha1.SetInitializers(a.Object, nil); err != nil {
			return err
		}
	}
	i := &v1alpha1.Initializers{}
	if has {
		if err := p.mayInitialize(ctx, a, "create with initializers denied"); err != nil { // upstream's words
			return err
		}
		var err error
		if i, err = v1alpha1.DecodeInitializers(value); err != nil {
			return invalid(a, field.Invalid(annotationPath, value, err.Error()))
		}
		if errs := p.checkNamed(i); len(errs) > 0 {
			return invalid(a, errs...)
		}
	} else if !p.exempts(a) {
		var err error
		if i.Pending, err = p.matching(ctx, matching.NewRequest(p.host, b, a)); err != nil {
			return err
		}
	}
	if len(i.Pending) == 0 {
		if has { // a user with the verb initialize may also skip initialization
			return v1alpha1.SetInitializers(a.Object, nil)
		}
		return nil
	}
	i.Since = metav1.NewMicroTime(p.clock.Now())
	if err := v1alpha1.SetInitializers(a.Object, i); err != nil {
		return err
	}
	a.Remember(Name, written(a.Object.GetAnnotations()[v1alpha1.InitializersAnnotation]))
	return nil
}

// exempts reports whether an object waits for no initializer, whatever rules match: objects that are not stored or that
// configure the server, and mirror pods, which already run when the server gets them.
func (p *Plugin) exempts(a *admit.Attributes) bool {
	if len(*p.rules.Load()) == 0 || a.Descriptor.Create != nil || slices.Contains(exempt, a.Descriptor.Group) {
		return true
	}
	return a.Is("", "pods", "") && a.Object.GetAnnotations()[corev1.MirrorPodAnnotationKey] != ""
}

// checkNamed checks and completes a list that a client wrote.
func (p *Plugin) checkNamed(i *v1alpha1.Initializers) field.ErrorList {
	var errs field.ErrorList
	if i.Result != nil {
		errs = append(errs, field.Forbidden(annotationPath.Child("result"), "a new object cannot have been rejected"))
	}
	pending := annotationPath.Child("pending")
	for n, one := range i.Pending {
		errs = append(errs, validation.IsFullyQualifiedName(pending.Index(n).Child("name"), one.Name)...)
		if slices.ContainsFunc(i.Pending[:n], func(before v1alpha1.Pending) bool { return before.Name == one.Name }) {
			errs = append(errs, field.Duplicate(pending.Index(n).Child("name"), one.Name))
		}
		i.Pending[n] = p.settings(one.Name)
	}
	return errs
}

func (p *Plugin) update(ctx context.Context, _ resource.Backend, a *admit.Attributes) error {
	if a.Old == nil {
		return nil
	}
	value, has := a.Object.GetAnnotations()[v1alpha1.InitializersAnnotation]
	was, err := v1alpha1.InitializersOf(a.Old)
	if err != nil || was == nil || was.Done() {
		if !has || value == a.Old.GetAnnotations()[v1alpha1.InitializersAnnotation] {
			return nil
		}
		if i, err := v1alpha1.DecodeInitializers(value); err == nil && i.Done() {
			return v1alpha1.SetInitializers(a.Object, nil) // a manifest that skips initialization
		}
		return invalid(a, field.Invalid(annotationPath, value, "field is immutable once initialization has completed")) // upstream's words
	}
	if err := p.mayInitialize(ctx, a, "update to uninitialized resource denied"); err != nil { // upstream's words
		return err
	}
	is := &v1alpha1.Initializers{}
	if has {
		if is, err = v1alpha1.DecodeInitializers(value); err != nil {
			return invalid(a, field.Invalid(annotationPath, value, err.Error()))
		}
	}
	next, wrong := advance(was, is, metav1.NewMicroTime(p.clock.Now()))
	if wrong != nil {
		return invalid(a, wrong)
	}
	return v1alpha1.SetInitializers(a.Object, next)
}

// advance returns what an object waits for after a user changed the list from was to is; nil: nothing.
func advance(was, is *v1alpha1.Initializers, now metav1.MicroTime) (*v1alpha1.Initializers, *field.Error) {
	if was.Result != nil {
		return nil, field.Forbidden(annotationPath, "the object has been rejected")
	}
	names, left := was.Names(), is.Names()
	stays, off := slices.Equal(left, names), slices.Equal(left, names[1:])
	if !stays && !off {
		return nil, field.Invalid(annotationPath.Child("pending"), left,
			fmt.Sprintf("initializers come off one at a time and in order: the next of %q is %q", names, names[0]))
	}
	if r := is.Result; r != nil {
		at := annotationPath.Child("result")
		switch {
		case r.Status != "" && r.Status != metav1.StatusFailure:
			return nil, field.Invalid(at.Child("status"), r.Status, "must be 'Failure'") // upstream's words
		case r.Code != 0 && (r.Code < 400 || r.Code > 599):
			return nil, field.Invalid(at.Child("code"), r.Code, "must be between 400 and 599")
		}
		result := r.DeepCopy()
		result.Status, result.Code = metav1.StatusFailure, cmp.Or(r.Code, 403)
		if r.Reason == "" && result.Code == 403 {
			result.Reason = metav1.StatusReasonForbidden
		}
		if result.Message == "" {
			result.Message = "rejected by initializer " + names[0]
		}
		return &v1alpha1.Initializers{Pending: was.Pending, Since: was.Since, Result: result}, nil
	}
	if stays {
		return was, nil
	}
	return pass(was, now), nil
}

// pass removes the first initializer; nil: it was the last.
func pass(was *v1alpha1.Initializers, now metav1.MicroTime) *v1alpha1.Initializers {
	if len(was.Pending) <= 1 {
		return nil
	}
	return &v1alpha1.Initializers{Pending: was.Pending[1:], Since: now}
}

func (p *Plugin) mayInitialize(ctx context.Context, a *admit.Attributes, denied string) error {
	d, reason, err := p.host.Authorize(ctx, authorizer.AttributesRecord{
		User: a.User, Verb: Verb, Namespace: a.Namespace, APIGroup: a.Descriptor.Group, APIVersion: a.Version,
		Resource: a.Descriptor.Resource, Name: a.Name, ResourceRequest: true,
	})
	switch {
	case d == authorizer.DecisionAllow: // despite other errors
		return nil
	case err != nil:
		return apierrors.NewInternalError(err)
	}
	return apierrors.NewForbidden(a.Descriptor.GroupResource(), a.Name, fmt.Errorf("%s: %s", denied, reason))
}

func invalid(a *admit.Attributes, errs ...*field.Error) error {
	return apierrors.NewInvalid(a.Kind().GroupKind(), a.Object.GetName(), errs)
}
