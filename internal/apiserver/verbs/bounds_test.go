// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"errors"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
)

func TestCheckDepth(t *testing.T) {
	nested := func(levels int, before ...byte) []byte {
		var reversed []byte
		for range levels {
			head := append(slices.Clone(before), protowire.AppendVarint([]byte{0xe2, 0x01}, uint64(len(reversed)))...)
			slices.Reverse(head)
			reversed = append(reversed, head...)
		}
		slices.Reverse(reversed)
		return reversed
	}
	many := make([]byte, 0, 3<<20)
	for range 500_000 {
		many = append(many, 0x0a, 1, 'a')
	}
	big, err := (&corev1.ConfigMap{BinaryData: map[string][]byte{"a": nested(5_000), "b": make([]byte, 1<<20)}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data []byte
		deep bool
	}{
		"deep":               {nested(maxDepth + 1), true},
		"as deep as may be":  {nested(maxDepth), false},
		"deep after a group": {nested(maxDepth+1, 0xa3, 0x06, 0xa4, 0x06), true},
		"deep after numbers": {nested(maxDepth+1, 0x08, 0x01, 0x0d, 1, 2, 3, 4), true},
		"wide":               {many, false},
		"bytes":              {big, false},
		"nothing":            {nil, false},
	} {
		if err := checkDepth(c.data); errors.Is(err, errDepth) != c.deep {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzCheckDepth(f *testing.F) {
	f.Add([]byte("\x0a\x03abc\x12\x00\x18\x05"), uint16(9))
	f.Fuzz(func(t *testing.T, data []byte, times uint16) {
		long := slices.Repeat(data, min(int(times), 1+100_000/(1+len(data))))
		if err := checkDepth(long); err != nil && len(long) < 2*maxDepth {
			t.Errorf("%d bytes: %v", len(long), err)
		}
	})
}
