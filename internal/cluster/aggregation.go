// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/reload"
	"github.com/mortise-dev/mortise/internal/lifecycle"
)

// frontProxyClient is the client certificate for aggregated API servers, from files.
type frontProxyClient struct {
	certFile, keyFile string
	pem               []byte // of both files, as last read
	held              atomic.Pointer[tls.Certificate]
}

// readFrontProxyClient reads the client certificate for aggregated API servers. Without files it returns nil: the server uses the cluster's
// own.
func readFrontProxyClient(a *options.Aggregation) (*frontProxyClient, error) {
	if a.ProxyClientCertFile == "" && a.ProxyClientKeyFile == "" {
		return nil, nil
	}
	if a.ProxyClientCertFile == "" || a.ProxyClientKeyFile == "" {
		return nil, errors.New("--proxy-client-cert-file and --proxy-client-key-file: one is of no use without the other")
	}
	f := &frontProxyClient{certFile: a.ProxyClientCertFile, keyFile: a.ProxyClientKeyFile}
	if _, err := f.load(); err != nil {
		return nil, fmt.Errorf("--proxy-client-cert-file: %w", err)
	}
	return f, nil
}

// load reads the files and reports whether their content has changed.
func (f *frontProxyClient) load() (bool, error) {
	cert, err := os.ReadFile(f.certFile)
	if err != nil {
		return false, fmt.Errorf("read certificate: %w", err)
	}
	key, err := os.ReadFile(f.keyFile)
	if err != nil {
		return false, fmt.Errorf("read key: %w", err)
	}
	all := append(append(bytes.Clone(cert), 0), key...)
	if bytes.Equal(all, f.pem) {
		return false, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return false, fmt.Errorf("%s and %s: %w", f.certFile, f.keyFile, err)
	}
	f.pem = all
	f.held.Store(&pair)
	return true, nil
}

// aggregation returns the settings for connections to aggregated API servers.
func aggregation(a *options.Aggregation, f *frontProxyClient) apiserver.Aggregation {
	out := apiserver.Aggregation{
		ClusterIPs:       a.Routing != nil && !*a.Routing,
		ForwardRedirects: a.RejectRedirects != nil && !*a.RejectRedirects,
	}
	if f != nil {
		out.Certificate = f.held.Load
	}
	return out
}

// rereadEvery is the interval at which a certificate is read again if its directory reports no changes.
const rereadEvery = time.Minute

// follow reads the certificate again when its files change, and calls rotated if it is another one. If the files are unreadable, the old
// certificate stays.
func (f *frontProxyClient) follow(ctx context.Context, group *lifecycle.Group, log *slog.Logger, rotated func()) {
	if f == nil {
		return
	}
	group.Go(ctx, func(ctx context.Context) {
		reload.Watch(ctx, rereadEvery, log, func() {
			switch changed, err := f.load(); {
			case err != nil:
				log.ErrorContext(ctx, "Could not reload the front proxy's client certificate", "error", err)
			case changed:
				rotated()
			}
		}, f.certFile, f.keyFile)
	})
}

// automanaged marks registrations that servers create: "onstart" those of their own groups.
const automanaged = "kube-aggregator.kubernetes.io/automanaged"

// dropRegistrations deletes the registrations that an earlier start created for groups that are not served any more.
func dropRegistrations(ctx context.Context, server *apiserver.Server) error {
	r := schema.GroupResource{Group: apiregistrationv1.GroupName, Resource: "apiservices"}
	all, err := server.Backend().List(ctx, r, "")
	if err != nil {
		return fmt.Errorf("list registrations: %w", err)
	}
	own := map[string]bool{}
	for _, gv := range served(server) {
		own[gv.Version+"."+gv.Group] = true
	}
	for _, obj := range all {
		if obj.GetLabels()[automanaged] != "onstart" || own[obj.GetName()] {
			continue
		}
		if err := server.Backend().Delete(ctx, r, "", obj.GetName(), nil); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete registration %s: %w", obj.GetName(), err)
		}
	}
	return nil
}
