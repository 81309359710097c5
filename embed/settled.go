// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/agent/proxyconfig"
	"github.com/mortise-dev/mortise/internal/kinds"
)

// settled is a Server's fields with nothing left open: defaults filled in, checked, parsed.
type settled struct {
	dataDir, kubeconfig, store string
	host, port                 string
	node                       NodeMode
	nodes                      int
	criSocket                  string
	podCIDR                    netip.Prefix // the first of podCIDRs
	podCIDRs                   []netip.Prefix
	nodeMasks                  nodeMasks
	signing                    *signing
	serviceCIDRs               []netip.Prefix // one, or one of each IP family, the preferred first
	controllers                []string
	bare                       bool // neither controllers nor scheduler nor node
	cbor                       bool
	runtimeConfig              kinds.RuntimeConfig
	apiserver                  options.APIServer
	extensions                 Extensions
	kubelet                    *kubelet            // nil: none is configured
	proxying                   *proxyconfig.Config // of Services; nil: no file is configured
	log                        *slog.Logger
	started                    time.Time
}

// cborGate is the feature gate that lets clients speak CBOR.
const cborGate = "CBORServingAndStorage"

// defaultPodRange is where pods get their addresses from unless somebody says.
const defaultPodRange = "10.244.0.0/16"

// settle fills in and checks what the caller wrote, before anything is touched.
func (s *Server) settle() (*settled, error) {
	o := &settled{
		dataDir: s.DataDir, kubeconfig: s.KubeconfigFile, store: s.Store,
		node: s.Node, nodes: cmp.Or(s.Nodes, 1), criSocket: s.CRISocket,
		controllers: slices.Clone(s.Controllers), apiserver: s.APIServer, extensions: s.Extensions, log: s.Logger, started: s.Started,
	}
	if len(o.controllers) == 0 {
		o.controllers = []string{"*"}
	}
	o.bare = slices.Equal(o.controllers, []string{"none"})
	if o.node == "" {
		o.node = NodeSimulated
		if o.bare {
			o.node = NodeNone
		}
	}
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	if o.started.IsZero() {
		o.started = time.Now()
	}
	if o.store == "" {
		o.store = "memory"
		if o.dataDir != "" {
			o.store = "local"
		}
	}
	switch {
	case o.store != "memory" && o.store != "local":
		return nil, fmt.Errorf("store %q: want local or memory", o.store)
	case o.store == "local" && o.dataDir == "":
		return nil, fmt.Errorf("store local needs a data directory")
	case !slices.Contains([]NodeMode{NodeAuto, NodeCRI, NodeSimulated, NodeNone}, o.node):
		return nil, fmt.Errorf("node %q: want auto, cri, simulated or none", o.node)
	case o.node == NodeCRI && o.dataDir == "":
		return nil, fmt.Errorf("node cri needs a data directory")
	case o.nodes < 1:
		return nil, fmt.Errorf("%d nodes: want one at least", o.nodes)
	}
	for name, on := range s.FeatureGates {
		if name != cborGate {
			return nil, fmt.Errorf("feature gate %q: want %s", name, cborGate)
		}
		o.cbor = on
	}
	if err := o.apiserver.FlowControl.Check(); err != nil {
		return nil, err
	}
	if err := o.apiserver.Explain.Check(); err != nil {
		return nil, err
	}
	if err := o.apiserver.Controllers.Check(); err != nil {
		return nil, err
	}
	if err := o.apiserver.Scheduler.Check(); err != nil {
		return nil, err
	}
	var err error
	if o.runtimeConfig, err = kinds.ParseRuntimeConfig(s.RuntimeConfig); err != nil {
		return nil, err
	}
	if o.signing, err = readSigning(o.apiserver.Controllers.Signing); err != nil {
		return nil, err
	}
	if o.host, o.port, err = net.SplitHostPort(cmp.Or(s.Listen, "127.0.0.1:0")); err != nil {
		return nil, fmt.Errorf("listen %q: want HOST:PORT: %w", s.Listen, err)
	}
	if o.podCIDRs, o.nodeMasks, err = podRanges(cmp.Or(s.PodCIDR, defaultPodRange), o.apiserver.Controllers.Masks); err != nil {
		return nil, err
	}
	o.podCIDR = o.podCIDRs[0]
	if o.serviceCIDRs, err = parseServiceCIDRs(cmp.Or(s.ServiceCIDR, "10.96.0.0/16")); err != nil {
		return nil, err
	}
	for _, c := range o.serviceCIDRs {
		for _, p := range o.podCIDRs {
			if p.Overlaps(c) {
				return nil, fmt.Errorf("pod CIDR %s and service CIDR %s overlap", p, c)
			}
		}
	}
	return o, nil
}

// parseServiceCIDRs reads a range, or two of different families.
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

// finishWait is how long requests under way may hold up the end: of a cluster in memory nothing remains that they could
// matter to, and tests wait for it.
func (o *settled) finishWait() time.Duration {
	if o.store == "memory" {
		return 5 * time.Second
	}
	return time.Minute
}
