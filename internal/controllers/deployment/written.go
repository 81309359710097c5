// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/objectversion"
)

// written records, for each deployment, the replica sets that the controller wrote and that the cache does not show yet. The sizes depend
// on all of them together: computed from a set as it was before the write, they could give a deployment whose template changes at that
// moment the same pods a second time, beyond its surge.
type written struct {
	mu sync.Mutex
	of map[types.NamespacedName]map[string]string // resource versions of sets by their names; "": not known whether it was written
}

func newWritten() *written { return &written{of: map[types.NamespacedName]map[string]string{}} }

// note records the result of a write. A nil result means that the write failed, but may have taken effect.
func (w *written) note(key types.NamespacedName, name string, updated *appsv1.ReplicaSet) {
	version := ""
	if updated != nil {
		version = updated.ResourceVersion
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of[key] == nil {
		w.of[key] = map[string]string{}
	}
	w.of[key][name] = version
}

func (w *written) forget(key types.NamespacedName, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if delete(w.of[key], name); len(w.of[key]) == 0 {
		delete(w.of, key)
	}
}

func (w *written) forgetAll(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.of, key)
}

func (w *written) open(key types.NamespacedName) map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	open := map[string]string{}
	for name, version := range w.of[key] {
		open[name] = version
	}
	return open
}

// shown reports whether the cache shows all writes. If not, the missing event will requeue the deployment.
func (c *controller) shown(ctx context.Context, key types.NamespacedName) (bool, error) {
	open := c.written.open(key)
	for _, name := range slices.Sorted(maps.Keys(open)) {
		version := open[name]
		cached := ""
		if rs, err := c.sets.ReplicaSets(key.Namespace).Get(name); err == nil {
			cached = rs.ResourceVersion
		}
		if version == "" || cached == "" {
			// Only the server knows whether it was written, or is there still.
			there, err := c.client.AppsV1().ReplicaSets(key.Namespace).Get(ctx, name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err) && cached == "":
				c.written.forget(key, name)
				continue
			case err != nil && !apierrors.IsNotFound(err):
				return false, fmt.Errorf("get replica set: %w", err)
			case err != nil:
				return false, nil // it is deleted, and the cache does not show that yet
			}
			c.written.note(key, name, there)
			version = there.ResourceVersion
		}
		if cached == "" || objectversion.Less(cached, version) {
			return false, nil
		}
		c.written.forget(key, name)
	}
	return true, nil
}
