// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/apiserver"
)

// As returns the configuration of clients in this process that act as a user. Their requests reach the API server without a connection;
// the first one starts a fork. The clients stay valid when a fork is reset.
func (c *Cluster) As(u user.Info) *rest.Config {
	return &rest.Config{Host: inProcessHost, QPS: -1, Transport: &transport{cluster: c, user: u}}
}

// inProcessHost is the host of in-process clients; it is never resolved.
const inProcessHost = "http://in-process"

// admin is the user of the administrator's certificate.
func admin() user.Info {
	return &user.DefaultInfo{Name: "kubernetes-admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}
}

// transport sends requests to the API server of a cluster as a user.
type transport struct {
	cluster *Cluster
	user    user.Info
}

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	server, err := serverFor(t.cluster, r)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	return server.Config(t.user).Transport.RoundTrip(r)
}

// serverFor returns the API server that answers a request: that of the base while a fork is as its base, and the cluster's own afterwards.
func serverFor(c *Cluster, r *http.Request) (*apiserver.Server, error) {
	if c.untouched() {
		shared, err := c.origin.base.read()
		if err != nil {
			return nil, err
		}
		if apiserver.Reads(shared.server, r) {
			c.begin()
			return shared.server, nil
		}
	}
	own, err := c.use()
	if err != nil {
		return nil, err
	}
	return own.server, nil
}

// nowhere is the address of a cluster without a port. The API server publishes it, and nothing listens there.
var nowhere = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 443}
