// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import "github.com/mortise-dev/mortise/resource"

// Forget drops the cached field sets of created objects.
func (m *Manager) Forget() {
	m.alike.mu.Lock()
	defer m.alike.mu.Unlock()
	m.alike.young, m.alike.aged, m.alike.bytes = nil, nil, 0
	m.met.mu.Lock()
	defer m.met.mu.Unlock()
	m.met.young, m.met.aged, m.met.bytes = nil, nil, 0
}

// Known returns the number of cached field sets.
func (m *Manager) Known() int {
	m.alike.mu.RLock()
	defer m.alike.mu.RUnlock()
	return len(m.alike.young) + len(m.alike.aged)
}

// Knows reports whether an apply needs no field sets.
func (m *Manager) Knows(d *resource.Descriptor, version string, live resource.Object, c Configuration) bool {
	_, convert, err := m.of(d, version, "")
	if err != nil {
		return false
	}
	a, err := m.knownApply(convert, "", live, c)
	return err == nil && a.apply() != nil
}
