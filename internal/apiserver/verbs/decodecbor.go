// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"

	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/resource"
)

// cbor decodes a body in CBOR. A map that has a key twice is no CBOR, whatever the client wants of validation.
func (d *decoder) cbor(body []byte, strictly bool) (resource.Object, schema.GroupVersionKind, []error, error) {
	empty := d.empty()
	_, free := empty.(*unstructured.Unstructured)
	out, actual, err := cbor.NewSerializer(cborTypes{d}, cborTypes{d}, cbor.Strict(strictly)).Decode(body, &d.gvk, empty)
	var said schema.GroupVersionKind
	if actual != nil {
		said = *actual
	}
	var strict []error
	if err != nil {
		more, ok := runtime.AsStrictDecodingError(err)
		if !ok || out == nil {
			if !free && said.Kind != "" && said.Kind != d.gvk.Kind {
				if err := d.wrongKind(said, body, nothingRead); err != nil {
					return nil, said, nil, err
				}
			}
			return nil, said, nil, d.refuse(err, said, body)
		}
		strict = more.Errors()
	}
	if free && said.Kind != d.gvk.Kind && said.GroupVersion() == d.gvk.GroupVersion() {
		if d.name == "" {
			return nil, said, nil, registry.KindMismatch(said, d.gvk.Kind, empty.GetName())
		}
		d.said = said
	}
	obj, ok := out.(resource.Object)
	if !ok {
		return nil, said, nil, d.refuse(runtime.NewNotRegisteredErrForKind(schemeName, said), said, body)
	}
	return d.finish(obj, said, strict, strictly && !free) // upstream does not look for unknown fields there
}

func nothingRead(runtime.Object) error { return nil }

// cborTypes makes upstream's decoder accept any kind that the body names for the path's object.
type cborTypes struct{ d *decoder }

// ObjectKinds implements runtime.ObjectTyper.
func (t cborTypes) ObjectKinds(runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	kinds := []schema.GroupVersionKind{t.d.gvk}
	for _, gv := range t.d.others {
		kinds = append(kinds, gv.WithKind(t.d.gvk.Kind))
	}
	return kinds, false, nil
}

// Recognizes implements runtime.ObjectTyper.
func (t cborTypes) Recognizes(gvk schema.GroupVersionKind) bool { return gvk == t.d.gvk }

// New implements runtime.ObjectCreater. A wrong version of the right kind is refused later, with another message.
func (t cborTypes) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	if gvk.Kind == t.d.gvk.Kind && gvk.Group == t.d.gvk.Group && t.d.known(gvk) {
		return t.d.empty(), nil
	}
	return nil, runtime.NewNotRegisteredErrForKind(schemeName, gvk)
}

// cborToJSON is an object's JSON.
func cborToJSON(body []byte) ([]byte, error) {
	var m map[string]any
	if err := direct.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	return json.Marshal(m)
}

// cborDeleteOptions reads DeleteOptions of any group.
func cborDeleteOptions(body []byte, own schema.GroupVersionKind, o *metav1.DeleteOptions) error {
	out, said, err := cbor.NewSerializer(deleteTypes{}, deleteTypes{}).Decode(body, &own, o)
	if err != nil {
		return badRequest(err)
	}
	read, ok := out.(*metav1.DeleteOptions)
	if !ok {
		return badRequest(runtime.NewNotRegisteredErrForKind(schemeName, *said))
	}
	*o = *read
	return nil
}

// deleteTypes are the types of upstream's decoder: DeleteOptions alone.
type deleteTypes struct{}

// ObjectKinds implements runtime.ObjectTyper.
func (deleteTypes) ObjectKinds(runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	return []schema.GroupVersionKind{metav1.SchemeGroupVersion.WithKind("DeleteOptions")}, false, nil
}

// Recognizes implements runtime.ObjectTyper.
func (deleteTypes) Recognizes(gvk schema.GroupVersionKind) bool { return gvk.Kind == "DeleteOptions" }

// New implements runtime.ObjectCreater.
func (deleteTypes) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	if gvk.Kind == "DeleteOptions" {
		return &metav1.DeleteOptions{}, nil
	}
	return nil, runtime.NewNotRegisteredErrForKind(schemeName, gvk)
}
