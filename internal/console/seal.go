// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/mortise-dev/mortise/internal/durable"
)

// Key seals the sessions of a console. A process with the key can make a session of any user.
type Key [32]byte

// LoadKey reads the key in a file, or makes one and writes it there. Without a path it makes one for this process.
func LoadKey(path string) (k Key, err error) {
	if path != "" {
		b, err := os.ReadFile(path)
		switch {
		case err == nil && len(b) != len(k):
			return k, fmt.Errorf("read key of the console %s: it has %d bytes, want %d", path, len(b), len(k))
		case err == nil:
			return Key(b), nil
		case !errors.Is(err, fs.ErrNotExist):
			return k, fmt.Errorf("read key of the console: %w", err)
		}
	}
	_, _ = rand.Read(k[:]) // never fails
	if path != "" {
		if err := durable.Write(path, 0o600, k[:]); err != nil {
			return k, fmt.Errorf("write key of the console: %w", err)
		}
	}
	return k, nil
}

// name is a short name of the key, which does not tell it.
func (k Key) name() string {
	sum := sha256.Sum256(append([]byte("mortise console, name of the key\n"), k[:]...))
	return hex.EncodeToString(sum[:4])
}

// sealer encrypts and authenticates what the browser keeps for the server.
type sealer struct {
	aead cipher.AEAD
	name string // of the key
}

func newSealer(k Key) (*sealer, error) {
	if k == (Key{}) {
		return nil, errors.New("no key")
	}
	block, err := aes.NewCipher(k[:])
	if err != nil {
		return nil, fmt.Errorf("make cipher: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("make cipher: %w", err)
	}
	return &sealer{aead: aead, name: k.name()}, nil
}

// seal returns text that open returns the content of, for the same purpose alone.
func (s *sealer) seal(purpose string, content []byte) string {
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, content, []byte(purpose)))
}

// open returns the content of sealed text; false: this key did not seal it for the purpose.
func (s *sealer) open(purpose, text string) ([]byte, bool) {
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, false
	}
	content, err := s.aead.Open(nil, nil, sealed, []byte(purpose))
	return content, err == nil
}
