// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/agent/proxy"
	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/kubernetesservice"
	"github.com/mortise-dev/mortise/internal/durable"
	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
	"github.com/mortise-dev/mortise/internal/version"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local"
	"github.com/mortise-dev/mortise/store/memory"
)

// start is one step of coming up.
type start struct {
	name string
	do   func(ctx context.Context, p *parts, o *settled) error
}

// begin takes the steps one after the other, until one fails or ctx ends.
func (p *parts) begin(ctx context.Context, o *settled, steps []start) error {
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := step.do(ctx, p, o); err != nil {
			return err
		}
	}
	return nil
}

// starts is the order in which a cluster comes up. What can be refused is refused before anything is written.
func starts() []start {
	return []start{
		{"check the selection", checkSelection},
		{"make admission", checkAdmission},
		{"make initializers", makeInitializers},
		{"check egress", checkEgress},
		{"check authentication", checkAuthentication},
		{"check audit", checkAudit},
		{"check authorization", checkAuthorization},
		{"check encryption", checkEncryption},
		{"check aggregation", checkAggregation},
		{"check the nodes' authorities", checkKubelets},
		{"check the scheduler's configuration", checkScheduler},
		{"find a node", findNode},
		{"check the simulated nodes", checkSimulated},
		{"check the node's network", checkNetwork},
		{"listen", listen},
		{"open the data directory", openDirectory},
		{"load certificates", loadCertificates},
		{"open the store", openStore},
		{"wait for the encryption's plug-ins", awaitEncryption},
		{"make the auditor", makeAuditor},
		{"make the authorizers", makeAuthorization},
		{"make authentication", makeAuthentication},
		{"make the API server", makeServer},
		{"make what every cluster has", makeObjects},
		{"take back former registrations", dropRegistrations},
		{"follow the authorization configuration", followAuthorization},
		{"follow the encryption configuration", followEncryption},
		{"follow the front proxy's certificate", followAggregation},
		{"serve", serve},
		{"run controllers", runControllers},
		{"run the scheduler", runScheduler},
		{"find the nodes' place", ownPlace},
		{"run the node's network", runNetwork},
		{"run nodes", runNodes},
		{"write the kubeconfig", writeKubeconfig},
	}
}

func checkSelection(_ context.Context, _ *parts, o *settled) error {
	_, err := controllers.Select(append(builtin.Controllers(), o.extensions.Controllers...), o.controllers)
	return err
}

func listen(ctx context.Context, p *parts, o *settled) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(o.host, o.port))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("listen on %s: the port is taken by another process", net.JoinHostPort(o.host, o.port))
	case err != nil:
		return fmt.Errorf("listen: %w", err)
	}
	p.listener = l
	host := o.host
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	p.url = "https://" + net.JoinHostPort(host, strconv.Itoa(p.port()))
	p.forPods, err = openPodAccess(ctx, o, p.listener.Addr().(*net.TCPAddr))
	return err
}

// port is the one that the listener got.
func (p *parts) port() int { return p.listener.Addr().(*net.TCPAddr).Port }

func openDirectory(_ context.Context, p *parts, o *settled) (err error) {
	if o.dataDir == "" {
		return nil
	}
	p.dir, err = openDataDir(o.dataDir)
	return err
}

func loadCertificates(_ context.Context, p *parts, o *settled) (err error) {
	hosts := []string{
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		"127.0.0.1", "::1", o.serviceCIDRs[0].Addr().Next().String(),
	}
	hosts = append(hosts, p.forPods.texts()...)
	if ip, err := netip.ParseAddr(o.host); o.host != "" && (err != nil || !ip.IsUnspecified()) {
		hosts = append(hosts, o.host)
	} else if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
				hosts = append(hosts, n.IP.String())
			}
		}
	}
	pki := ""
	if o.dataDir != "" {
		pki = filepath.Join(o.dataDir, "pki")
	}
	if p.pki, err = serving.LoadOrCreate(pki, hosts, serving.Options{}); err != nil {
		return fmt.Errorf("load certificates: %w", err)
	}
	p.kubeconfig, err = serving.Kubeconfig(p.url, p.pki.CA, p.pki.Admin)
	p.admin = &rest.Config{Host: p.url, QPS: -1, TLSClientConfig: rest.TLSClientConfig{
		CAData: p.pki.CA.CertPEM, CertData: p.pki.Admin.CertPEM, KeyData: p.pki.Admin.KeyPEM,
	}}
	return err
}

func openStore(ctx context.Context, p *parts, o *settled) error {
	var engine store.Engine
	if o.store == "memory" {
		engine = memory.Open(memory.Options{})
	} else {
		e, err := local.Open(filepath.Join(o.dataDir, "store"), local.Options{})
		if err != nil {
			return fmt.Errorf("open store: %w", err)
		}
		engine = e
	}
	engine, err := p.encryption.seal(ctx, engine, p, o)
	if err != nil {
		return fmt.Errorf("encrypt store: %w", err)
	}
	p.store = store.New(engine)
	return nil
}

