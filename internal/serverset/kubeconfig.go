// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serverset

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Extension is the name of the extension of a cluster in a kubeconfig that holds [Servers]. Clients that do not know it use the cluster's
// server alone.
const Extension = "mortise.dev/servers"

// maxServers is the number of servers of a cluster that are read at most.
const maxServers = 100

// Servers names the API servers of a cluster in a kubeconfig, beside the cluster's own field server.
type Servers struct {
	Servers []string `json:"servers"` // HOST:PORT of each
	// ServerName is the name that the certificates of all of them have; empty: [ServerName].
	ServerName string `json:"serverName,omitempty"`
}

// Encode returns the extension's content, as JSON.
func (s Servers) Encode() ([]byte, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the API servers: %w", err)
	}
	return b, nil
}

// Of returns the servers that a cluster of a kubeconfig names beside its own one; none if it has no such extension.
func Of(c *clientcmdapi.Cluster) (Servers, error) {
	var s Servers
	raw, ok := c.Extensions[Extension].(*runtime.Unknown)
	if !ok {
		return s, nil
	}
	if err := json.Unmarshal(raw.Raw, &s); err != nil {
		return Servers{}, fmt.Errorf("read %s in the kubeconfig: %w", Extension, err)
	}
	if len(s.Servers) > maxServers {
		return Servers{}, fmt.Errorf("read %s in the kubeconfig: %d servers, at most %d are read", Extension, len(s.Servers), maxServers)
	}
	for _, at := range s.Servers {
		if _, _, err := net.SplitHostPort(at); err != nil {
			return Servers{}, fmt.Errorf("read %s in the kubeconfig: %w", Extension, err)
		}
	}
	return s, nil
}

// In puts the servers into a cluster of a kubeconfig.
func (s Servers) In(c *clientcmdapi.Cluster) error {
	raw, err := s.Encode()
	if err != nil {
		return err
	}
	if c.Extensions == nil {
		c.Extensions = map[string]runtime.Object{}
	}
	c.Extensions[Extension] = &runtime.Unknown{Raw: raw, ContentType: runtime.ContentTypeJSON}
	return nil
}

// Balance makes a client use all servers: it asks one that accepts connections now, and each later connection may be to another one. It
// changes nothing if there are no servers beside the configuration's own.
func (s Servers) Balance(ctx context.Context, config *rest.Config) error {
	if len(s.Servers) == 0 || config.Dial != nil || config.Transport != nil || config.Proxy != nil {
		return nil
	}
	u, err := url.Parse(config.Host)
	if err != nil || u.Scheme != "https" {
		return nil // not one that TLS identifies: the others would not be either
	}
	if proxy, err := http.ProxyFromEnvironment(&http.Request{URL: u}); proxy != nil || err != nil {
		return nil // the proxy connects
	}
	set := New(address(u))
	set.Learn(append([]string{set.first}, s.Servers...))
	at, err := set.Live(ctx)
	if err != nil {
		return err
	}
	if config.ServerName = s.ServerName; config.ServerName == "" {
		config.ServerName = ServerName
	}
	u.Host = at
	config.Host, config.Dial = u.String(), set.Dial
	return nil
}

// address returns the HOST:PORT of a URL.
func address(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "443"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// Address returns the HOST:PORT of a server's URL.
func Address(server string) (string, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", fmt.Errorf("read the server's URL: %w", err)
	}
	return address(u), nil
}
