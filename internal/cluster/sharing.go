// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"

	"github.com/mortise-dev/mortise/internal/apiserver/masterleases"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/kinds/bootstrap"
)

// checkAuthority refuses a server whose authority is not that of the cluster in a store that servers share: the clients and tokens of one
// server would be strangers to the others. The ConfigMap of the servers' authorities tells; where there is none yet, the server may be the
// first.
func (a *assembly) checkAuthority(ctx context.Context) error {
	if !a.settings.engine.Shared {
		return nil
	}
	obj, err := a.server.Backend().Get(ctx, configMaps, metav1.NamespaceSystem, bootstrap.AuthenticationName)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the cluster's authorities: %w", err)
	}
	text := obj.(*corev1.ConfigMap).Data["client-ca-file"]
	if text == "" {
		return nil
	}
	known, err := cert.ParseCertsPEM([]byte(text))
	if err != nil {
		return fmt.Errorf("read the cluster's authorities: %w", err)
	}
	if own := a.material.CA.Certificate; slices.ContainsFunc(known, own.Equal) {
		return nil
	}
	return fmt.Errorf("the authority in %s is not that of the cluster in the store: "+
		"remove the directory and start with --join and --token, or replace ca.crt, ca.key, front-proxy-ca.crt, front-proxy-ca.key and "+
		"sa.key there by those of another server of the cluster, and remove the other files", filepath.Join(a.settings.DataDir, "pki"))
}

// joinPaths serves what another server needs to join, where servers can share the store.
func (a *assembly) joinPaths() map[string]http.Handler {
	if !a.settings.engine.Shared || a.settings.DataDir == "" {
		return nil
	}
	return map[string]http.Handler{serving.SharedPath: serving.ServeShared(filepath.Join(a.settings.DataDir, "pki"),
		a.settings.APIServer.Encryption.ConfigFile, a.settings.Logger.With("part", "apiserver"))}
}

// servers returns the servers that share the store; nil: none can.
func (a *assembly) servers() controllers.APIServers {
	if l := a.leases(); l != nil {
		return l
	}
	return nil
}

// serviceName is a name that the certificates of all servers have.
const serviceName = "kubernetes.default.svc"

// leases returns the leases of the servers that share the store; nil: none can.
func (a *assembly) leases() *masterleases.Leases {
	if !a.settings.engine.Shared {
		return nil
	}
	return &masterleases.Leases{Store: a.store, Port: a.advertised().Port(), Log: a.settings.Logger.With("part", "apiserver")}
}

// followServers watches over the other servers, if others can share the store. It writes their addresses into the administrator's
// kubeconfig, and sends some of the clients to a server that appears.
func (a *assembly) followServers(ctx context.Context) {
	leases, own := a.leases(), a.advertised()
	if leases == nil || own.Addr().IsLoopback() { // others do not know this one
		return
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.access.endpoint.Authorities)
	secure := &tls.Config{RootCAs: roots, ServerName: cmp.Or(a.access.endpoint.ServerName, serviceName), MinVersion: tls.VersionTLS12}
	a.clients.Run(ctx, "guard of the other servers", func(ctx context.Context) error {
		leases.Guard(ctx, own.Addr(), secure)
		return nil
	})
	a.clients.Run(ctx, "follower of the other servers", func(ctx context.Context) error {
		leases.Follow(ctx, func(all []netip.AddrPort) {
			a.spread.Servers(len(all))
			if err := a.tellServers(own, all); err != nil {
				a.settings.Logger.WarnContext(ctx, "The administrator's kubeconfig does not name all servers", "error", err)
			}
		})
		return nil
	})
}

// tellServers writes the administrator's kubeconfig with the servers beside this one.
func (a *assembly) tellServers(own netip.AddrPort, all []netip.AddrPort) error {
	at := a.access.endpoint
	for _, other := range all {
		if other != own {
			at.Others = append(at.Others, other.String())
		}
	}
	text, err := serving.Kubeconfig(at, a.access.identity)
	if err != nil {
		return err
	}
	return writeKubeconfig(a.settings.KubeconfigFile, text)
}
