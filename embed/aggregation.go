// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/reload"
)

// frontProxyClient is the certificate that aggregated API servers are shown, as files say it.
type frontProxyClient struct {
	certFile, keyFile string
	pem               []byte // of both files, as they were read last
	held              atomic.Pointer[tls.Certificate]
}

// checkAggregation reads the certificate that is shown to aggregated API servers.
func checkAggregation(_ context.Context, p *parts, o *settled) error {
	a := &o.apiserver.Aggregation
	if a.ProxyClientCertFile == "" && a.ProxyClientKeyFile == "" {
		return nil
	}
	if a.ProxyClientCertFile == "" || a.ProxyClientKeyFile == "" {
		return errors.New("--proxy-client-cert-file and --proxy-client-key-file: one is of no use without the other")
	}
	p.frontProxy = &frontProxyClient{certFile: a.ProxyClientCertFile, keyFile: a.ProxyClientKeyFile}
	if _, err := p.frontProxy.load(); err != nil {
		return fmt.Errorf("--proxy-client-cert-file: %w", err)
	}
	return nil
}

// load reads the files and says whether they hold something else.
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

// aggregation is how aggregated API servers are reached.
func (p *parts) aggregation(o *settled) apiserver.Aggregation {
	a := &o.apiserver.Aggregation
	out := apiserver.Aggregation{
		ClusterIPs:       a.Routing != nil && !*a.Routing,
		ForwardRedirects: a.RejectRedirects != nil && !*a.RejectRedirects,
	}
	if p.frontProxy != nil {
		out.Certificate = p.frontProxy.held.Load
	}
	return out
}

// rereadEvery is how often the certificate is read again whose directory tells nothing.
const rereadEvery = time.Minute

// followAggregation takes the certificate anew when its files change. What cannot be read leaves the old one in place.
func followAggregation(_ context.Context, p *parts, o *settled) error {
	f := p.frontProxy
	if f == nil {
		return nil
	}
	p.server.Go(func() {
		reload.Watch(p.server.context, rereadEvery, o.log, func() {
			switch changed, err := f.load(); {
			case err != nil:
				o.log.ErrorContext(p.server.context, "read the front proxy's certificate again", "error", err)
			case changed:
				p.api.Aggregator().Rotated()
			}
		}, f.certFile, f.keyFile)
	})
	return nil
}

// automanaged marks registrations that servers make: "onstart" those of their own groups.
const automanaged = "kube-aggregator.kubernetes.io/automanaged"

// dropRegistrations deletes those that a start made of groups that are not served any more.
func dropRegistrations(ctx context.Context, p *parts, _ *settled) error {
	r := schema.GroupResource{Group: apiregistrationv1.GroupName, Resource: "apiservices"}
	all, err := p.api.Backend().List(ctx, r, "")
	if err != nil {
		return fmt.Errorf("list registrations: %w", err)
	}
	served := map[string]bool{}
	for _, gv := range p.served() {
		served[gv.Version+"."+gv.Group] = true
	}
	for _, obj := range all {
		if obj.GetLabels()[automanaged] != "onstart" || served[obj.GetName()] {
			continue
		}
		if err := p.api.Backend().Delete(ctx, r, "", obj.GetName(), nil); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete registration %s: %w", obj.GetName(), err)
		}
	}
	return nil
}
