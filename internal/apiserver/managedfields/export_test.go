// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

// Forget drops what is known of objects that were created.
func (m *Manager) Forget() {
	m.alike.mu.Lock()
	defer m.alike.mu.Unlock()
	m.alike.young, m.alike.aged, m.alike.bytes = nil, nil, 0
}

// Known is of how many sorts of new objects the fields are known.
func (m *Manager) Known() int {
	m.alike.mu.RLock()
	defer m.alike.mu.RUnlock()
	return len(m.alike.young) + len(m.alike.aged)
}
