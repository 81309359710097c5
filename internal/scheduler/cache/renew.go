// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cache

// Renew begins a new epoch with the next snapshot: something has changed that is no part of any node, and that what was kept of nodes
// rests on.
func (c *Cache) Renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.imagesMoved = true // as if all nodes had another image, which too is counted over all nodes
}
