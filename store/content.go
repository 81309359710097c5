// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package store

import "iter"

// Content is everything in a store at one revision, without history. Copies from one engine to another pass it on.
type Content struct {
	Revision int64     // the newest; not less than that of any record
	Records  []*Record // in key order
}

// All returns the records, without an error.
func (c Content) All() iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		for _, r := range c.Records {
			if !yield(r, nil) {
				return
			}
		}
	}
}
