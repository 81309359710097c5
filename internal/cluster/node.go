// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/dnsservice"
	"github.com/mortise-dev/mortise/internal/agent/nodeaddress"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/node"
)

// nodeOptions returns the settings of the nodes in this process.
func (s *settings) nodeOptions(ledger *extension.Ledger) node.Options {
	return node.Options{
		DataDir: s.DataDir, Mode: s.Node, Count: s.Nodes, CRISocket: s.CRISocket, PodCIDRs: s.podCIDRs, ServiceCIDRs: s.serviceCIDRs,
		Settings: s.APIServer.Node, Network: s.APIServer.Network, Simulated: s.APIServer.Simulated, Containers: s.Containers, Ledger: ledger,
		Logger: s.Logger,
	}
}

// readNodeAuthorities reads the CAs of nodes' serving certificates. Without a file it returns nil.
func readNodeAuthorities(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--kubelet-certificate-authority: %w", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--kubelet-certificate-authority: no certificate in %s", path)
	}
	return pem, nil
}

// nodeAuthorities returns the CAs that verify nodes' serving certificates: those of the file, and the cluster's own, which signs the
// certificates of nodes in this process. Without a file it returns nil.
func nodeAuthorities(material *serving.Material, pem []byte) *x509.CertPool {
	if pem == nil {
		return nil
	}
	pool := material.CA.Pool()
	pool.AppendCertsFromPEM(pem)
	return pool
}

// connectNodes connects the nodes in this process to the API server.
func (s *settings) connectNodes(
	ctx context.Context, plan *node.Plan, self components, material *serving.Material, l net.Listener, forPods *podAccess,
) (*node.Connection, error) {
	if plan.Mode == node.None {
		return nil, nil
	}
	name, simulated := "simulated", plan.Mode == node.Simulated
	if !simulated {
		var err error
		if name, err = node.HostName(); err != nil {
			return nil, err
		}
	}
	var addresses, outside *nodeaddress.Addresses
	if texts := forPods.texts(); len(texts) > 0 {
		addresses = nodeaddress.Fixed(texts...)
		var err error
		if outside, err = plan.FindAddresses(ctx, ""); err != nil {
			return nil, err
		}
	} else if address := l.Addr().(*net.TCPAddr).IP; !address.IsUnspecified() {
		addresses = nodeaddress.Fixed(node.Reachable(address.String(), plan.PodCIDRs)...)
	} else {
		var err error
		if addresses, err = plan.FindAddresses(ctx, ""); err != nil {
			return nil, err
		}
	}
	c := &node.Connection{
		Name: name, Addresses: addresses, Outside: outside, ClientCAs: material.CA.Pool(),
		Config: self.as(self.nodeUser(name)), Network: self.manager(), DNS: self.own(), Admit: forPods.Admit,
	}
	if simulated {
		c.Config = self.asNodes()
	}
	if s.bare {
		c.PodCIDR = s.podCIDRs[0].String()
	}
	if simulated && s.origin != nil && s.origin.inside {
		return c, nil
	}
	if simulated {
		c.ServeBy((&addressCertificates{material: material}).get)
		return c, nil
	}
	return c, c.Serve(func(hosts ...string) (tls.Certificate, error) { return nodeCertificate(material, name, hosts...) }, s.Logger)
}

// addressCertificates are the serving certificates of simulated nodes, one for each address that clients have connected to. They name no
// node: the same process serves all of them.
type addressCertificates struct {
	material *serving.Material

	mu sync.Mutex
	by map[string]*tls.Certificate
}

// get returns the certificate for the address that a client has connected to.
func (a *addressCertificates) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	host := "127.0.0.1"
	if hello.Conn != nil {
		if at, ok := hello.Conn.LocalAddr().(*net.TCPAddr); ok {
			host = at.IP.String()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.by[host]; c != nil {
		return c, nil
	}
	c, err := nodeCertificate(a.material, "", host)
	if err != nil {
		return nil, err
	}
	if a.by == nil {
		a.by = map[string]*tls.Certificate{}
	}
	a.by[host] = &c
	return &c, nil
}

// ensureDNS creates the Service of the cluster DNS for nodes that join: they may read it, but not create it.
func (s *settings) ensureDNS(ctx context.Context, plan *node.Plan, self components) {
	if plan.Mode != node.None || s.bare || s.APIServer.Network.NoDNS {
		return
	}
	if _, _, err := dnsservice.Ensure(ctx, self.ownClient(), s.serviceCIDRs); err != nil {
		s.Logger.Error("Could not publish the cluster DNS for joining nodes", "error", err)
	}
}

// nodeCertificate returns a node's serving certificate; without a name, one for several nodes.
func nodeCertificate(material *serving.Material, name string, hosts ...string) (tls.Certificate, error) {
	if name != "" {
		hosts = append(hosts, name)
	}
	pair, err := material.Node(name, append(hosts, "localhost", "127.0.0.1"), time.Now())
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make certificate of node %s: %w", name, err)
	}
	return pair.TLS(), nil
}
