// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package encryption_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/mortise-dev/mortise/internal/apiserver/encryption"
	"github.com/mortise-dev/mortise/internal/apiserver/encryption/kmstest"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
	"github.com/mortise-dev/mortise/store/sealed"
)

// TestTampering changes stored values, as a user can who writes to the disk or to etcd. Every provider returns an error
// that names the key or, if its format is not authenticated (aescbc), another value than the original.
func TestTampering(t *testing.T) {
	const key, other, hello = "/registry/secrets/ns/x", "/registry/secrets/ns/y", "hello, this is longer than a block of a cipher"
	for _, c := range []struct {
		name, provider string
		// authentic formats detect each change; bound ones decrypt a value under no other key. Both are the formats of
		// kube-apiserver, byte for byte.
		authentic, bound bool
	}{
		{"aescbc", keyed("aescbc", "k1", "a"), false, false},
		{"aesgcm", keyed("aesgcm", "k1", "a"), true, true},
		{"secretbox", keyed("secretbox", "k1", "a"), true, false},
		{"kms", kms("vault"), true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := t.Context()
			d := &dialer{Plugin: kmstest.New(t, "")}
			under := memory.Open(memory.Options{})
			s := store.New(sealed.New(under, start(t, document("secrets => "+c.provider), encryption.Options{Dial: d.dial})))
			defer s.Close()
			for k, v := range map[string]string{key: hello, other: "another"} {
				if _, err := s.Create(ctx, k, []byte(v), 0); err != nil {
					t.Fatal(err)
				}
			}
			stored := func(key string) []byte {
				r, _, err := under.Get(ctx, key)
				if err != nil {
					t.Fatal(err)
				}
				return bytes.Clone(r.Value)
			}
			// read writes the value to the store without encryption, and reads it as the server does.
			read := func(value []byte) (string, error) {
				t.Helper()
				if _, _, err := under.Commit(ctx, store.Op{Key: key, Value: value, Expect: store.Any}); err != nil {
					t.Fatal(err)
				}
				r, _, err := s.Get(ctx, key)
				if _, listed := s.List(ctx, "/registry/secrets/"); (err == nil) != (listed == nil) {
					t.Errorf("get answers %v, list %v", err, listed)
				}
				if err != nil {
					if want := `unable to transform key "` + key + `"`; !strings.Contains(err.Error(), want) {
						t.Errorf("%v: it does not say %s", err, want)
					}
					return "", err
				}
				return string(r.Value), nil
			}
			refused := func(what string, value []byte) {
				t.Helper()
				if got, err := read(value); err == nil {
					t.Errorf("%s opens as %.80q", what, got)
				}
			}
			own, others := stored(key), stored(other)
			prefix := bytes.LastIndexByte(own[:min(len(own), len("k8s:enc:secretbox:v1:k1:"))], ':') + 1
			for i := range own {
				flipped := bytes.Clone(own)
				flipped[i] ^= 1 << (i % 8)
				got, err := read(flipped)
				if err == nil && (c.authentic || i < prefix || got == hello) {
					t.Errorf("with a bit of byte %d changed it opens as %.80q", i, got)
				}
			}
			for n := range own {
				got, err := read(own[:n:n])
				if err == nil && (c.authentic || n <= prefix || got == hello) {
					t.Errorf("its first %d bytes open as %.80q", n, got)
				}
			}
			refused("an initialization vector and nothing more", own[:prefix+16])
			refused("a plain value", []byte(`{"kind":"Secret"}`))
			refused("a plain protobuf value", []byte("k8s\x00\x0a\x0c"))
			for _, p := range []string{"aescbc:v1:k1:", "aesgcm:v1:k1:", "secretbox:v1:k1:", "kms:v2:vault:", "kms:v1:vault:", "aesgcm:v1:k2:",
				"none:"} {
				if claimed := append([]byte(sealed.Prefix+p), own[prefix:]...); !bytes.Equal(claimed, own) {
					refused("with the prefix "+p, claimed)
				}
			}
			if got, err := read(others); c.bound && err == nil {
				t.Errorf("another key's value opens as %q", got)
			}
			if got, err := read(own); err != nil || got != hello {
				t.Errorf("what was sealed, put back, reads %q, %v", got, err)
			}
			if r, _, err := s.Get(ctx, other); err != nil || string(r.Value) != "another" {
				t.Errorf("a value beside it: %v", err)
			}
		})
	}
}
