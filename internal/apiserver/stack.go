// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

// stackOfWrite is the stack that a write uses, in bytes: through the stages, admission, validation and the merge of managed fields, with a
// policy or two. A deeper write grows the stack again.
const stackOfWrite = 20 << 10

// deepen grows the goroutine's stack for a write while it is nearly empty. The HTTP/2 server starts each request on a new goroutine with
// a stack of 2 KB; the runtime doubles it whenever it is full, and copies and adjusts it frame by frame, which cost a tenth of a
// create. The result is one of the zeros, so that the compiler keeps the array.
//
//go:noinline
func deepen(n int) byte {
	var deep [stackOfWrite]byte
	return deep[n]
}
