// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/encryption"
	"github.com/mortise-dev/mortise/internal/apiserver/health"
	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/sealed"
)

// encrypting is encryption at rest; without a configuration all of it is nil.
type encrypting struct {
	config       *encryption.Config
	reload       bool
	transformers *encryption.Transformers
}

func checkEncryption(_ context.Context, p *parts, o *settled) (err error) {
	e := &o.apiserver.Encryption
	switch {
	case e.ConfigFile != "":
		p.encryption.reload = e.Reload
		p.encryption.config, err = encryption.Load(e.ConfigFile, e.Reload)
	case e.Reload:
		err = errors.New("--encryption-provider-config-automatic-reload must be set with --encryption-provider-config") // upstream's words
	}
	return err
}

// seal puts encryption between the store and its engine.
func (e *encrypting) seal(ctx context.Context, engine store.Engine, p *parts, o *settled) (store.Engine, error) {
	if e.config == nil {
		return engine, nil
	}
	t, err := encryption.Start(ctx, e.config, encryption.Options{
		Reload: o.apiserver.Encryption.Reload, Ledger: p.ledger, Log: o.log.With("part", "encryption"), ServerID: p.url,
	})
	if err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	e.transformers = t
	return sealed.New(engine, t), nil
}

// awaitEncryption waits for plug-ins that seal what the server reads and writes while it comes up. Secrets and config maps it
// can do without for a while; what extensions define is none of its own.
func awaitEncryption(ctx context.Context, p *parts, o *settled) error {
	t := p.encryption.transformers
	if t == nil {
		return nil
	}
	own := map[string]bool{}
	for _, d := range builtin.Kinds(o.serviceCIDRs, false, o.runtimeConfig, builtin.Access{}) {
		own[d.Group] = true
	}
	return t.Await(ctx, func(r schema.GroupResource) bool {
		switch r {
		case schema.GroupResource{Resource: "secrets"}, configMaps:
			return true
		}
		return r.Group != "*" && !own[r.Group]
	})
}

// know tells whose keys are whose, before any is used.
func (e *encrypting) know(ds []*resource.Descriptor) []*resource.Descriptor {
	if e.transformers != nil {
		e.transformers.Know(ds)
	}
	return ds
}

// ill says whether a plug-in is not well.
func (e *encrypting) ill(ctx context.Context) bool {
	return e.transformers != nil && e.transformers.Check(ctx) != nil
}

// checks are the health checks, under upstream's names; as there, a plug-in that is down is no reason to end the process.
func (e *encrypting) checks() []health.Check {
	if e.config == nil || !e.transformers.Checks() {
		return nil
	}
	cs := []health.Check{{Name: encryption.CheckName, Run: e.transformers.Check, Only: []health.Root{health.Healthz, health.Readyz}}}
	if e.reload {
		cs = append(cs, health.Check{Name: "poststarthook/start-encryption-provider-config-automatic-reload", Run: func(context.Context) error { return nil }})
	}
	return cs
}

// collectors are the metrics.
func (e *encrypting) collectors() []prometheus.Collector {
	if e.transformers == nil {
		return nil
	}
	return []prometheus.Collector{e.transformers.Metrics()}
}

func followEncryption(_ context.Context, p *parts, _ *settled) error {
	if t := p.encryption.transformers; t != nil {
		p.server.Go(func() { p.watch(p.server.context, "encryption", t.Run) })
	}
	return nil
}

func (e *encrypting) end() {
	if e.transformers != nil {
		e.transformers.Close()
	}
}
