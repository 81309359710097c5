// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/mortise-dev/mortise/resource"
)

// codec stores objects as JSON in the hub version. A stored object may have been written under an older schema or in an
// older storage version. So it is pruned and defaulted by the version that it names, and then converted to a hub
// object.
type codec struct{ k *kind }

// Encode returns the JSON of the object in the hub version. The object may be in any version.
func (c codec) Encode(obj resource.Object) ([]byte, error) {
	u, err := c.k.in(context.Background(), c.k.hub, obj)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(u.Object)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", c.k.name, err)
	}
	return append(b, '\n'), nil
}

// Decode returns the hub object of stored JSON.
func (c codec) Decode(data []byte) (resource.Object, error) {
	var content map[string]any
	if err := utiljson.Unmarshal(data, &content); err != nil {
		return nil, fmt.Errorf("decode %s: %w", c.k.name, err)
	}
	u := &unstructured.Unstructured{Object: content}
	apiVersion, ok := content["apiVersion"].(string)
	if !ok {
		return nil, fmt.Errorf("decode %s: no apiVersion", c.k.name)
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", c.k.name, err)
	}
	v := c.k.versions[gv.Version]
	if v == nil || gv.Group != c.k.group {
		return nil, fmt.Errorf("decode %s: stored as %s, which its definition does not have", c.k.name, apiVersion)
	}
	v.pruneFields(content)
	v.setDefaults(u)
	if v != c.k.hub {
		return v.converted(u, c.k.hub)
	}
	return u, nil
}
