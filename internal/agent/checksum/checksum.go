// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package checksum computes the checksums of kubelet's checkpoint files: the 32-bit FNV-1a hash of a dump of the value, whose text depends
// on the names of its types. A value whose types have kubelet's names, packages included, has kubelet's checksum.
package checksum

import (
	"hash/fnv"
	"io"
	"strings"

	"k8s.io/utils/dump"
)

// Checksum is a checksum in a file.
type Checksum uint64

// Of returns the checksum of a value. The type's name in the dump is replaced by another, if one is given: newer formats of a file
// contain the checksum that an older kubelet, whose type had another name, computes.
func Of(value any, renames ...string) Checksum {
	text := dump.ForHash(value)
	for i := 0; i+1 < len(renames); i += 2 {
		text = strings.Replace(text, renames[i], renames[i+1], 1)
	}
	hash := fnv.New32a()
	_, _ = io.WriteString(hash, text)
	return Checksum(hash.Sum32())
}
