// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	listvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/internal/selectors"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
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

// toCreate is what an update says of the create that it may turn into, and patchToUpdate what a patch says of its update.
func toCreate(o *metav1.UpdateOptions) *metav1.CreateOptions {
	return &metav1.CreateOptions{TypeMeta: metaKind("CreateOptions"), DryRun: o.DryRun, FieldManager: o.FieldManager, FieldValidation: o.FieldValidation}
}

func patchToUpdate(o *metav1.PatchOptions) *metav1.UpdateOptions {
	return &metav1.UpdateOptions{TypeMeta: metaKind("UpdateOptions"), DryRun: o.DryRun, FieldManager: o.FieldManager, FieldValidation: o.FieldValidation}
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

// selection is what a list or watch asks for.
type selection struct {
	metav1.ListOptions
	labels labels.Selector // nil: all
	fields fields.Selector // nil: all
	name   string          // the only name that can match; empty: any
	hide   bool            // what is not initialised
	// own are the fields of objects where the version has others than the kind; foresee has it make them of many at once.
	own     func(hub resource.Object) (fields.Set, error)
	foresee func([]*store.Record) error
}

func (q *req) listOptions() (*selection, error) {
	s := &selection{hide: q.hides()}
	if v := q.query(); v != nil {
		if err := metav1.Convert_url_Values_To_v1_ListOptions(&v, &s.ListOptions, nil); err != nil {
			return nil, badRequest(err)
		}
	}
	if err := s.parse(q.kind, q.ver().FieldLabel); err != nil {
		return nil, err
	}
	if own := q.ver().Fields; own != nil && s.fields != nil && slices.ContainsFunc(s.fields.Requirements(), func(r fields.Requirement) bool {
		return r.Field != "metadata.name" && r.Field != "metadata.namespace"
	}) {
		s.own, s.foresee = own, q.foreseeAll
	}
	if q.name != "" {
		if s.fields != nil {
			if name, ok := s.fields.RequiresExactMatch("metadata.name"); !ok || name != q.name {
				return nil, apierrors.NewBadRequest("fieldSelector metadata.name doesn't match requested name")
			}
		}
		s.name = q.name
	}
	return s, nil
}

// parse reads the selectors and checks the options. Label is what the version has to say of a field selector's labels; nil
// where the kind's own list of names decides.
func (s *selection) parse(k *Kind, label func(label, value string) (string, string, error)) error {
	if s.LabelSelector != "" {
		l, err := selectors.ParseLabels(s.LabelSelector)
		if err != nil {
			return badRequest(err)
		}
		if !l.Empty() {
			s.labels = l
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
	s.fields = fs
	s.name, _ = fs.RequiresExactMatch("metadata.name")
	return nil
}

// matches says whether an object is selected.
func (s *selection) matches(f *watchcache.Forms) (bool, error) {
	if s.labels != nil && !s.labels.Matches(labels.Set(f.Hub.GetLabels())) {
		return false, nil
	}
	if s.fields == nil {
		return true, nil
	}
	if s.own == nil {
		return s.fields.Matches(f.Fields()), nil
	}
	set, err := s.own(f.Hub)
	if err != nil {
		return false, err
	}
	set["metadata.name"] = f.Hub.GetName()
	if f.Kind.Namespaced {
		set["metadata.namespace"] = f.Hub.GetNamespace()
	}
	return s.fields.Matches(set), nil
}

func (s *selection) all() bool { return s.labels == nil && s.fields == nil }

// selectable says whether a field selector may name a field.
func selectable(k *Kind, name string) bool {
	return name == "metadata.name" || name == "metadata.namespace" && (k.Namespaced || !k.Unstructured) || slices.Contains(k.FieldNames, name)
}

func unknownField(k *Kind, name string) error {
	if len(k.FieldNames) > 0 || k.Unstructured {
		return apierrors.NewBadRequest("field label not supported: " + name)
	}
	return apierrors.NewBadRequest(fmt.Sprintf("%q is not a known field selector: only %q, %q", name, "metadata.name", "metadata.namespace"))
}

// revision reads a resourceVersion; 0 is unset or any.
func revision(s string) (int64, error) {
	if s == "" || s == "0" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resourceVersion: Invalid value: %q: %w", s, err)
	}
	return int64(min(n, 1<<63-1)), nil
}

// continueToken says where a list goes on, in the form that kube-apiserver gives it.
type continueToken struct {
	APIVersion      string `json:"v"`
	ResourceVersion int64  `json:"rv"`
	StartKey        string `json:"start"`
}

// encodeContinue makes the token to go on at a key, which is said without the kind's prefix.
func encodeContinue(start string, rv int64) string {
	b, err := json.Marshal(continueToken{APIVersion: "meta.k8s.io/v1", ResourceVersion: rv, StartKey: start})
	if err != nil {
		panic(fmt.Sprintf("encode continue token: %v", err)) // strings and numbers are always JSON
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// decodeContinue is the key after which the list goes on, and its revision; -1 is whatever is newest. A token says the first key
// that may come: nearly always the last one that came and a zero byte.
func decodeContinue(token, prefix string) (after string, rv int64, err error) {
	bad := func(format string, args ...any) error {
		return apierrors.NewBadRequest("invalid continue token: continue key is not valid: " + fmt.Sprintf(format, args...))
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return "", 0, bad("%v", err)
	}
	var c continueToken
	if err := json.Unmarshal(b, &c); err != nil {
		return "", 0, bad("%v", strings.ReplaceAll(err.Error(), "verbs.continueToken", "storage.continueToken"))
	}
	switch {
	case c.APIVersion != "meta.k8s.io/v1":
		return "", 0, bad("server does not recognize this encoded version %s", c.APIVersion)
	case c.ResourceVersion == 0:
		return "", 0, bad("incorrect encoded start resourceVersion (version meta.k8s.io/v1)")
	case c.StartKey == "":
		return "", 0, bad("encoded start key empty (version meta.k8s.io/v1)")
	}
	key := c.StartKey
	if key[0] != '/' {
		key = "/" + key
	}
	if path.Clean(key) != key {
		return "", 0, bad("%s", c.StartKey)
	}
	key = prefix + key[1:]
	if before, ok := strings.CutSuffix(key, "\x00"); ok {
		return before, c.ResourceVersion, nil
	}
	if key == prefix {
		return "", c.ResourceVersion, nil
	}
	// the key itself may come: no name lies between it and this one
	last := len(key) - 1
	return key[:last] + string([]byte{key[last] - 1, 0xff}), c.ResourceVersion, nil
}
