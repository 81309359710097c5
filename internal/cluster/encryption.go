// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/apiserver/encryption"
	"github.com/mortise-dev/mortise/internal/apiserver/health"
	"github.com/mortise-dev/mortise/internal/lifecycle"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/sealed"
)

// readEncryption reads the configuration of encryption at rest. It returns nil without one.
func readEncryption(o *options.Encryption) (*encryption.Config, error) {
	switch {
	case o.ConfigFile != "":
		return encryption.Load(o.ConfigFile, o.Reload)
	case o.Reload:
		return nil, errors.New("--encryption-provider-config-automatic-reload must be set with --encryption-provider-config") // upstream's words
	}
	return nil, nil
}

// encrypting is encryption at rest. The zero value encrypts nothing.
type encrypting struct {
	transformers *encryption.Transformers
	reload       bool
}

// startEncryption creates the encryption, and calls its plug-ins.
func startEncryption(ctx context.Context, config *encryption.Config, o encryption.Options) (e encrypting, err error) {
	if config == nil {
		return e, nil
	}
	e.reload = o.Reload
	if e.transformers, err = encryption.Start(ctx, config, o); err != nil {
		return encrypting{}, fmt.Errorf("encrypt store: %w", err)
	}
	return e, nil
}

// seal returns an engine that encrypts what it stores in another engine.
func (e encrypting) seal(engine store.Engine) store.Engine {
	if e.transformers == nil {
		return engine
	}
	return sealed.NewLenient(engine, e.transformers)
}

// await waits for the plug-ins that encrypt what the server reads and writes during its start. It does not wait for those of secrets and
// config maps, which the server can do without for a while, nor for those of custom resources.
func (e encrypting) await(ctx context.Context, builtIn func() []*resource.Descriptor) error {
	if e.transformers == nil {
		return nil
	}
	own := map[string]bool{}
	for _, d := range builtIn() {
		own[d.Group] = true
	}
	return e.transformers.Await(ctx, func(r schema.GroupResource) bool {
		switch r {
		case schema.GroupResource{Resource: "secrets"}, configMaps:
			return true
		}
		return r.Group != "*" && !own[r.Group]
	})
}

// know registers which resources are encrypted, before any is used.
func (e encrypting) know(ds []*resource.Descriptor) []*resource.Descriptor {
	if e.transformers != nil {
		e.transformers.Know(ds)
	}
	return ds
}

// ill reports whether a plug-in is unhealthy.
func (e encrypting) ill(ctx context.Context) bool {
	return e.transformers != nil && e.transformers.Check(ctx) != nil
}

// checks returns the health checks, under upstream's names; as upstream, the process goes on without a plug-in.
func (e encrypting) checks() []health.Check {
	if e.transformers == nil || !e.transformers.Checks() {
		return nil
	}
	cs := []health.Check{{Name: encryption.CheckName, Run: e.transformers.Check, Only: []health.Root{health.Healthz, health.Readyz}}}
	if e.reload {
		cs = append(cs, health.Check{
			Name: "poststarthook/start-encryption-provider-config-automatic-reload", Run: func(context.Context) error { return nil },
		})
	}
	return cs
}

// collectors returns the metrics.
func (e encrypting) collectors() []prometheus.Collector {
	if e.transformers == nil {
		return nil
	}
	return []prometheus.Collector{e.transformers.Metrics()}
}

// follow watches the configuration's file and the plug-ins.
func (e encrypting) follow(ctx context.Context, group *lifecycle.Group) {
	if e.transformers != nil {
		group.Run(ctx, "encryption", e.transformers.Run)
	}
}

func (e encrypting) close() {
	if e.transformers != nil {
		e.transformers.Close()
	}
}
