// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package store

// Content is everything in a store at one revision, without history. Copies from one engine to another pass it on.
type Content struct {
	Revision int64     // the newest; not less than that of any record
	Records  []*Record // in key order
}
