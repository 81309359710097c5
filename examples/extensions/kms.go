// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"time"

	"k8s.io/kms/pkg/service"
)

// keys is a key management plug-in with one key in a file. A real one asks a vault or a hardware module.
type keys struct {
	aead cipher.AEAD
	id   string
}

// serveKMS serves KMS v2 on a socket in the background. The key is in a file beside the socket.
func serveKMS(path string) error {
	key, err := os.ReadFile(path + ".key")
	if errors.Is(err, os.ErrNotExist) {
		key = make([]byte, 32)
		_, _ = rand.Read(key) // never fails
		err = os.WriteFile(path+".key", key, 0o600)
	}
	if err != nil {
		return err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(key)
	k := &keys{id: hex.EncodeToString(sum[:8])}
	if k.aead, err = cipher.NewGCM(block); err != nil {
		return err
	}
	s := service.NewGRPCService(path, 3*time.Second, k)
	go func() { fail(s.ListenAndServe()) }()
	return nil
}

// Status implements [service.Service]. Another KeyID makes the API server wrap a new seed.
func (k *keys) Status(context.Context) (*service.StatusResponse, error) {
	return &service.StatusResponse{Version: "v2", Healthz: "ok", KeyID: k.id}, nil
}

// Encrypt implements [service.Service]: it wraps a seed, from which the API server derives the keys of objects.
func (k *keys) Encrypt(_ context.Context, _ string, plain []byte) (*service.EncryptResponse, error) {
	nonce := make([]byte, k.aead.NonceSize())
	_, _ = rand.Read(nonce)
	return &service.EncryptResponse{KeyID: k.id, Ciphertext: k.aead.Seal(nonce, nonce, plain, nil)}, nil
}

// Decrypt implements [service.Service].
func (k *keys) Decrypt(_ context.Context, _ string, r *service.DecryptRequest) ([]byte, error) {
	n := k.aead.NonceSize()
	if r.KeyID != k.id || len(r.Ciphertext) < n {
		return nil, errors.New("the key " + r.KeyID + " is unknown")
	}
	return k.aead.Open(nil, r.Ciphertext[:n], r.Ciphertext[n:], nil)
}
