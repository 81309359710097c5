// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cache

// Renew begins a new epoch with the next snapshot: something that is not part of any node, but that cached results depend on, has changed.
func (c *Cache) Renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.imagesMoved = true // as for a changed image count, which also concerns all nodes
}
