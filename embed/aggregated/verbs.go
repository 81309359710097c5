// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/apiserver/merge"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
)

// maxBody is the maximum size of a request's body, as kube-apiserver's.
const maxBody = 3 << 20

func (res *Resource) get(ctx context.Context, req *Request) (Object, error) {
	if res.Get != nil {
		obj, err := res.Get(ctx, req)
		if err == nil && obj == nil {
			err = apierrors.NewNotFound(res.groupResource(), req.Name)
		}
		return obj, err
	}
	if res.List == nil {
		return nil, status.Route(http.StatusMethodNotAllowed, "")
	}
	all, err := res.List(ctx, req)
	if err != nil {
		return nil, err
	}
	for _, obj := range all.Items {
		if obj.GetName() == req.Name && obj.GetNamespace() == req.Namespace {
			return obj, nil
		}
	}
	return nil, apierrors.NewNotFound(res.groupResource(), req.Name)
}

// wanted reports whether the request's selectors match an object.
func (req *Request) wanted(obj Object) bool {
	return req.Labels.Matches(labels.Set(obj.GetLabels())) &&
		req.Fields.Matches(fields.Set{"metadata.name": obj.GetName(), "metadata.namespace": obj.GetNamespace()})
}

func (res *Resource) list(ctx context.Context, req *Request) (List, error) {
	l, err := res.List(ctx, req)
	if err != nil {
		return List{}, err
	}
	out := l
	out.Items = make([]Object, 0, len(l.Items))
	for _, obj := range l.Items {
		if req.wanted(obj) && (req.Namespace == "" || obj.GetNamespace() == req.Namespace) {
			out.Items = append(out.Items, obj)
		}
	}
	return out, nil
}

func body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge := (&http.MaxBytesError{}); errors.As(err, &tooLarge) {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", tooLarge.Limit))
	} else if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return b, nil
}

// decode decodes an object of the resource's kind, from JSON or YAML.
func (res *Resource) decode(w http.ResponseWriter, r *http.Request) (Object, error) {
	b, err := body(w, r)
	if err != nil {
		return nil, err
	}
	switch media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); media {
	case "", "application/json":
	case "application/yaml":
		if b, err = yaml.YAMLToJSON(b); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	default:
		return nil, status.Media(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
			"the body of the request was in an unknown format - accepted media types include: application/json, application/yaml")
	}
	return res.parse(b)
}

func (res *Resource) parse(b []byte) (Object, error) {
	var said metav1.TypeMeta
	if err := json.Unmarshal(b, &said); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if want := res.gvk(); said.GroupVersionKind() != want {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the API version and kind in the data (%s, %s) do not match those expected (%s, %s)",
			said.APIVersion, said.Kind, want.GroupVersion(), want.Kind))
	}
	obj := res.fresh()
	if err := json.Unmarshal(b, obj); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return obj, nil
}

// setIdentity sets or checks the object's name and namespace by the request's path.
func (res *Resource) setIdentity(req *Request, obj Object) (Object, error) {
	switch {
	case res.Namespaced && obj.GetNamespace() == "":
		obj.SetNamespace(req.Namespace)
	case obj.GetNamespace() != req.Namespace:
		return nil, apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	switch {
	case req.Name == "" && obj.GetName() == "" && obj.GetGenerateName() == "":
		return nil, apierrors.NewBadRequest("name or generateName is required")
	case req.Name != "" && obj.GetName() != req.Name:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", obj.GetName(),
			req.Name))
	}
	return obj, nil
}

// change serves update and patch.
func (res *Resource) change(ctx context.Context, w http.ResponseWriter, r *http.Request, req *Request) error {
	var obj Object
	var err error
	if req.Verb == "update" {
		obj, err = res.decode(w, r)
	} else {
		obj, err = res.patched(ctx, w, r, req)
	}
	if err != nil {
		return err
	}
	if obj, err = res.setIdentity(req, obj); err != nil {
		return err
	}
	if obj, err = res.Update(ctx, req, obj); err != nil {
		return err
	}
	return res.writeObject(w, r, http.StatusOK, obj)
}

// patched returns the object with the request's patch applied.
func (res *Resource) patched(ctx context.Context, w http.ResponseWriter, r *http.Request, req *Request) (Object, error) {
	patch, err := body(w, r)
	if err != nil {
		return nil, err
	}
	old, err := res.get(ctx, req)
	if err != nil {
		return nil, err
	}
	before, err := json.Marshal(res.typed(old))
	if err != nil {
		return nil, fmt.Errorf("encode object: %w", err)
	}
	var after []byte
	switch media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); types.PatchType(media) {
	case types.MergePatchType:
		if !json.Valid(patch) {
			return nil, apierrors.NewBadRequest(jsonpatch.ErrBadJSONPatch.Error())
		}
		after, err = merge.JSON(before, patch)
	case types.JSONPatchType:
		after, err = operate(before, patch)
	default:
		return nil, status.Media(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
			"the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json")
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return res.parse(after)
}

// Limits of JSON patches, as kube-apiserver's: operations, and bytes that copies add. An operation of a few bytes may double an object.
const (
	maxOperations = 10_000
	maxCopied     = 3 << 20
)

// operate applies a JSON patch.
func operate(before, patch []byte) ([]byte, error) {
	p, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, err
	}
	if len(p) > maxOperations {
		return nil, fmt.Errorf("the allowed maximum operations in a JSON patch is %d, got %d", maxOperations, len(p))
	}
	if err := merge.CheckOperations(before, patch, len(p)); err != nil {
		return nil, err
	}
	// The library has this limit in a variable; keep a value that the program has set itself.
	atomic.CompareAndSwapInt64(&jsonpatch.AccumulatedCopySizeLimit, 0, maxCopied)
	return p.Apply(before)
}

// remove serves delete and deletecollection.
func (res *Resource) remove(ctx context.Context, w http.ResponseWriter, r *http.Request, req *Request) error {
	if req.Verb == "delete" {
		obj, err := res.Delete(ctx, req)
		if err != nil {
			return err
		}
		if obj != nil {
			return res.writeObject(w, r, http.StatusOK, obj)
		}
		return writeJSON(w, r, http.StatusOK, &metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess,
			Details: &metav1.StatusDetails{Name: req.Name, Group: res.Group, Kind: res.Name},
		})
	}
	l, err := res.list(ctx, req)
	if err != nil {
		return err
	}
	for _, obj := range l.Items {
		one := *req
		one.Verb, one.Namespace, one.Name = "delete", obj.GetNamespace(), obj.GetName()
		if _, err := res.Delete(ctx, &one); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return res.writeList(w, r, l)
}
