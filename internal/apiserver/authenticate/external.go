// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/externaljwt/apis/v1"

	"github.com/mortise-dev/mortise/extension"
)

// External signs and verifies tokens through an external process on a socket, with externaljwt v1. It fetches the keys
// as often as the signer demands, and when a token names an unknown key.
type External struct {
	path   string
	ledger *extension.Ledger
	conn   *grpc.ClientConn
	client v1.ExternalJWTSignerClient
	now    func() time.Time
	most   time.Duration

	held    atomic.Pointer[heldKeys]
	fetches singleflight.Group
	mu      sync.Mutex // serializes fetches
	metrics atomic.Pointer[Metrics]
}

type heldKeys struct {
	keys       []Key
	generation uint64
	stamp      time.Time
	fetched    time.Time
	refresh    time.Time
}

// Times of the external signer's calls.
const (
	externalWait    = 10 * time.Second // for fetching the keys
	externalRetry   = 10 * time.Second // after a failed fetch
	externalSigning = 30 * time.Second
	minExpiration   = 600 // seconds of token lifetime that every signer must support
)

// DialExternal connects to the signer on a socket and fetches its keys and metadata. It returns an error if the signer
// does not respond, because no service account could log in without it. The caller closes it.
func DialExternal(ctx context.Context, path string, ledger *extension.Ledger, now func() time.Time) (*External, error) {
	x := &External{path: path, ledger: ledger, now: now}
	conn, err := grpc.NewClient("passthrough:///"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)), grpc.WithUnaryInterceptor(x.timed),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		return nil, fmt.Errorf("dial external signer %s: %w", path, err)
	}
	x.conn, x.client = conn, v1.NewExternalJWTSignerClient(conn)
	x.held.Store(&heldKeys{})
	if err := x.start(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return x, nil
}

func (x *External) start(ctx context.Context) error {
	if err := x.fetch(ctx); err != nil {
		return fmt.Errorf("fetch keys of external signer %s: %w", x.path, err)
	}
	var said *v1.MetadataResponse
	err := x.call(ctx, externalWait, func(ctx context.Context) (err error) {
		said, err = x.client.Metadata(ctx, &v1.MetadataRequest{})
		return err
	})
	if err != nil {
		return fmt.Errorf("ask external signer %s for its metadata: %w", x.path, err)
	}
	if said.MaxTokenExpirationSeconds < minExpiration {
		// upstream's words
		return fmt.Errorf("max token life supported by external-jwt-signer (%ds) is less than acceptable (min %ds)",
			said.MaxTokenExpirationSeconds, minExpiration)
	}
	x.most = time.Duration(said.MaxTokenExpirationSeconds) * time.Second
	return nil
}

// measure counts the signer's calls from now on, including the first fetch of the keys.
func (x *External) measure(m *Metrics) {
	m.fetched.WithLabelValues(code(nil)).Inc()
	m.holds(x.held.Load())
	x.metrics.Store(m)
}

// holds records the current keys.
func (m *Metrics) holds(h *heldKeys) {
	m.fetchedAt.WithLabelValues().Set(float64(h.fetched.UnixNano()) / 1e9)
	m.keysOf.WithLabelValues().Set(float64(h.stamp.UnixNano()) / 1e9)
}

// timed observes the duration of a call.
func (x *External) timed(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	began := x.now()
	err := invoke(ctx, method, req, reply, conn, opts...)
	if m := x.metrics.Load(); m != nil {
		m.signerTook.WithLabelValues(method, code(err)).Observe(x.now().Sub(began).Seconds())
	}
	return err
}

// code returns the gRPC code of an error, or marks it as another error.
func code(err error) string {
	if err == nil {
		return codes.OK.String()
	}
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus().Code().String()
	}
	return "unknown-non-grpc"
}

// MaxExpiration is the maximum lifetime of a token that the signer signs.
func (x *External) MaxExpiration() time.Duration { return x.most }

// Close closes the connection of a signer whose Run is not called.
func (x *External) Close() error { return x.conn.Close() }

func (x *External) call(ctx context.Context, timeout time.Duration, f func(ctx context.Context) error) error {
	return x.ledger.Call(ctx, extension.Ref{Point: extension.TokenSigner, Name: x.path}, extension.Policy{Timeout: timeout}, f)
}

// Run fetches the keys as often as the signer demands, until ctx ends; then it closes the connection. If a fetch fails,
// the previous keys stay valid.
func (x *External) Run(ctx context.Context, log *slog.Logger) {
	defer x.conn.Close()
	t := time.NewTimer(x.held.Load().refresh.Sub(x.now()))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if err := x.fetch(ctx); err != nil {
			log.ErrorContext(ctx, "Could not fetch the keys of the external signer, keeping the previous ones", "socket", x.path, "error", err)
			t.Reset(externalRetry)
			continue
		}
		t.Reset(x.held.Load().refresh.Sub(x.now()))
	}
}

