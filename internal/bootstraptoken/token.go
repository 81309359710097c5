// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package bootstraptoken is tokens with which nodes join, seen from outside the API server: made, listed and deleted as
// secrets of kube-system, and checked against what the cluster publishes of itself.
//
// A [Token] is ID.SECRET. The ID is public, and names the secret; a client that knows the SECRET may request a node's
// certificate, and can verify by a signature ([Token.Verify]) that the ConfigMap kube-public/cluster-info was written by a
// cluster that knows it too. [Prepare] creates the roles and that ConfigMap in a cluster. The package keeps no state
// between calls.
package bootstraptoken

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Token is a bootstrap token.
type Token struct{ ID, Secret string }

var (
	wellFormed = regexp.MustCompile(`^([a-z0-9]{6})\.([a-z0-9]{16})$`)
	idFormed   = regexp.MustCompile(`^[a-z0-9]{6}$`)
)

// Parse reads ID.SECRET. Errors do not repeat the text, which is a secret.
func Parse(text string) (Token, error) {
	m := wellFormed.FindStringSubmatch(text)
	if m == nil {
		return Token{}, errors.New("a token is 6 and 16 of a-z and 0-9 with a dot between them")
	}
	return Token{m[1], m[2]}, nil
}

// IDOf reads the ID of a token, or of what is an ID alone.
func IDOf(text string) (string, error) {
	if idFormed.MatchString(text) {
		return text, nil
	}
	t, err := Parse(text)
	return t.ID, err
}

// Generate makes a random token.
func Generate() (Token, error) {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	out := make([]byte, 0, 22)
	one := make([]byte, 1)
	for len(out) < cap(out) {
		if _, err := rand.Read(one); err != nil {
			return Token{}, fmt.Errorf("make token: %w", err)
		}
		if n := int(one[0]); n < 256/len(letters)*len(letters) { // all letters as likely
			out = append(out, letters[n%len(letters)])
		}
	}
	return Token{string(out[:6]), string(out[6:])}, nil
}

// String is ID.SECRET.
func (t Token) String() string { return t.ID + "." + t.Secret }

// Verify reports whether a signature is by the token for that content: a detached JSON web signature by HS256.
func (t Token) Verify(content, signature string) error {
	wrong := errors.New("the signature is not by this token: its secret differs")
	head, rest, _ := strings.Cut(signature, ".")
	payload, mac, ok := strings.Cut(rest, ".")
	if !ok || payload != "" {
		return errors.New("the signature is no JSON web signature without content")
	}
	raw, err := base64.RawURLEncoding.DecodeString(head)
	if err != nil {
		return fmt.Errorf("read signature: %w", err)
	}
	var header struct {
		Algorithm string `json:"alg"`
		Key       string `json:"kid"`
	}
	if err := json.Unmarshal(raw, &header); err != nil {
		return fmt.Errorf("read signature: %w", err)
	}
	if header.Algorithm != "HS256" || header.Key != t.ID {
		return wrong
	}
	got, err := base64.RawURLEncoding.DecodeString(mac)
	if err != nil {
		return fmt.Errorf("read signature: %w", err)
	}
	want := hmac.New(sha256.New, []byte(t.Secret))
	want.Write([]byte(head + "." + base64.RawURLEncoding.EncodeToString([]byte(content))))
	if !hmac.Equal(got, want.Sum(nil)) {
		return wrong
	}
	return nil
}

// Hash is the pin of a CA: sha256: and the hash of its public key, as kubeadm writes it.
func Hash(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return hashPrefix + hex.EncodeToString(sum[:])
}

const hashPrefix = "sha256:"

// CheckHash refuses what is no hash of an authority.
func CheckHash(text string) error {
	digits, ok := strings.CutPrefix(strings.ToLower(text), hashPrefix)
	if b, err := hex.DecodeString(digits); !ok || err != nil || len(b) != sha256.Size {
		return fmt.Errorf("%q: want sha256: and 64 hexadecimal digits", text)
	}
	return nil
}
