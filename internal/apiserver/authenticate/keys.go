// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/go-jose/go-jose/v4"
	"k8s.io/client-go/util/keyutil"
)

// Key verifies tokens.
type Key struct {
	ID     string
	Public crypto.PublicKey
	// Unpublished keys are not part of the discovery document.
	Unpublished bool
}

// Keys are the keys that verify tokens.
type Keys interface {
	// Find returns the keys with an ID; all keys for an empty ID.
	Find(ctx context.Context, id string) []Key
	// Generation changes when the keys change.
	Generation() uint64
	// MaxAge is the time in seconds for which clients may cache the published keys.
	MaxAge() int
}

// KeyID returns the ID of a public key in a token's header.
func KeyID(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("encode public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// fixed is a set of keys that does not change.
type fixed []Key

// NewKeys returns keys that do not change, each with its [KeyID].
func NewKeys(public ...crypto.PublicKey) (Keys, error) {
	var out fixed
	for _, p := range public {
		id, err := KeyID(p)
		if err != nil {
			return nil, err
		}
		out = append(out, Key{ID: id, Public: p})
	}
	return out, nil
}

func (f fixed) Find(_ context.Context, id string) []Key {
	if id == "" {
		return f
	}
	for i := range f {
		if f[i].ID == id {
			return f[i : i+1]
		}
	}
	return nil
}

func (fixed) Generation() uint64 { return 0 }
func (fixed) MaxAge() int        { return 3600 }

// LoadKeys reads public keys from PEM files. Of a private key it returns the public half.
func LoadKeys(files ...string) ([]crypto.PublicKey, error) {
	var out []crypto.PublicKey
	for _, f := range files {
		found, err := keyutil.PublicKeysFromFile(f)
		if err != nil {
			return nil, fmt.Errorf("read service-account keys: %w", err)
		}
		for _, k := range found {
			out = append(out, k)
		}
	}
	return out, nil
}

// LoadSigner reads a PEM private key, and returns its signer and its public half.
func LoadSigner(file string) (Signer, crypto.PublicKey, error) {
	k, err := keyutil.PrivateKeyFromFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("read service-account signing key: %w", err)
	}
	s, err := NewSigner(k)
	if err != nil {
		return nil, nil, fmt.Errorf("read service-account signing key %s: %w", file, err)
	}
	return s, k.(crypto.Signer).Public(), nil
}

// signer signs with a local key.
type signer struct {
	jose.Signer
	fixed
}

// NewSigner returns a signer for an RSA or ECDSA key. It also implements [Keys] with the public half.
func NewSigner(private any) (Signer, error) {
	var public crypto.PublicKey
	switch k := private.(type) {
	case *ecdsa.PrivateKey:
		public = &k.PublicKey
	case *rsa.PrivateKey:
		public = &k.PublicKey
	default:
		// upstream's words
		return nil, fmt.Errorf("unknown private key type %T, must be *rsa.PrivateKey, *ecdsa.PrivateKey, or jose.OpaqueSigner", private)
	}
	alg, err := algorithm(public)
	if err != nil {
		return nil, err
	}
	id, err := KeyID(public)
	if err != nil {
		return nil, err
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: private}, (&jose.SignerOptions{}).WithHeader("kid", id))
	if err != nil {
		return nil, fmt.Errorf("make token signer: %w", err)
	}
	return &signer{Signer: s, fixed: fixed{{ID: id, Public: public}}}, nil
}

// Sign implements [Signer].
func (s *signer) Sign(_ context.Context, claims []byte) (string, error) {
	signed, err := s.Signer.Sign(claims)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	return signed.CompactSerialize()
}

// algorithm returns the signature algorithm of a key.
func algorithm(public crypto.PublicKey) (jose.SignatureAlgorithm, error) {
	switch k := public.(type) {
	case *rsa.PublicKey:
		return jose.RS256, nil
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return jose.ES256, nil
		case elliptic.P384():
			return jose.ES384, nil
		case elliptic.P521():
			return jose.ES512, nil
		}
	}
	return "", errors.New("unknown public key type, must be *rsa.PublicKey, *ecdsa.PublicKey, or jose.OpaqueSigner") // upstream's words
}
