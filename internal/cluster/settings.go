// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"

	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/kinds"
	"github.com/mortise-dev/mortise/internal/node"
)

// settings is the parsed and checked Settings with defaults.
type settings struct {
	Settings
	engine        builtin.Engine
	host, port    string         // from Listen
	advertised    netip.Addr     // zero: not configured
	podCIDRs      []netip.Prefix // one, or one of each IP family
	serviceCIDRs  []netip.Prefix // one, or one of each IP family, the preferred first
	signing       *signing
	controllers   []controllers.Controller // all, with their settings
	bare          bool                     // neither controllers nor scheduler nor node
	cbor          bool
	versions      bool // reports storage versions
	runtimeConfig kinds.RuntimeConfig
}

// The feature gates: clients may speak CBOR, and servers report in which versions they store objects.
const (
	cborGate            = "CBORServingAndStorage"
	storageVersionsGate = "StorageVersionAPI"
)

// setGates reads the feature gates. It needs the runtime configuration.
func (c *settings) setGates() error {
	for name, on := range c.FeatureGates {
		switch name {
		case cborGate:
			c.cbor = on
		case storageVersionsGate:
			c.versions = on
		default:
			return fmt.Errorf("feature gate %q: want %s or %s", name, cborGate, storageVersionsGate)
		}
	}
	if c.versions && !c.runtimeConfig.Serves(apiserverinternalv1alpha1.SchemeGroupVersion.WithResource("storageversions")) {
		return fmt.Errorf("feature gate %s needs the API: want runtime-config %s=true", storageVersionsGate,
			apiserverinternalv1alpha1.SchemeGroupVersion)
	}
	return nil
}

// complete sets defaults and checks the caller's settings. It has no side effects.
func (s Settings) complete() (*settings, error) {
	c := &settings{Settings: s}
	c.Nodes, c.Controllers = cmp.Or(s.Nodes, 1), slices.Clone(s.Controllers)
	if len(c.Controllers) == 0 {
		c.Controllers = []string{"*"}
	}
	c.bare = slices.Equal(c.Controllers, []string{"none"})
	if c.Node == "" {
		c.Node = node.Simulated
		if c.bare {
			c.Node = node.None
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Start.Began.IsZero() {
		c.Start.Began = time.Now()
	}
	var err error
	if c.engine, err = engine(c.Store, c.DataDir != ""); err != nil {
		return nil, err
	}
	c.Store = c.engine.Name
	if err := c.checkEngine(); err != nil {
		return nil, err
	}
	switch {
	case !slices.Contains([]node.Mode{node.Auto, node.CRI, node.Simulated, node.None}, c.Node):
		return nil, fmt.Errorf("node %q: want auto, cri, simulated or none", c.Node)
	case c.Node == node.CRI && c.DataDir == "":
		return nil, errors.New("node cri needs a data directory")
	case c.Nodes < 1:
		return nil, fmt.Errorf("%d nodes: want one at least", c.Nodes)
	}
	for _, check := range []func() error{
		c.APIServer.FlowControl.Check, c.APIServer.Explain.Check, c.APIServer.Controllers.Check, c.APIServer.Scheduler.Check,
		c.APIServer.Node.Check,
	} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	if err := checkCompatibility(&c.APIServer.Compatibility); err != nil {
		return nil, err
	}
	if c.runtimeConfig, err = kinds.ParseRuntimeConfig(s.RuntimeConfig); err != nil {
		return nil, err
	}
	if err := c.setGates(); err != nil {
		return nil, err
	}
	if c.signing, err = readSigning(c.APIServer.Controllers.Signing); err != nil {
		return nil, err
	}
	if c.host, c.port, err = net.SplitHostPort(cmp.Or(s.Listen, "127.0.0.1:0")); err != nil {
		return nil, fmt.Errorf("listen %q: want HOST:PORT: %w", s.Listen, err)
	}
	if at := c.APIServer.Serving.AdvertiseAddress; at != "" {
		if c.advertised, err = netip.ParseAddr(at); err != nil || c.advertised.IsUnspecified() || c.advertised.Zone() != "" {
			return nil, fmt.Errorf("advertise address %q: want the IP address at which others reach this server", at)
		}
		c.advertised = c.advertised.Unmap()
	}
	if err := c.parseRanges(); err != nil {
		return nil, err
	}
	return c, c.configureControllers()
}

// engine returns the store engine with a name, or the default one.
func engine(name string, dataDir bool) (builtin.Engine, error) {
	var names []string
	for _, e := range builtin.Engines() {
		names = append(names, e.Name)
		if e.Name != name && (name != "" || e.Lasting != dataDir) {
			continue
		}
		if e.InDataDir && !dataDir {
			return e, fmt.Errorf("store %s needs a data directory", name)
		}
		return e, nil
	}
	return builtin.Engine{}, fmt.Errorf("store %q: want %s", name, strings.Join(names, " or "))
}

// engineOptions returns what the store engine is opened with.
func (c *settings) engineOptions() builtin.EngineOptions {
	o := builtin.EngineOptions{Etcd: c.APIServer.Etcd}
	if c.Logger != nil {
		o.Logger = c.Logger.With("part", "store")
	}
	if c.DataDir != "" {
		o.Dir = filepath.Join(c.DataDir, "store")
	}
	return o
}

// checkEngine refuses settings with which the store engine cannot be opened, and those of another engine.
func (c *settings) checkEngine() error {
	if !c.engine.Shared && len(c.APIServer.Etcd.Servers) > 0 {
		return fmt.Errorf("store %s has no use for etcd's servers: want store etcd", c.engine.Name)
	}
	if err := checkEtcdListen(c.APIServer.Etcd.Listen, c.engine.Shared, c.DataDir); err != nil {
		return err
	}
	if c.engine.Check == nil {
		return nil
	}
	return c.engine.Check(c.engineOptions())
}

// parseRanges parses the ranges of pods' and services' addresses.
func (c *settings) parseRanges() (err error) {
	if c.podCIDRs, err = node.ParsePodCIDRs(cmp.Or(c.PodCIDR, node.DefaultPodCIDR)); err != nil {
		return err
	}
	if c.serviceCIDRs, err = parseServiceCIDRs(cmp.Or(c.ServiceCIDR, "10.96.0.0/16")); err != nil {
		return err
	}
	for _, services := range c.serviceCIDRs {
		for _, pods := range c.podCIDRs {
			if pods.Overlaps(services) {
				return fmt.Errorf("pod CIDR %s and service CIDR %s overlap", pods, services)
			}
		}
	}
	return nil
}

// parseServiceCIDRs parses a range, or two of different families.
func parseServiceCIDRs(text string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("service CIDR: %w", err)
		}
		out = append(out, p.Masked())
	}
	if len(out) > 2 || len(out) == 2 && out[0].Addr().Is4() == out[1].Addr().Is4() {
		return nil, fmt.Errorf("service CIDR %q: want one range, or one of IPv4 and one of IPv6", text)
	}
	return out, nil
}

// finishWait returns how long requests in progress may delay the end. It is short for a store in memory: no state outlives it, and
// tests wait.
func (c *settings) finishWait() time.Duration {
	if c.engine.Lasting {
		return time.Minute
	}
	return 5 * time.Second
}

// streamWait returns how long connections may delay the end when nothing happens on them; 0: the server's default. The clients of a store
// in memory end with its test, and an idle HTTP/2 connection would take a second to close.
func (c *settings) streamWait() time.Duration {
	if !c.engine.Lasting {
		return 10 * time.Millisecond
	}
	return 0
}
