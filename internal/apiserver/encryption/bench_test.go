// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package encryption_test

import (
	"bytes"
	"testing"

	"github.com/mortise-dev/mortise/internal/apiserver/encryption"
	"github.com/mortise-dev/mortise/internal/apiserver/encryption/kmstest"
	"github.com/mortise-dev/mortise/internal/kinds"
)

// BenchmarkSeal measures what a provider adds to a write of 1 KB, including the look-up of the provider.
func BenchmarkSeal(b *testing.B) {
	plain := bytes.Repeat([]byte("x"), 1024)
	for name, providers := range map[string]string{
		"aesgcm": keyed("aesgcm", "k", "a"), "aescbc": keyed("aescbc", "k", "a"), "secretbox": keyed("secretbox", "k", "a"), "kms": kms("vault"),
	} {
		b.Run(name, func(b *testing.B) {
			d := &dialer{Plugin: kmstest.New(b, "")}
			c, err := encryption.Parse("c.yaml", document("secrets => "+providers), false)
			if err != nil {
				b.Fatal(err)
			}
			tr, err := encryption.Start(b.Context(), c, encryption.Options{Dial: d.dial})
			if err != nil {
				b.Fatal(err)
			}
			defer tr.Close()
			tr.Know(kinds.All(kinds.Options{}))
			for b.Loop() {
				if _, err := tr.Cipher("/registry/secrets/ns/x").Seal(b.Context(), "/registry/secrets/ns/x", plain); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
