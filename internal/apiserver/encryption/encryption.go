// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package encryption implements encryption at rest by an EncryptionConfiguration file, which selects the resources that
// are encrypted before they reach the store, and their providers and keys.
//
// [Parse] reads and validates a file, without side effects. [Start] returns [Transformers], the [sealed.Ciphers] of a
// store. The first provider of a resource encrypts; all of them decrypt. So keys are rotated by adding the new one in
// front and writing all objects once. The stored bytes equal kube-apiserver's. The object's key in the store is the
// authenticated data for aesgcm and kms. secretbox has no such data, so its values can be decrypted under another key
// of the store as well; aescbc detects changes by its padding only.
//
// A KMS v2 plug-in ([plugin]) wraps a seed that the server generates; each object's key is derived from the seed and a
// nonce. Reads call the plug-in once for each seed, writes never: while it is down, writes continue for three minutes
// after its last good status. If a plug-in is down at the start, the server waits for it only if it encrypts resources
// that the start needs ([Transformers.Await]). Otherwise the resources that it encrypts cannot be read or written until
// it responds, and the health check kms-providers fails.
//
// # Concurrency
//
// Transformers are safe for concurrent use, without locks. [Transformers.Run] owns the goroutines that follow the plug-ins
// and the file.
package encryption

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	kmsservice "k8s.io/kms/pkg/service"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store/sealed"
)

// CheckName is the name of the health check.
const CheckName = "kms-providers"

// Options of [Start].
type Options struct {
	// Reload enables reloads of the file.
	Reload bool
	Ledger *extension.Ledger
	Log    *slog.Logger
	// ServerID is the server's identity, whose hash appears in metrics.
	ServerID string
	// Dial makes the client of a KMS plug-in, which is closed when ctx ends; nil: gRPC over its socket.
	Dial func(ctx context.Context, endpoint string) (kmsservice.Service, error)
}

// Transformers encrypt and decrypt values by their keys. [Start] makes them.
type Transformers struct {
	opts      Options
	file      string
	current   atomic.Pointer[setup]
	resources atomic.Pointer[map[string]schema.GroupResource]
	metrics   *Metrics
	context   context.Context // for all background work; Close ends it
	end       context.CancelFunc
	group     sync.WaitGroup
}

var (
	_ sealed.Ciphers = (*Transformers)(nil)
	_ sealed.Whole   = (*Transformers)(nil)
)

// setup is one configuration in use.
type setup struct {
	hash    string
	ciphers map[schema.GroupResource]*cipher
	plugins []*plugin
	needs   map[schema.GroupResource][]*plugin // resources as the file names them
	end     context.CancelFunc
}

// Start puts a configuration into force. It requests the status of each plug-in once, and ignores failures. Close ends
// all background work.
func Start(ctx context.Context, c *Config, o Options) (*Transformers, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Dial == nil {
		o.Dial = dial
	}
	t := &Transformers{opts: o, file: c.File, metrics: newMetrics(o.ServerID)}
	t.context, t.end = context.WithCancel(context.WithoutCancel(ctx))
	t.resources.Store(&map[string]schema.GroupResource{})
	s, live, err := t.setUp(c)
	if err != nil {
		t.Close()
		return nil, err
	}
	for _, p := range s.plugins {
		_ = p.check(ctx) // it logs the error
	}
	t.register(s)
	t.follow(live, s)
	t.current.Store(s)
	t.metrics.inForce(s.hash)
	return t, nil
}

// Await returns when every plug-in that encrypts resources other than the dispensable ones was healthy once; a wildcard
// is such a resource. It logs the plug-ins that it waits for.
func (t *Transformers) Await(ctx context.Context, dispensable func(schema.GroupResource) bool) error {
	for gr, plugins := range t.current.Load().needs {
		if dispensable(gr) {
			continue
		}
		for _, p := range plugins {
			if p.isMet() {
				continue
			}
			t.opts.Log.WarnContext(ctx, "Waiting for a KMS plug-in", "plugin", p.name, "resource", written(gr))
			select {
			case <-p.met:
			case <-ctx.Done():
				return fmt.Errorf("wait for KMS plug-in %s: %w", p.name, context.Cause(ctx))
			}
		}
	}
	return nil
}

// Close ends the background work and closes the connections to plug-ins.
func (t *Transformers) Close() {
	t.end()
	t.group.Wait()
}

