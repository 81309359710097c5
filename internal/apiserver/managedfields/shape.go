// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/mortise-dev/mortise/resource"
)

// Types returns the schemas of a kind's versions: which lists are sets or maps, which objects are atomic. A nil
// descriptor means the kinds of subresources (scale, eviction).
func (m *Manager) Types(d *resource.Descriptor) (managedfields.TypeConverter, error) {
	if d == nil {
		return m.types.builtIn()
	}
	const all = "" // no version has this name
	k := m.kind(d)
	k.mu.RLock()
	types := k.converters[all]
	k.mu.RUnlock()
	if types != nil {
		return types, nil
	}
	types, err := m.types.of(d)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.converters[all] = types
	return types, nil
}
