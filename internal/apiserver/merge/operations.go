// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package merge

import "fmt"

// The limits of the work of a JSON patch. The library decodes an object again for each level of a path, and copies an
// array for each operation on it: a patch of a few hundred kilobytes would take minutes.
const (
	maxNested = 64 << 20 // of the object and the patch: each byte counts once for each level above it
	maxShifts = 64 << 20 // number of operations times the elements of the longest array
	maxFree   = 8 << 10  // bytes of input too small to be expensive, which is not checked
)

// CheckOperations rejects a JSON patch whose operations are too much work for an object. Both must be valid JSON.
func CheckOperations(doc, patch []byte, operations int) error {
	if len(doc) <= maxFree && len(patch) <= maxFree {
		return nil
	}
	nested, longest := measure(doc, 0)
	more, longer := measure(patch, 1)
	if nested+more > maxNested {
		return fmt.Errorf("The JSON patch and the object nest too deep for their size: their bytes are on %d levels, more than %d",
			nested+more, maxNested)
	}
	if shifts := operations * max(longest, longer); shifts > maxShifts {
		return fmt.Errorf("The JSON patch is too large for its arrays: %d operations times the longest array are more than %d",
			operations, maxShifts)
	}
	return nil
}

// measure returns the sum of the levels of all bytes, and the length of the longest array below a level.
func measure(text []byte, below int) (nested, longest int) {
	lengths := []int{0} // of the open objects and arrays, in commas
	for i := 0; i < len(text); i++ {
		nested += len(lengths)
		top := len(lengths) - 1
		switch text[i] {
		case '"':
			begin := i
			for i++; text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			nested += len(lengths) * (i - begin)
		case '{', '[':
			lengths = append(lengths, 0)
		case '}', ']':
			if text[i] == ']' && top > below {
				longest = max(longest, lengths[top]+1)
			}
			lengths = lengths[:top]
		case ',':
			lengths[top]++
		}
	}
	return nested, longest
}