func makeServer(_ context.Context, p *parts, o *settled) (err error) {
	p.bootstrapped = make(chan struct{})
	measured := prometheus.NewRegistry()
	if p.controllerMetrics, err = controllers.NewMetrics(measured); err != nil {
		return err
	}
	if p.proxyMetrics, err = proxy.NewMetrics(measured); err != nil {
		return err
	}
	if p.schedulerMetrics, err = metrics.New(measured); err != nil {
		return err
	}
	p.api, err = apiserver.New(apiserver.Options{
		Store:     p.store,
		Kinds:     p.encryption.know(append(builtin.Kinds(o.serviceCIDRs, or(o.apiserver.Pods.AllowPrivileged, !o.bare), o.runtimeConfig, builtin.Access{Verify: p.verify, Authorize: p.authorize, Rules: p.rules, Roles: p.authorization.roles, Namespaces: p.namespace, Dial: p.egress.Cluster()}), slices.Concat(p.initializing.kinds, o.extensions.Kinds)...)),
		Roles:     p.authorization.roles,
		Nodes:     p.authorization.nodes,
		Admission: slices.Concat(p.admission, p.initializing.plugins),
		Material:  p.pki,
		NodeCAs:   p.nodeAuthorities(),
		Version:   version.Get(),
		CBOR:      o.cbor,
		Log:       o.log.With("part", "apiserver"),
		Ledger:    p.ledger,
		Egress:    p.egress,
		Audit:     p.audit,
		Explain:   p.explain(o),

		Authentication: p.authn.settings,
		Authorization:  p.authorization.chain,
		Collectors:     append(p.encryption.collectors(), p.authorization.chain.Metrics(), measured),
		Checks:         p.encryption.checks(),

		Bootstrapped: p.bootstrapped,
		FinishWait:   o.finishWait(),
		FlowControl:  o.flowControl(),
		Aggregation:  p.aggregation(o),
		Flags:        o.flags(),
		Config:       map[string]any{"mortise": o.configuration()},
	})
	if err != nil {
		return fmt.Errorf("make API server: %w", err)
	}
	p.server.context, p.server.cancel = context.WithCancel(context.WithoutCancel(p.context))
	return nil
}

// verify is what a token review asks: it is only called once there is a server.
func (p *parts) verify(ctx context.Context, token string, audiences []string) (user.Info, []string, error) {
	return p.api.Authenticators().Verify(ctx, token, audiences)
}

// authorize is what an access review asks: it is only called once there is a server.
func (p *parts) authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorize.Standard(p.api.Authorizer())(ctx, a)
}

// namespace finds a namespace: it is only called once there is a server.
func (p *parts) namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	obj, err := p.api.Backend().Get(ctx, schema.GroupResource{Resource: "namespaces"}, "", name)
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Namespace), nil
}

func serve(_ context.Context, p *parts, _ *settled) error {
	p.server.Go(func() {
		p.watch(p.server.context, "API server", func(ctx context.Context) error {
			return p.api.Serve(ctx, append([]net.Listener{p.listener}, p.forPods.listeners...)...)
		})
	})
	return nil
}

func runControllers(_ context.Context, p *parts, o *settled) error {
	selection := o.controllers
	if o.bare { // a server publishes itself, alone too
		selection = []string{kubernetesservice.Name}
	}
	selected, err := controllers.Select(append(builtin.Controllers(), o.extensions.Controllers...), selection)
	if err != nil {
		return err
	}
	config, settled := p.as(p.component(controllers.Manager)), sync.OnceFunc(func() { close(p.settled) })
	start := func(selected []controllers.Controller, ready func()) func(context.Context) error {
		return func(ctx context.Context) error {
			return controllers.Run(ctx, selected, config, controllers.Options{
				As: p.asController, Logger: o.log.With("part", "controllers"), Ready: ready, Cluster: p.cluster(o), Metrics: p.controllerMetrics,
			})
		}
	}
	if own, shared := divide(selected); o.elects() && len(shared) > 0 {
		p.client("controllers", start(own, nil))
		p.client("controllers", p.elected("kube-controller-manager", o.apiserver.Controllers.Election.Name, o, config, settled, start(shared, settled)))
	} else {
		p.client("controllers", start(selected, settled))
	}
	return nil
}

// tokens signs what secrets hold. An external signer is for tokens that expire.
func (p *parts) tokens() controllers.TokenSigner {
	accounts := p.api.Authenticators().Accounts()
	if accounts == nil || p.authn.external != nil {
		return nil
	}
	return accounts.Legacy
}

// advertise is the address at which others reach the server. No pod does so on loopback.
func (p *parts) advertise(o *settled) netip.Addr {
	if len(p.forPods.addresses) > 0 {
		return p.forPods.addresses[0]
	}
	a, err := netip.ParseAddr(o.host)
	if err != nil || a.IsUnspecified() || a.IsLoopback() {
		return hostAddress()
	}
	return a
}

func writeKubeconfig(_ context.Context, p *parts, o *settled) error {
	if o.kubeconfig == "" {
		return nil
	}
	if err := durable.Write(o.kubeconfig, 0o600, p.kubeconfig); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// hostAddress is this machine's first address that others may reach, 127.0.0.1 if it has none.
func hostAddress() netip.Addr {
	if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok || n.IP.IsLoopback() || n.IP.IsLinkLocalUnicast() {
				continue
			}
			if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap().Is4() {
				return ip.Unmap()
			}
		}
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// nodeCertificate is a node's serving certificate; without a name, one for several nodes.
func (p *parts) nodeCertificate(name string, hosts ...string) (tls.Certificate, error) {
	if name != "" {
		hosts = append(hosts, name)
	}
	pair, err := p.pki.Node(name, append(hosts, "localhost", "127.0.0.1"), time.Now())
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make certificate of node %s: %w", name, err)
	}
	return pair.TLS(), nil
}
