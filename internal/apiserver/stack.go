// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

// stackOfWrite is how deep a write goes, in bytes: through the stages, admission, validation and the merge of managed fields,
// with a policy or two. What goes deeper grows it once more.
const stackOfWrite = 20 << 10

// deepen grows the goroutine's stack for a write while there is next to nothing on it. The HTTP/2 server gives each request a
// goroutine of its own, on 2 KB; the runtime doubles that whenever it is used up, and copies and mends what is on it, frame by
// frame. In the depths of a write that was a tenth of what a create cost. It answers one of the zeros, so that they are made.
//
//go:noinline
func deepen(n int) byte {
	var deep [stackOfWrite]byte
	return deep[n]
}
