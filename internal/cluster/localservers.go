// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
)

// localServers are HTTP servers in this process that the API server calls without a network: webhooks and aggregated API servers of a
// test. Each has an address that nothing else on the machine has, for the URLs of webhooks and the Services of registrations. The API
// server's connections to these addresses are pipes, with TLS on them as on any other, by a certificate of the cluster's CA.
//
// A fork inherits the servers. The handlers are the same; their connections belong to the fork.
type localServers struct {
	mu       sync.Mutex
	material *serving.Material
	servers  map[string]localServer // by address
	running  map[string]*http.Server
	queues   map[string]*handed
	serving  sync.WaitGroup
	closed   bool
}

// localServer is one server.
type localServer struct {
	handler http.Handler // nil: it has stopped, and its address refuses connections
	names   []string     // of its certificate, beside the address
}

// localNetwork has the addresses of local servers. It is a part of loopback, for which clients use no proxy.
var localNetwork = netip.MustParseAddr("127.255.27.1")

// Local is the address of a server in this process.
type Local struct {
	Host string
	Port int
	CA   []byte // PEM, of the server's certificate
	Stop func() // the address refuses connections from then on
}

// ServeLocally lets the API server reach a handler. The certificate has the names beside the address.
func (c *Cluster) ServeLocally(h http.Handler, names ...string) (Local, error) {
	if c.settings.local == nil {
		return Local{}, errors.New("serve in process: only a cluster with its store in memory does")
	}
	return c.settings.local.add(h, names), nil
}

func (l *localServers) add(h http.Handler, names []string) Local {
	l.mu.Lock()
	defer l.mu.Unlock()
	port := len(l.servers) + 1
	address := net.JoinHostPort(localNetwork.String(), strconv.Itoa(port))
	if l.servers == nil {
		l.servers = map[string]localServer{}
	}
	l.servers[address] = localServer{h, names}
	return Local{Host: localNetwork.String(), Port: port, CA: l.material.CA.CertPEM, Stop: func() { l.remove(address) }}
}

// remove stops a server and closes its connections.
func (l *localServers) remove(address string) {
	l.mu.Lock()
	l.servers[address] = localServer{}
	running := l.running[address]
	delete(l.running, address)
	delete(l.queues, address)
	l.mu.Unlock()
	if running != nil {
		_ = running.Close() // also closes the queue
	}
}

// fork returns the same servers for a fork.
func (l *localServers) fork() *localServers {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return &localServers{material: l.material, servers: maps.Clone(l.servers)}
}

// find returns the dialer of an address of a local server, false for other addresses.
func (l *localServers) find(address string) (egress.Dial, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.servers[address]
	return l.dial, ok
}

// dial connects to a local server.
func (l *localServers) dial(_ context.Context, network, address string) (net.Conn, error) {
	queue, err := l.start(address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: localAddress(address), Err: err}
	}
	ours, theirs := net.Pipe()
	queue.give(theirs)
	return ours, nil
}

// start returns the queue of a server's connections, and starts the server unless it runs.
func (l *localServers) start(address string) (*handed, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.servers[address]
	if s.handler == nil || l.closed {
		return nil, syscall.ECONNREFUSED
	}
	if q := l.queues[address]; q != nil {
		return q, nil
	}
	pair, err := l.material.Node("", append([]string{localNetwork.String()}, s.names...), time.Now())
	if err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	q := newHanded(localAddress(address))
	server := &http.Server{Handler: s.handler, ErrorLog: log.New(io.Discard, "", 0)}
	// A pipe has no buffer. So the server must not send what its client does not read yet, such as tickets.
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair.TLS()}, ClientAuth: tls.RequestClientCert,
		NextProtos: []string{"http/1.1"}, SessionTicketsDisabled: true,
	}
	if l.queues == nil {
		l.queues, l.running = map[string]*handed{}, map[string]*http.Server{}
	}
	l.queues[address], l.running[address] = q, server
	l.serving.Go(func() { _ = server.Serve(tls.NewListener(q, config)) }) // until it is closed
	return q, nil
}

// close stops all servers and waits for them.
func (l *localServers) close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.closed = true
	running := l.running
	l.running = nil
	l.mu.Unlock()
	for _, s := range running {
		_ = s.Close()
	}
	l.serving.Wait()
}

// localAddress is the address of a local server.
type localAddress string

// Network implements [net.Addr].
func (localAddress) Network() string { return "pipe" }

// String implements [net.Addr].
func (a localAddress) String() string { return string(a) }
