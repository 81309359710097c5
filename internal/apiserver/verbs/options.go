// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	listvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/selectors"
)

func badRequest(err error) error { return apierrors.NewBadRequest(err.Error()) }

func invalidOptions(kind string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
}

func metaKind(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: kind}
}

func (q *req) query() url.Values {
	if q.r.URL.RawQuery == "" {
		return nil
	}
	return q.r.URL.Query()
}

func (q *req) createOptions() (*metav1.CreateOptions, error) {
	o := &metav1.CreateOptions{}
	if v := q.query(); v != nil {
		if err := metav1.Convert_url_Values_To_v1_CreateOptions(&v, o, nil); err != nil {
			return nil, badRequest(err)
		}
		if err := invalidOptions("CreateOptions", validation.ValidateCreateOptions(o)); err != nil {
			return nil, err
		}
	}
	o.TypeMeta = metaKind("CreateOptions")
	return o, nil
}

func (q *req) updateOptions() (*metav1.UpdateOptions, error) {
	o := &metav1.UpdateOptions{}
	if v := q.query(); v != nil {
		if err := metav1.Convert_url_Values_To_v1_UpdateOptions(&v, o, nil); err != nil {
			return nil, badRequest(err)
		}
		if err := invalidOptions("UpdateOptions", validation.ValidateUpdateOptions(o)); err != nil {
			return nil, err
		}
	}
	o.TypeMeta = metaKind("UpdateOptions")
	return o, nil
}

// toCreate converts the options of an update into those of the create that it may become, and patchToUpdate those of a patch into those
// of its update.
func toCreate(o *metav1.UpdateOptions) *metav1.CreateOptions {
	return &metav1.CreateOptions{TypeMeta: metaKind("CreateOptions"), DryRun: o.DryRun, FieldManager: o.FieldManager,
		FieldValidation: o.FieldValidation}
}

func patchToUpdate(o *metav1.PatchOptions) *metav1.UpdateOptions {
	return &metav1.UpdateOptions{TypeMeta: metaKind("UpdateOptions"), DryRun: o.DryRun, FieldManager: o.FieldManager,
		FieldValidation: o.FieldValidation}
}

// directive is Strict, Warn or Ignore.
func directive(fieldValidation string) string {
	if fieldValidation == "" {
		return metav1.FieldValidationWarn
	}
	return fieldValidation
}

// manager is the name under which a writer's fields are kept.
func manager(name, userAgent string) string {
	if name != "" {
		return name
	}
	first, _, _ := strings.Cut(userAgent, "/")
	var b strings.Builder
	for _, r := range first {
		if !unicode.IsPrint(r) {
			continue
		}
		if b.Len()+len(string(r)) > validation.FieldManagerMaxLength {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

func (q *req) listOptions() (*registry.Selection, error) {
	s := &registry.Selection{Initialized: q.initializedOnly()}
	if v := q.query(); v != nil {
		if err := metav1.Convert_url_Values_To_v1_ListOptions(&v, &s.ListOptions, nil); err != nil {
			return nil, badRequest(err)
		}
	}
	if err := parseSelection(s, q.kind, q.ver().FieldLabel); err != nil {
		return nil, err
	}
	if own := q.ver().Fields; own != nil && s.Fields != nil && slices.ContainsFunc(s.Fields.Requirements(), func(r fields.Requirement) bool {
		return r.Field != "metadata.name" && r.Field != "metadata.namespace"
	}) {
		s.VersionFields, s.Foresee = own, q.foreseeAll
	}
	if q.name != "" {
		if s.Fields != nil {
			if name, ok := s.Fields.RequiresExactMatch("metadata.name"); !ok || name != q.name {
				return nil, apierrors.NewBadRequest("fieldSelector metadata.name doesn't match requested name")
			}
		}
		s.Name = q.name
	}
	return s, nil
}

// parseSelection reads the selectors and checks the options. Label converts the field labels of the requested version;
// nil: the kind's own list of field names decides.
func parseSelection(s *registry.Selection, k *Kind, label func(label, value string) (string, string, error)) error {
	if s.LabelSelector != "" {
		l, err := selectors.ParseLabels(s.LabelSelector)
		if err != nil {
			return badRequest(err)
		}
		if !l.Empty() {
			s.Labels = l
		}
	}
	var fs fields.Selector
	if s.FieldSelector != "" {
		var err error
		if fs, err = selectors.ParseFields(s.FieldSelector); err != nil {
			return badRequest(err)
		}
	}
	internal := &internalversion.ListOptions{
		Watch: s.Watch, AllowWatchBookmarks: s.AllowWatchBookmarks, ResourceVersion: s.ResourceVersion,
		ResourceVersionMatch: s.ResourceVersionMatch, TimeoutSeconds: s.TimeoutSeconds, Limit: s.Limit,
		Continue: s.Continue, SendInitialEvents: s.SendInitialEvents,
	}
	internalversion.SetListOptionsDefaults(internal, true)
	s.SendInitialEvents, s.ResourceVersionMatch = internal.SendInitialEvents, internal.ResourceVersionMatch
	if err := invalidOptions("ListOptions", listvalidation.ValidateListOptions(internal, true)); err != nil {
		return err
	}
	if fs == nil || fs.Empty() {
		return nil
	}
	if label != nil {
		var err error
		if fs, err = selectors.Transform(fs, label); err != nil {
			return badRequest(err)
		}
	}
	for _, r := range fs.Requirements() {
		if !selectable(k, r.Field) {
			return unknownField(k, r.Field)
		}
	}
	s.Fields = fs
	s.Name, _ = fs.RequiresExactMatch("metadata.name")
	return nil
}

// selectable reports whether a field selector may name a field.
func selectable(k *Kind, name string) bool {
	return name == "metadata.name" || name == "metadata.namespace" && (k.Namespaced || !k.Unstructured) || slices.Contains(k.FieldNames, name)
}

func unknownField(k *Kind, name string) error {
	if len(k.FieldNames) > 0 || k.Unstructured {
		return apierrors.NewBadRequest("field label not supported: " + name)
	}
	return apierrors.NewBadRequest(fmt.Sprintf("%q is not a known field selector: only %q, %q", name, "metadata.name", "metadata.namespace"))
}
