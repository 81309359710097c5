// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podcount

// Places is for how many domains there is memory.
func (t *Tally) Places() int { return len(t.sums) }
