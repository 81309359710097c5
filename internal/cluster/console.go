// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mortise-dev/mortise/internal/apiserver/authenticate"
	"github.com/mortise-dev/mortise/internal/apiserver/consoleextension"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/console"
	"github.com/mortise-dev/mortise/resource"
)

// makeConsole makes the console; nil: it is not served.
func makeConsole(a *assembly) (*console.Console, error) {
	o := &a.settings.APIServer.Serving.Console
	if !o.Enabled {
		return nil, nil
	}
	path := ""
	if dir := a.settings.DataDir; dir != "" && a.settings.origin == nil {
		path = filepath.Join(dir, "pki", "console.key")
	}
	key, err := console.LoadKey(path)
	if err != nil {
		return nil, err
	}
	return console.New(console.Options{
		API: a.server.Handler(), Authenticator: a.server.Authenticators(), Key: key, Host: hosts(o.Hosts, a.material),
		Issuers: issuersOf(a.server.Authenticators()), Log: a.settings.Logger.With("part", "console"),
	})
}

// consoleKinds returns the kind of extensions of the console; none if it is not served.
func consoleKinds(c *settings) ([]*resource.Descriptor, error) {
	if !c.APIServer.Serving.Console.Enabled {
		return nil, nil
	}
	kind, err := consoleextension.Kind()
	if err != nil {
		return nil, fmt.Errorf("make extensions of the console: %w", err)
	}
	return []*resource.Descriptor{kind}, nil
}

// issuersOf returns the issuers at which users sign in. The first audience of each is the console's client ID.
func issuersOf(from *authenticate.Authenticators) console.Issuers {
	return func() (out []console.Issuer) {
		for _, i := range from.Issuers() {
			out = append(out, console.Issuer{URL: i.URL, DiscoveryURL: i.DiscoveryURL, ClientID: i.Audiences[0], Client: i.Client})
		}
		return out
	}
}

// hosts returns whether a name is one of the server's: among names, or in a certificate that it presents.
func hosts(names []string, material *serving.Material) func(name string) bool {
	return func(name string) bool {
		if slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) }) {
			return true
		}
		leaf := material.Server.Certificate
		if material.Certificates != nil {
			if c, err := material.Certificates.Get(&tls.ClientHelloInfo{ServerName: name}); err == nil {
				leaf = leafOf(c)
			}
		}
		return leaf != nil && leaf.VerifyHostname(name) == nil
	}
}

// leafOf returns the parsed certificate; nil: it is not parsed.
func leafOf(c *tls.Certificate) *x509.Certificate {
	if c == nil {
		return nil
	}
	return c.Leaf
}
