// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"runtime"
	"testing"
)

// TestHostileCBOR: CBOR that nests too deep, or says that more follows than does, is refused without room being made for it.
func TestHostileCBOR(t *testing.T) {
	nested := func(levels int) []byte {
		return append(append([]byte{0xa1, 0x61, 'a'}, bytes.Repeat([]byte{0x81}, levels)...), 0xf6)
	}
	for name, c := range map[string]struct {
		body []byte
		bad  bool
	}{
		"deep arrays":           {nested(20_000), true},
		"arrays":                {nested(5_000), false},
		"a long array":          {[]byte{0xa1, 0x61, 'a', 0x9a, 0x7f, 0xff, 0xff, 0xff, 0x01}, true},
		"a large map":           {[]byte{0xba, 0x00, 0x1f, 0xff, 0xff, 0x61, 'a', 0x01}, true},
		"a long text":           {[]byte{0xa1, 0x61, 'a', 0x7a, 0x7f, 0xff, 0xff, 0xff, 'x'}, true},
		"an array without end":  {append([]byte{0xa1, 0x61, 'a', 0x9f}, bytes.Repeat([]byte{1}, 1000)...), true},
		"a long number":         {append([]byte{0xa1, 0x61, 'a', 0xc2, 0x5a, 0x00, 0x0f, 0x42, 0x40}, make([]byte, 1_000_000)...), true},
		"a key that is no text": {[]byte{0xa1, 0x81, 0x01, 0x01}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := cborToJSON(c.body)
			runtime.ReadMemStats(&after)
			if (err != nil) != c.bad {
				t.Errorf("%v", err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
				t.Errorf("%d MB were allocated for %d bytes", n>>20, len(c.body))
			}
		})
	}
}