// fetch fetches the keys, once for all concurrent callers.
func (x *External) fetch(ctx context.Context) error {
	_, err, _ := x.fetches.Do("", func() (any, error) {
		var said *v1.FetchKeysResponse
		err := x.call(ctx, externalWait, func(ctx context.Context) (err error) {
			said, err = x.client.FetchKeys(ctx, &v1.FetchKeysRequest{})
			return err
		})
		var h *heldKeys
		if err == nil {
			h, err = x.read(said)
		}
		m := x.metrics.Load()
		if m != nil {
			m.fetched.WithLabelValues(code(err)).Inc()
		}
		if err != nil {
			return nil, err
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		h.generation = x.held.Load().generation + 1
		x.held.Store(h)
		if m != nil {
			m.holds(h)
		}
		return nil, nil
	})
	return err
}

func (x *External) read(said *v1.FetchKeysResponse) (*heldKeys, error) {
	if said.RefreshHintSeconds <= 0 {
		return nil, fmt.Errorf("found invalid refresh hint (%ds)", said.RefreshHintSeconds) // upstream's words
	}
	if len(said.Keys) == 0 {
		return nil, errors.New("found no keys") // upstream's words
	}
	if err := said.DataTimestamp.CheckValid(); err != nil {
		return nil, fmt.Errorf("invalid data timestamp: %w", err)
	}
	h := &heldKeys{stamp: said.DataTimestamp.AsTime(), fetched: x.now(),
		refresh: x.now().Add(time.Duration(said.RefreshHintSeconds) * time.Second)}
	for _, k := range said.Keys {
		if k == nil {
			return nil, errors.New("found nil public key") // upstream's words
		}
		if k.KeyId == "" || len(k.KeyId) > maxKeyID {
			return nil, fmt.Errorf("found invalid public key id %q", k.KeyId) // upstream's words
		}
		public, err := x509.ParsePKIXPublicKey(k.Key)
		if err != nil {
			return nil, fmt.Errorf("parse public key %q: %w", k.KeyId, err)
		}
		h.keys = append(h.keys, Key{ID: k.KeyId, Public: public, Unpublished: k.ExcludeFromOidcDiscovery})
	}
	return h, nil
}

const maxKeyID = 1024

// Find implements [Keys]. It fetches the keys if the ID is unknown.
func (x *External) Find(ctx context.Context, id string) []Key {
	found := x.held.Load().find(id)
	if len(found) == 0 && x.fetch(ctx) == nil {
		found = x.held.Load().find(id)
	}
	return found
}

func (h *heldKeys) find(id string) []Key {
	if id == "" {
		return h.keys
	}
	var out []Key
	for _, k := range h.keys {
		if k.ID == id {
			out = append(out, k)
		}
	}
	return out
}

// Generation implements [Keys].
func (x *External) Generation() uint64 { return x.held.Load().generation }

// MaxAge implements [Keys].
func (x *External) MaxAge() int { return max(0, int(x.held.Load().refresh.Sub(x.now()).Seconds())) }

// Sign implements [Signer].
func (x *External) Sign(ctx context.Context, claims []byte) (token string, err error) {
	defer func() {
		if m := x.metrics.Load(); m != nil {
			m.signed.WithLabelValues(code(err)).Inc()
		}
	}()
	payload := base64.RawURLEncoding.EncodeToString(claims)
	var said *v1.SignJWTResponse
	err = x.call(ctx, externalSigning, func(ctx context.Context) (err error) {
		said, err = x.client.Sign(ctx, &v1.SignJWTRequest{Claims: payload})
		return err
	})
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	if err := x.check(ctx, said.Header); err != nil {
		return "", fmt.Errorf("sign token: check the external signer's header: %w", err)
	}
	if said.Signature == "" {
		return "", errors.New("empty signature returned") // upstream's words
	}
	return said.Header + "." + payload + "." + said.Signature, nil
}

// check rejects a token header that has fields other than type, key ID and algorithm, or invalid values.
func (x *External) check(ctx context.Context, encoded string) error {
	b, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return err
	}
	var h struct {
		Algorithm string `json:"alg"`
		KeyID     string `json:"kid"`
		Type      string `json:"typ"`
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&h); err != nil {
		return err
	}
	switch {
	case h.Type != "JWT":
		return errors.New("bad type") // upstream's words
	case h.KeyID == "":
		return errors.New("key id missing") // upstream's words
	case len(h.KeyID) > maxKeyID:
		return errors.New("key id longer than 1 kb") // upstream's words
	}
	switch h.Algorithm {
	case "RS256", "ES256", "ES384", "ES512":
	default:
		return fmt.Errorf("bad signing algorithm %q", h.Algorithm) // upstream's words
	}
	for _, k := range x.Find(ctx, h.KeyID) {
		if k.Unpublished {
			return fmt.Errorf("key used for signing JWT (kid: %s) is excluded from OIDC discovery docs", h.KeyID) // upstream's words
		}
	}
	return nil
}
