// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

// stackOfWrite is the stack depth of a write in bytes: through the stages, admission, validation and the merge of
// managed fields, with a policy or two. Deeper writes grow the stack once more.
const stackOfWrite = 20 << 10

// deepen grows the goroutine's stack at the start of a write, when it is almost empty. The HTTP/2 server gives each
// request a goroutine of its own with a stack of 2 KB. The runtime doubles a full stack, and copies it frame by frame.
// In the middle of a write that took a tenth of the time of a create. deepen returns one of the zeros, so that the
// compiler keeps them.
//
//go:noinline
func deepen(n int) byte {
	var deep [stackOfWrite]byte
	return deep[n]
}
