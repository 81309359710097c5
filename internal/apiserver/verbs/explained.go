// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// Explained reads the recorded contents of objects from traces.
type Explained struct{ api *API }

var _ explain.Objects = Explained{}

// Explained gives traces a way to the kinds.
func (a *API) Explained() Explained { return Explained{a} }

// version finds a kind and the index of a version; an empty one is the one that is stored.
func (e Explained) version(r schema.GroupResource, version string) (*Kind, int, error) {
	k := e.api.kinds.Get(r)
	if k == nil {
		return nil, 0, fmt.Errorf("%s is not served any more", r)
	}
	i := slices.IndexFunc(k.Versions, func(v resource.Version) bool { return v.Name == version })
	if i < 0 {
		i = slices.IndexFunc(k.Versions, func(v resource.Version) bool { return v.Name == k.Storage })
	}
	if i < 0 {
		return nil, 0, fmt.Errorf("%s has no version %s any more", r, version)
	}
	return k, i, nil
}

// Stored decodes an object as a kind stored it, in one of its versions.
func (e Explained) Stored(r schema.GroupResource, version string, data []byte) (map[string]any, error) {
	k, i, err := e.version(r, version)
	if err != nil {
		return nil, err
	}
	obj, err := k.Decode(&store.Record{Key: k.Root, Value: data})
	if err != nil {
		return nil, err
	}
	return e.shown(k.NewCachedObject(obj), i)
}

func (e Explained) shown(f *watchcache.CachedObject, version int) (map[string]any, error) {
	b, err := whole(f, version, mediaJSON)
	if err != nil {
		return nil, err
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("read object: %w", err)
	}
	return m, nil
}

// Live is an object as it is now, in the version that is stored.
func (e Explained) Live(ctx context.Context, r schema.GroupResource, namespace, name string) (map[string]any, string, error) {
	k, i, err := e.version(r, "")
	if err != nil {
		return nil, "", err
	}
	obj, err := e.api.backend.Get(ctx, r, namespace, name)
	if err != nil {
		return nil, "", err
	}
	m, err := e.shown(k.NewCachedObject(obj.DeepCopyObject().(resource.Object)), i)
	return m, k.Versions[i].Name, err
}

// Sent decodes an object as a client sent it, and returns it also with the kind's defaults.
func (e Explained) Sent(r schema.GroupResource, version, media string, body []byte) (said, filled map[string]any, err error) {
	k, i, err := e.version(r, version)
	if err != nil {
		return nil, nil, err
	}
	if media == string(types.ApplyYAMLPatchType) {
		if body, err = yaml.YAMLToJSON(body); err != nil {
			return nil, nil, fmt.Errorf("read configuration: %w", err)
		}
		media = mediaJSON
	}
	if media != mediaJSON && media != mediaYAML && media != mediaProtobuf && media != mediaCBOR {
		return nil, nil, fmt.Errorf("read %s: it is no object", media)
	}
	q := &req{API: e.api, kind: k, version: i}
	read := func(fill bool) (map[string]any, error) {
		d := q.decoder()
		if !fill {
			d.fill = nil
		}
		obj, _, err := d.decode(body, media, metav1.FieldValidationIgnore)
		if err != nil {
			return nil, err
		}
		gvk := k.GroupVersionKind(k.Versions[i].Name)
		obj.GetObjectKind().SetGroupVersionKind(gvk)
		b, err := json.Marshal(obj)
		if err != nil {
			return nil, fmt.Errorf("encode object: %w", err)
		}
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			return nil, fmt.Errorf("read object: %w", err)
		}
		return m, nil
	}
	if said, err = read(false); err != nil {
		return nil, nil, err
	}
	filled, err = read(true)
	return said, filled, err
}
