// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"weak"

	"github.com/mortise-dev/mortise/store"
)

// viewEntry remembers that a record has forms, without keeping the record alive.
type viewEntry struct {
	record weak.Pointer[store.Record]
	size   int64
}

func newEntry(r *store.Record, size int64) viewEntry {
	return viewEntry{record: weak.Make(r), size: size}
}
