// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"maps"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/resource"
)

// Registrations that the server makes carry this label. It creates those of its own groups at its start and leaves later
// changes of others alone; those of definitions follow the definitions.
const (
	managed = "kube-aggregator.kubernetes.io/automanaged"
	follows = "true"
)

// Priorities of the groups and versions of definitions.
const (
	customGroup   = 1000
	customVersion = 100
)

// registered enqueues a registration that was changed or deleted, if definitions need it or its label claims so. The caller holds the
// lock.
func (k *Reconciler) registered(name string, obj resource.Object) {
	switch {
	case k.wants[name] > 0:
		k.add(key{definitions, name})
	case obj != nil && obj.GetLabels()[managed] == follows:
		k.add(key{what: definitions})
	}
}

// defined records the registrations that a definition needs, and enqueues new ones. The caller holds the lock.
func (k *Reconciler) defined(name string, obj resource.Object) {
	old, now := k.known[name], registrationsOf(obj)
	delete(k.known, name)
	if now != nil {
		k.known[name] = now
	}
	for n := range now {
		k.wants[n]++
		if k.wants[n] == 1 {
			k.add(key{definitions, n})
		}
	}
	for n := range old {
		if k.wants[n]--; k.wants[n] == 0 {
			delete(k.wants, n)
			k.add(key{what: definitions})
		}
	}
}

// registrationsOf returns the registrations of a definition's served versions, by name.
func registrationsOf(obj resource.Object) map[string]schema.GroupVersion {
	d, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok || d == nil {
		return nil
	}
	want := map[string]schema.GroupVersion{}
	for _, v := range d.Spec.Versions {
		if v.Served {
			want[v.Name+"."+d.Spec.Group] = schema.GroupVersion{Group: d.Spec.Group, Version: v.Name}
		}
	}
	return want
}

// wanted returns the registrations that the known definitions need.
func (k *Reconciler) wanted() map[string]schema.GroupVersion {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := map[string]schema.GroupVersion{}
	for _, of := range k.known {
		maps.Copy(all, of)
	}
	return all
}

// register creates the registration of a version that a definition serves, unless it exists or is no longer needed.
func (k *Reconciler) register(ctx context.Context, b Backend, name string) error {
	k.mu.Lock()
	stale := k.wants[name] == 0
	k.mu.Unlock()
	if stale {
		return nil
	}
	version, group, _ := strings.Cut(name, ".")
	gv := schema.GroupVersion{Group: group, Version: version}
	obj, err := b.Get(ctx, registrations, "", name)
	switch {
	case err == nil:
		return k.correct(ctx, b, obj, gv)
	case !apierrors.IsNotFound(err):
		return err
	}
	if err = k.create(ctx, b, name, gv); apierrors.IsNotFound(err) {
		return nil // a server without registrations
	}
	return err
}

// correct restores the spec of a registration that follows definitions. One without the label belongs to others.
func (k *Reconciler) correct(ctx context.Context, b Backend, obj resource.Object, gv schema.GroupVersion) error {
	want := specOf(gv)
	a, ok := obj.(*apiregistrationv1.APIService)
	if !ok || a.Labels[managed] != follows || apiequality.Semantic.DeepEqual(a.Spec, want) {
		return nil
	}
	_, err := b.Update(ctx, registrations, "", a.Name, false, func(obj resource.Object) error {
		if a, ok := obj.(*apiregistrationv1.APIService); ok && a.Labels[managed] == follows {
			a.Spec = want
		}
		return nil
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func specOf(gv schema.GroupVersion) apiregistrationv1.APIServiceSpec {
	return apiregistrationv1.APIServiceSpec{Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: customGroup,
		VersionPriority: customVersion}
}

func (k *Reconciler) create(ctx context.Context, b Backend, name string, gv schema.GroupVersion) error {
	_, err := b.Create(ctx, registrations, &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{managed: follows}},
		Spec:       specOf(gv),
	}, false)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// definitions registers the served versions of all definitions, and deletes registrations that none needs. It reads the definitions only if
// there is one to delete: another server may have stored some that this one has not seen yet.
func (k *Reconciler) definitions(ctx context.Context, b Backend) error {
	have, err := b.List(ctx, registrations, "")
	if apierrors.IsNotFound(err) {
		return nil // a server without registrations
	} else if err != nil {
		return err
	}
	want := k.wanted()
	var stale []string
	for _, obj := range have {
		name := obj.GetName()
		if gv, ok := want[name]; ok {
			delete(want, name)
			if err := k.correct(ctx, b, obj, gv); err != nil {
				return err
			}
		} else if obj.GetLabels()[managed] == follows {
			stale = append(stale, name)
		}
	}
	if len(stale) > 0 {
		all, err := b.List(ctx, definitions, "")
		if apierrors.IsNotFound(err) {
			return nil // a server without definitions
		} else if err != nil {
			return err
		}
		served := map[string]schema.GroupVersion{}
		for _, obj := range all {
			maps.Copy(served, registrationsOf(obj))
		}
		for _, name := range stale {
			if _, ok := served[name]; ok {
				continue
			}
			if err := b.Delete(ctx, registrations, "", name, nil); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
	}
	for name, gv := range want {
		if err := k.create(ctx, b, name, gv); err != nil {
			return err
		}
	}
	return nil
}
