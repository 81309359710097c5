// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package encryption

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2"
	kmstypes "k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2/v2"
	kmsservice "k8s.io/kms/pkg/service"
	"k8s.io/kms/pkg/util"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/reload"
)

// Upstream's times. The time for which a key may be used for writes after the plug-in's last good status is a promise:
// that long after a change of the key, all writes use the new key or fail.
const (
	statusEvery     = time.Minute      // between status calls to a healthy plug-in
	statusEveryIll  = 10 * time.Second // to an unhealthy one
	writeFor        = 3 * time.Minute
	healthKept      = 20 * time.Second // how long health checks reuse a status
	illnessKept     = 3 * time.Second
	providerHealthy = "ok"
)

// plugin is a KMS v2 plug-in: its client, its latest status, and the seed for new writes.
type plugin struct {
	name, socket string
	timeout      time.Duration
	service      kmsservice.Service
	log          *slog.Logger
	state        atomic.Pointer[kmsv2.State]
	met          chan struct{} // closed when the plug-in was healthy for the first time
	seen         os.FileInfo   // the socket's: before the first call, then updated by follow

	mu      sync.Mutex // serializes checks
	version string
	last    error
	asked   time.Time
}

func (t *Transformers) newPlugin(ctx context.Context, k *apiserver.KMSConfiguration) (*plugin, error) {
	socket, err := util.ParseEndpoint(k.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("use KMS provider %s: %w", k.Name, err)
	}
	service, err := t.opts.Dial(ctx, socket)
	if err != nil {
		return nil, fmt.Errorf("use KMS provider %s: %w", k.Name, err)
	}
	p := &plugin{name: k.Name, socket: socket, timeout: k.Timeout.Duration, log: t.opts.Log, met: make(chan struct{})}
	p.seen, _ = os.Stat(socket)
	p.service = &booked{Service: service, ledger: t.opts.Ledger, ref: extension.Ref{Point: extension.KMS, Name: k.Name}, timeout: p.timeout}
	p.state.Store(&kmsv2.State{KMSProviderName: k.Name})
	return p, nil
}

// now returns the state for reads and writes. Reads may use it without a time limit; writes must check its expiration.
func (p *plugin) now() (kmsv2.State, error) {
	s := *p.state.Load()
	if s.Transformer == nil {
		return kmsv2.State{}, fmt.Errorf("got unexpected nil transformer") // upstream's words
	}
	return s, nil
}

// checkCached returns the result of check, or a recent one.
func (p *plugin) checkCached(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := healthKept
	if p.last != nil {
		kept = illnessKept
	}
	if time.Since(p.asked) < kept {
		return p.last
	}
	return p.ask(ctx)
}

// check requests the status, and generates a new seed if the plug-in's key has changed.
func (p *plugin) check(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ask(ctx)
}

func (p *plugin) ask(ctx context.Context) error {
	s, err := p.service.Status(ctx)
	if err != nil {
		err = fmt.Errorf("failed to perform status section of the healthz check for KMS Provider %s, error: %w", p.name, err) // upstream's words
	} else if err = p.take(ctx, s); err != nil {
		err = fmt.Errorf("kmsv2 Provider %s is not healthy, error: %w", p.name, err) // upstream's words
	}
	switch {
	case ctx.Err() != nil, (p.last != nil) == (err != nil) && !p.asked.IsZero():
	case err != nil:
		p.log.ErrorContext(ctx, "Could not get the status of a KMS plug-in", "plugin", p.name, "error", err)
	case p.last != nil:
		p.log.WarnContext(ctx, "KMS plug-in is healthy again", "plugin", p.name) // the same level as the error before it
	}
	p.last, p.asked = err, time.Now()
	if err == nil && !p.isMet() {
		close(p.met)
	}
	return err
}

// isMet reports whether the plug-in has ever been well.
func (p *plugin) isMet() bool {
	select {
	case <-p.met:
		return true
	default:
		return false
	}
}