// Know sets the key prefixes of the built-in resources.
func (t *Transformers) Know(ds []*resource.Descriptor) {
	known := map[string]schema.GroupResource{
		"ranges/serviceips":       {Resource: "serviceipallocations"},
		"ranges/servicenodeports": {Resource: "servicenodeportallocations"},
	}
	for _, d := range ds {
		if _, twice := known[d.Prefix]; d.Prefix != "" && (!twice || d.Group == "") { // events belong to the core group
			known[d.Prefix] = d.GroupResource()
		}
	}
	t.resources.Store(&known)
}

const root = "/registry/"

// resource returns the resource of a key. whole is true if the key contains its whole prefix: then all longer keys
// belong to the same resource.
func (t *Transformers) resource(key string) (gr schema.GroupResource, whole bool) {
	rest, ok := strings.CutPrefix(key, root)
	if !ok {
		return schema.GroupResource{}, false
	}
	known := *t.resources.Load()
	first, after, more := strings.Cut(rest, "/")
	second := strings.IndexByte(after, '/')
	complete := second >= 0
	if !complete {
		second = len(after)
	}
	if more {
		if gr, ok := known[rest[:len(first)+1+second]]; ok {
			return gr, complete
		}
	}
	if gr, ok := known[first]; ok {
		return gr, more
	}
	if strings.Contains(first, ".") { // a custom resource
		return schema.GroupResource{Group: first, Resource: after[:second]}, complete
	}
	return schema.GroupResource{Resource: first}, false
}

// Cipher implements [sealed.Ciphers].
func (t *Transformers) Cipher(key string) sealed.Cipher {
	gr, _ := t.resource(key)
	if c := t.current.Load().of(gr); c != nil {
		return c
	}
	return nil
}

// Whole implements [sealed.Whole].
func (t *Transformers) Whole(prefix string) bool {
	_, whole := t.resource(prefix)
	return whole
}

// of returns the cipher of a resource: by its name, its group, or the wildcard, in this order.
func (s *setup) of(gr schema.GroupResource) *cipher {
	if c := s.ciphers[gr]; c != nil {
		return c
	}
	if c := s.ciphers[schema.GroupResource{Group: gr.Group, Resource: "*"}]; c != nil {
		return c
	}
	return s.ciphers[everything]
}

var everything = schema.GroupResource{Group: "*", Resource: "*"}

// cipher adapts the providers of a resource to [sealed.Cipher].
type cipher struct{ value.Transformer }

// Seal implements [sealed.Cipher].
func (c *cipher) Seal(ctx context.Context, key string, plain []byte) ([]byte, error) {
	return c.TransformToStorage(ctx, plain, value.DefaultContext(key))
}

// Open implements [sealed.Cipher].
func (c *cipher) Open(ctx context.Context, key string, stored []byte) ([]byte, bool, error) {
	return c.TransformFromStorage(ctx, stored, value.DefaultContext(key))
}

// Checks reports whether there is a health check: a plug-in is configured, or a reload could add one.
func (t *Transformers) Checks() bool { return t.opts.Reload || len(t.current.Load().plugins) > 0 }

// Check is the health check of all plug-ins.
func (t *Transformers) Check(ctx context.Context) error { return t.current.Load().check(ctx) }

func (s *setup) check(ctx context.Context) error {
	var errs []error
	for i, p := range s.plugins {
		if err := p.checkCached(ctx); err != nil {
			errs = append(errs, fmt.Errorf("kms-provider-%d: %w", i, err)) // upstream's words
		}
	}
	return errors.Join(errs...)
}

// register lists the plug-ins in the ledger.
func (t *Transformers) register(s *setup) {
	if t.opts.Ledger == nil {
		return
	}
	where := map[string]string{}
	for _, p := range s.plugins {
		where[p.name] = t.file
	}
	t.opts.Ledger.RegisterAll(extension.KMS, maps.Clone(where))
}

// follow keeps the status of the plug-ins of a setup up to date until ctx, the setup's context, ends.
func (t *Transformers) follow(ctx context.Context, s *setup) {
	for _, p := range s.plugins {
		t.group.Go(func() { p.follow(ctx) })
	}
}

// grace is how long requests may continue to use a replaced configuration.
func (s *setup) grace() time.Duration {
	var sum time.Duration
	for _, p := range s.plugins {
		sum += p.timeout
	}
	return 2 * sum
}
