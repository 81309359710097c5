// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Applied is what a controller applies to an object. With client-go's typed configurations in its place, a build would compile those of all
// kinds (docs/performance.md).
type Applied struct {
	Kind            schema.GroupVersionKind
	Namespace, Name string
	UID             types.UID      // optional: only an object with this UID is changed
	Fields          map[string]any // by their JSON names, such as status
}

// Patch is the method of this name of client-go's clients.
type Patch[T any] func(
	ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error)

// Apply sends a server-side apply of some fields to an object, or to one of its subresources. It forces conflicts: the manager becomes the
// owner of the fields
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/#using-server-side-apply-in-a-controller).
func Apply[T any](ctx context.Context, patch Patch[T], manager string, a Applied, subresources ...string) error {
	metadata := map[string]any{"name": a.Name}
	if a.Namespace != "" {
		metadata["namespace"] = a.Namespace
	}
	if a.UID != "" {
		metadata["uid"] = a.UID
	}
	version, kind := a.Kind.ToAPIVersionAndKind()
	object := map[string]any{"apiVersion": version, "kind": kind, "metadata": metadata}
	for name, value := range a.Fields {
		object[name] = value
	}
	data, err := json.Marshal(object)
	if err != nil {
		return err
	}
	force := true
	_, err = patch(ctx, a.Name, types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: manager, Force: &force}, subresources...)
	return err
}
