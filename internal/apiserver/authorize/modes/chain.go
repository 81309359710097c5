// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/node"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/rbac"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/review"
	"github.com/mortise-dev/mortise/internal/apiserver/reload"
)

// Options of [Settings.Build]: the dependencies of authorizers. Log, Roles, Node and Ledger are required.
type Options struct {
	Roles    *rbac.Index
	Node     *node.Authorizer
	Ledger   *extension.Ledger
	Egress   *egress.Selector // the proxies for webhooks
	Log      *slog.Logger
	ServerID string // of this server
	// Reread is the interval at which the file is read without a file event; 0: a minute.
	Reread time.Duration
}

// Chain calls the configured authorizers in order.
type Chain struct {
	settings *Settings
	options  Options
	metrics  *Metrics
	required []string // types that a reload must not remove

	current atomic.Pointer[members]

	mu   sync.Mutex // guards the last read contents
	read []byte
	last *apiserver.AuthorizationConfiguration
}

// members are the authorizers of one configuration.
type members struct {
	all     authorize.Chain
	reviews []reviewer
}

// reviewer is an authorizer that can list what it allows a user.
type reviewer interface {
	Review(ctx context.Context, u user.Info, namespace string) ([]authorizationv1.ResourceRule, []authorizationv1.NonResourceRule, bool, error)
}

// Build makes the chain.
func (s *Settings) Build(o Options) (*Chain, error) {
	if o.Reread == 0 {
		o.Reread = time.Minute
	}
	c := &Chain{settings: s, options: o, metrics: newMetrics(o.ServerID), read: s.data, last: s.config}
	for _, m := range Modes() {
		if m != Webhook && s.Has(m) {
			c.required = append(c.required, m)
		}
	}
	if s.oldLines > 0 {
		o.Log.Warn("Policy file has rules without apiVersion and kind", "file", s.policy, "rules", s.oldLines)
	}
	if err := c.use(s.config); err != nil {
		return nil, fmt.Errorf("make authorizers: %w", err)
	}
	if s.file != "" {
		c.metrics.applied(s.data)
	}
	return c, nil
}

// use puts a configuration into force.
func (c *Chain) use(config *apiserver.AuthorizationConfiguration) error {
	m := &members{}
	where := map[string]string{}
	for i := range config.Authorizers {
		a := &config.Authorizers[i]
		z, err := c.authorizer(a)
		if err != nil {
			return err
		}
		if a.Type == Webhook {
			where[a.Name] = c.settings.file
			if where[a.Name] == "" {
				where[a.Name] = "--authorization-webhook-config-file"
			}
		}
		m.all = append(m.all, c.metrics.count(string(a.Type), a.Name, z))
		m.reviews = append(m.reviews, z.(reviewer))
	}
	c.options.Ledger.RegisterAll(extension.AuthorizationWebhook, where)
	c.current.Store(m)
	return nil
}

func (c *Chain) authorizer(a *apiserver.AuthorizerConfiguration) (authorize.Authorizer, error) {
	switch a.Type {
	case Webhook:
		return review.New(a.Name, a.Webhook, review.Options{Ledger: c.options.Ledger, Compiler: c.settings.compiler(), Metrics: c.metrics,
			Dial: c.options.Egress.ControlPlane()})
	case AlwaysAllow:
		return always{authorize.Allow}, nil
	case AlwaysDeny:
		return always{authorize.NoOpinion}, nil
	}
	if !c.settings.Has(string(a.Type)) {
		return nil, fmt.Errorf("authorizer type %s is not allowed if it was not enabled at initial server startup", a.Type) // upstream's words
	}
	switch a.Type {
	case Node:
		return c.options.Node, nil
	case RBAC:
		return c.options.Roles, nil
	case ABAC:
		return c.settings.policies, nil
	}
	return nil, fmt.Errorf("unknown authorization mode %s specified", a.Type) // upstream's words
}

// Authorize calls the authorizers in order.
func (c *Chain) Authorize(ctx context.Context, a *authorize.Attributes) (authorize.Decision, string, error) {
	return c.current.Load().all.Authorize(ctx, a)
}

// Review lists what all authorizers together allow a user in a namespace; incomplete when one cannot list it.
func (c *Chain) Review(ctx context.Context, u user.Info, namespace string) (rs []authorizationv1.ResourceRule,
	paths []authorizationv1.NonResourceRule, incomplete bool, err error) {
	var errs []error
	for _, z := range c.current.Load().reviews {
		r, p, part, err := z.Review(ctx, u, namespace)
		rs, paths, incomplete = append(rs, r...), append(paths, p...), incomplete || part
		if err != nil {
			errs = append(errs, err)
		}
	}
	return rs, paths, incomplete, utilerrors.NewAggregate(errs)
}

// Metrics returns the chain's metrics.
func (c *Chain) Metrics() *Metrics { return c.metrics }

// Run follows the file until ctx ends.
func (c *Chain) Run(ctx context.Context) error {
	if c.settings.file == "" {
		<-ctx.Done()
		return nil
	}
	reload.Watch(ctx, c.options.Reread, c.options.Log, func() { c.reload(ctx) }, c.settings.file)
	return nil
}

// reload reads the file, and puts its contents into force if they have changed and are valid.
func (c *Chain) reload(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	data, err := os.ReadFile(c.settings.file)
	if err == nil && bytes.Equal(data, c.read) {
		return
	}
	var config *apiserver.AuthorizationConfiguration
	if err == nil {
		c.read = data
		config, err = c.settings.parse(data, c.required)
	}
	if err == nil && reflect.DeepEqual(config, c.last) {
		return
	}
	if err == nil {
		c.last = config
		err = c.use(config)
	}
	if err != nil {
		c.metrics.reloaded(false)
		c.options.Log.ErrorContext(ctx, "Could not reload the authorization configuration, keeping the previous one", "file", c.settings.file,
			"error", err)
		return
	}
	c.metrics.reloaded(true)
	c.metrics.applied(data)
	c.options.Log.InfoContext(ctx, "Reloaded the authorization configuration", "file", c.settings.file, "authorizers", len(config.Authorizers))
}

// always is an authorizer with a constant decision.
type always struct{ d authorize.Decision }

// Name is the type in an AuthorizationConfiguration.
func (z always) Name() string {
	if z.d == authorize.Allow {
		return "alwaysallow"
	}
	return "alwaysdeny"
}

// Authorize returns the constant decision.
func (z always) Authorize(context.Context, *authorize.Attributes) (authorize.Decision, string, error) {
	if z.d == authorize.Allow {
		return z.d, "", nil
	}
	return z.d, "Everything is forbidden.", nil // upstream's words
}

// Review lists everything, or nothing.
func (z always) Review(context.Context, user.Info, string) ([]authorizationv1.ResourceRule, []authorizationv1.NonResourceRule, bool,
	error) {
	if z.d != authorize.Allow {
		return nil, nil, false, nil
	}
	all := []string{"*"}
	return []authorizationv1.ResourceRule{{Verbs: all, APIGroups: all, Resources: all}},
		[]authorizationv1.NonResourceRule{{Verbs: all, NonResourceURLs: all}}, false, nil
}