// take validates a status, and rotates the seed if necessary.
func (p *plugin) take(ctx context.Context, s *kmsservice.StatusResponse) error {
	var errs []error
	if s.Healthz != providerHealthy {
		errs = append(errs, fmt.Errorf("got unexpected healthz status: %s", s.Healthz)) // upstream's words
	}
	if s.Version != kmsv2.KMSAPIVersionv2 && s.Version != kmsv2.KMSAPIVersionv2beta1 {
		errs = append(errs, fmt.Errorf("expected KMSv2 API version %s, got %s", kmsv2.KMSAPIVersionv2, s.Version)) // upstream's words
	} else {
		if p.version == "" {
			p.version = s.Version
		}
		if p.version != s.Version {
			// upstream's words
			errs = append(errs, fmt.Errorf("KMSv2 API version should not change after the initial status response version %s, got %s", p.version,
				s.Version))
		}
	}
	if _, err := kmsv2.ValidateKeyID(s.KeyID); err != nil {
		errs = append(errs, fmt.Errorf("got invalid KMSv2 KeyID hash %q: %w", kmsv2.GetHashIfNotEmpty(s.KeyID), err)) // upstream's words
	} else if err := p.rotate(ctx, s.KeyID); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// rotate generates a new seed if the plug-in's key is no longer the one that wrapped the current seed; otherwise it
// extends the time in which writes may use the seed. If the plug-in wraps the new seed with another key than its status
// names, rotate keeps the old seed.
func (p *plugin) rotate(ctx context.Context, keyID string) error {
	old, none := p.now()
	until := time.Now().Add(writeFor) // counted from before the call
	if none == nil && old.EncryptedObjectKeyID == keyID {
		old.ExpirationTimestamp = until
		p.state.Store(&old)
		return nil
	}
	uid := string(uuid.NewUUID())
	seed, wrapped, cacheKey, err := kmsv2.GenerateTransformer(ctx, uid, p.service, true)
	if err != nil {
		return fmt.Errorf("draw a new seed, uid %s: %w", uid, err)
	}
	if wrapped.KeyID != keyID {
		return fmt.Errorf("draw a new seed, uid %s: the plug-in's status names key %s, its encryption used %s", uid,
			kmsv2.GetHashIfNotEmpty(keyID), kmsv2.GetHashIfNotEmpty(wrapped.KeyID))
	}
	p.state.Store(&kmsv2.State{
		Transformer: seed, CacheKey: cacheKey, UID: uid, ExpirationTimestamp: until, KMSProviderName: p.name,
		EncryptedObjectKeyID: wrapped.KeyID, EncryptedObjectEncryptedDEKSource: wrapped.EncryptedDEKSource,
		EncryptedObjectAnnotations:            wrapped.Annotations,
		EncryptedObjectEncryptedDEKSourceType: kmstypes.EncryptedDEKSourceType_HKDF_SHA256_XNONCE_AES_GCM_SEED,
	})
	return nil
}

// follow requests the status at upstream's intervals, and immediately when the socket appears, until ctx ends.
func (p *plugin) follow(ctx context.Context) {
	reload.Watch(ctx, statusEveryIll, p.log, func() {
		p.mu.Lock()
		ill, since := p.last != nil, time.Since(p.asked)
		p.mu.Unlock()
		now, _ := os.Stat(p.socket)
		came := now != nil && !os.SameFile(now, p.seen)
		p.seen = now
		if !came && since < statusEvery && (!ill || since < statusEveryIll) {
			return
		}
		_ = p.check(ctx) // it logs the result, and caches it for health checks
	}, p.socket)
}

// booked calls a plug-in through the ledger. It returns the plug-in's own errors, because their texts reach clients.
type booked struct {
	kmsservice.Service
	ledger  *extension.Ledger
	ref     extension.Ref
	timeout time.Duration
}

func (b *booked) call(ctx context.Context, f func(ctx context.Context) error) error {
	if b.ledger == nil {
		ctx, cancel := context.WithTimeout(ctx, b.timeout)
		defer cancel()
		return f(ctx)
	}
	var own error
	err := b.ledger.Call(ctx, b.ref, extension.Policy{Timeout: b.timeout}, func(ctx context.Context) error {
		own = f(ctx)
		return own
	})
	return cmp.Or(own, err)
}

// Status implements [kmsservice.Service].
func (b *booked) Status(ctx context.Context) (s *kmsservice.StatusResponse, err error) {
	err = b.call(ctx, func(ctx context.Context) (err error) { s, err = b.Service.Status(ctx); return err })
	return s, err
}

// Encrypt implements [kmsservice.Service].
func (b *booked) Encrypt(ctx context.Context, uid string, data []byte) (r *kmsservice.EncryptResponse, err error) {
	err = b.call(ctx, func(ctx context.Context) (err error) { r, err = b.Service.Encrypt(ctx, uid, data); return err })
	return r, err
}

// Decrypt implements [kmsservice.Service].
func (b *booked) Decrypt(ctx context.Context, uid string, q *kmsservice.DecryptRequest) (plain []byte, err error) {
	err = b.call(ctx, func(ctx context.Context) (err error) { plain, err = b.Service.Decrypt(ctx, uid, q); return err })
	return plain, err
}
