// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/externaljwt/apis/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/resource"
)

// signingProcess is an external signer on a socket.
type signingProcess struct {
	v1.UnimplementedExternalJWTSignerServer
	mu      sync.Mutex
	keys    map[string]*ecdsa.PrivateKey
	sign    string // the signing key
	hidden  string // an unpublished key
	most    int64
	header  map[string]string // replaces the token's header
	fetched int
}

func (p *signingProcess) Metadata(context.Context, *v1.MetadataRequest) (*v1.MetadataResponse, error) {
	return &v1.MetadataResponse{MaxTokenExpirationSeconds: p.most}, nil
}

func (p *signingProcess) FetchKeys(context.Context, *v1.FetchKeysRequest) (*v1.FetchKeysResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fetched++
	out := &v1.FetchKeysResponse{DataTimestamp: timestamppb.Now(), RefreshHintSeconds: 3600}
	for id, k := range p.keys {
		der, err := x509.MarshalPKIXPublicKey(&k.PublicKey)
		if err != nil {
			return nil, err
		}
		out.Keys = append(out.Keys, &v1.Key{KeyId: id, Key: der, ExcludeFromOidcDiscovery: id == p.hidden})
	}
	return out, nil
}

func (p *signingProcess) Sign(_ context.Context, r *v1.SignJWTRequest) (*v1.SignJWTResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	claims, err := base64.RawURLEncoding.DecodeString(r.Claims)
	if err != nil {
		return nil, err
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: p.keys[p.sign]},
		(&jose.SignerOptions{}).WithHeader("kid", p.sign).WithType("JWT"))
	if err != nil {
		return nil, err
	}
	signed, err := s.Sign(claims)
	if err != nil {
		return nil, err
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		return nil, err
	}
	parts := strings.Split(token, ".")
	if p.header != nil {
		b, err := json.Marshal(p.header)
		if err != nil {
			return nil, err
		}
		parts[0] = base64.RawURLEncoding.EncodeToString(b)
	}
	return &v1.SignJWTResponse{Header: parts[0], Signature: parts[2]}, nil
}

// listen serves on a new socket.
func (p *signingProcess) listen(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	v1.RegisterExternalJWTSignerServer(s, p)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-ended })
	return path
}

func TestExternalSigner(t *testing.T) {
	p := &signingProcess{keys: map[string]*ecdsa.PrivateKey{"a": ecdsaKey(t), "old": ecdsaKey(t)}, sign: "a", hidden: "old", most: 7200}
	ledger := extension.NewLedger(clock.RealClock{})
	x, err := DialExternal(t.Context(), p.listen(t), ledger, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if x.MaxExpiration() != 2*time.Hour {
		t.Errorf("longest life: %v", x.MaxExpiration())
	}
	w := newWorld(t, Settings{Accounts: AccountSettings{Signer: x, Keys: x, MaxExpiration: x.MaxExpiration(), MaxExtended: x.MaxExpiration()}},
		nil)
	token := w.issue(t, resource.TokenClaims{})
	if _, err := w.with(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	_, keys, age, ok, err := w.Accounts().Discovery("x")
	if err != nil || !ok || strings.Count(string(keys), `"kid"`) != 1 || age < 3500 || age > 3600 {
		t.Errorf("discovery: %s for %d s, %v", keys, age, err)
	}
	// an unknown key makes the server fetch the keys
	p.mu.Lock()
	p.keys["b"], p.sign = ecdsaKey(t), "b"
	before := p.fetched
	p.mu.Unlock()
	if _, err := w.with(t.Context(), w.issue(t, resource.TokenClaims{})); err != nil {
		t.Errorf("a new key: %v", err)
	}
	if p.fetched != before+1 {
		t.Errorf("keys were fetched %d times", p.fetched-before)
	}
	// tokens end with their key, including cached ones
	p.mu.Lock()
	delete(p.keys, "a")
	p.mu.Unlock()
	if err := x.fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.with(t.Context(), token); err == nil {
		t.Error("a token of a key that is gone was taken")
	}
	for name, c := range map[string]struct {
		header map[string]string
		error  string
	}{
		"another type":    {map[string]string{"alg": "ES256", "kid": "b", "typ": "JOSE"}, "bad type"},
		"no key":          {map[string]string{"alg": "ES256", "typ": "JWT"}, "key id missing"},
		"long key":        {map[string]string{"alg": "ES256", "kid": strings.Repeat("x", 1025), "typ": "JWT"}, "key id longer than 1 kb"},
		"algorithm":       {map[string]string{"alg": "none", "kid": "b", "typ": "JWT"}, `bad signing algorithm "none"`},
		"something else":  {map[string]string{"alg": "ES256", "kid": "b", "typ": "JWT", "jku": "x"}, "unknown field"},
		"unpublished key": {map[string]string{"alg": "ES256", "kid": "old", "typ": "JWT"}, "is excluded from OIDC discovery docs"},
	} {
		p.header = c.header
		_, err := w.Accounts().Issue(t.Context(), resource.TokenClaims{Namespace: "ns", ServiceAccount: "sa", Seconds: 600})
		if err == nil || !strings.Contains(err.Error(), c.error) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if e := ledger.Snapshot(); len(e) != 1 || e[0].Point != extension.TokenSigner || e[0].Calls < 10 {
		t.Errorf("ledger: %+v", e)
	}
}

// TestExternalSignerIsChecked covers signers with which a server does not start.
func TestExternalSignerIsChecked(t *testing.T) {
	ledger := extension.NewLedger(clock.RealClock{})
	short := &signingProcess{keys: map[string]*ecdsa.PrivateKey{"a": ecdsaKey(t)}, most: 60}
	if _, err := DialExternal(t.Context(), short.listen(t), ledger, time.Now); err == nil ||
		!strings.Contains(err.Error(), "is less than acceptable (min 600s)") {
		t.Errorf("short lives: %v", err)
	}
	if _, err := DialExternal(t.Context(), (&signingProcess{most: 3600}).listen(t), ledger, time.Now); err == nil ||
		!strings.Contains(err.Error(), "found no keys") {
		t.Errorf("no keys: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := DialExternal(ctx, filepath.Join(t.TempDir(), "none"), ledger, time.Now); err == nil {
		t.Error("no signer")
	}
}
