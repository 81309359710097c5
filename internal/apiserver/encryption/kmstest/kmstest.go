// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package kmstest is a KMS v2 plug-in for tests. It encrypts with AES-GCM under keys that survive its restarts. Tests
// can stop it, start it and rotate its key at any time.
package kmstest

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"k8s.io/kms/pkg/service"
)

// Plugin is a fake plug-in. It implements [service.Service], for tests without a socket.
type Plugin struct {
	// Socket is the path of the socket once the plug-in is started.
	Socket string

	mu                             sync.Mutex
	keys                           map[string]cipher.AEAD
	current, wraps                 string
	ill                            string
	statuses, encryptions, decoded int
	server                         *service.GRPCService
	ended                          chan error
	version                        string
}

var _ service.Service = (*Plugin)(nil)

// New makes a plug-in with a first key, "key-1". It stops when the test ends.
func New(t testing.TB, socket string) *Plugin {
	p := &Plugin{Socket: socket, keys: map[string]cipher.AEAD{}, version: "v2"}
	p.Rotate("key-1")
	t.Cleanup(p.Stop)
	return p
}

// Rotate makes the plug-in use another key.
func (p *Plugin) Rotate(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keys[id] == nil {
		raw := make([]byte, 32)
		_, _ = rand.Read(raw) // never fails
		block, err := aes.NewCipher(raw)
		if err != nil {
			panic(err) // 32 bytes are a valid key
		}
		if p.keys[id], err = cipher.NewGCM(block); err != nil {
			panic(err)
		}
	}
	p.current, p.wraps = id, id
}

// Disagree makes the status name another key than the one that wraps seeds.
func (p *Plugin) Disagree(status string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current = status
}

// Say sets the health and version of the status; empty: healthy, and v2.
func (p *Plugin) Say(health, version string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ill, p.version = health, version
	if version == "" {
		p.version = "v2"
	}
}

// Calls returns the number of calls of each method.
func (p *Plugin) Calls() (statuses, encryptions, decryptions int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.statuses, p.encryptions, p.decoded
}

// Start listens on the socket.
func (p *Plugin) Start() error {
	p.Stop()
	_ = os.Remove(p.Socket) // a plug-in that was killed leaves it
	p.server, p.ended = service.NewGRPCService(p.Socket, 5*time.Second, p), make(chan error, 1)
	go func(s *service.GRPCService, ended chan<- error) { ended <- s.ListenAndServe() }(p.server, p.ended)
	return nil
}

// Stop ends listening; callers then get a connection error.
func (p *Plugin) Stop() {
	if p.server != nil {
		p.server.Close()
		<-p.ended
		p.server = nil
	}
}

// Status implements [service.Service].
func (p *Plugin) Status(context.Context) (*service.StatusResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.statuses++
	health := "ok"
	if p.ill != "" {
		health = p.ill
	}
	return &service.StatusResponse{Version: p.version, Healthz: health, KeyID: p.current}, nil
}

// Encrypt implements [service.Service].
func (p *Plugin) Encrypt(_ context.Context, _ string, data []byte) (*service.EncryptResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.encryptions++
	nonce := make([]byte, 12)
	_, _ = rand.Read(nonce) // never fails
	return &service.EncryptResponse{
		Ciphertext: p.keys[p.wraps].Seal(nonce, nonce, data, nil), KeyID: p.wraps,
		Annotations: map[string][]byte{"kmstest.mortise.dev": []byte("1")},
	}, nil
}

// Decrypt implements [service.Service].
func (p *Plugin) Decrypt(_ context.Context, _ string, q *service.DecryptRequest) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decoded++
	key := p.keys[q.KeyID]
	switch {
	case key == nil:
		return nil, fmt.Errorf("no key %q", q.KeyID)
	case len(q.Ciphertext) < 12 || string(q.Annotations["kmstest.mortise.dev"]) != "1":
		return nil, errors.New("not of this plug-in")
	}
	return key.Open(nil, q.Ciphertext[:12], q.Ciphertext[12:], nil)
}
