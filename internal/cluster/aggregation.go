// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/reload"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/lifecycle"
	"github.com/mortise-dev/mortise/store"
)

// readFrontProxyClient reads the certificate that is shown to aggregated API servers. Without files the answer is nil: the cluster's
// own is shown.
func readFrontProxyClient(a *options.Aggregation) (*serving.FilePair, error) {
	if a.ProxyClientCertFile == "" && a.ProxyClientKeyFile == "" {
		return nil, nil
	}
	if a.ProxyClientCertFile == "" || a.ProxyClientKeyFile == "" {
		return nil, errors.New("--proxy-client-cert-file and --proxy-client-key-file: one is of no use without the other")
	}
	f, err := serving.ReadFilePair(a.ProxyClientCertFile, a.ProxyClientKeyFile)
	if err != nil {
		return nil, fmt.Errorf("--proxy-client-cert-file: %w", err)
	}
	return f, nil
}

// aggregation is how aggregated API servers are reached.
func aggregation(a *options.Aggregation, f *serving.FilePair) apiserver.Aggregation {
	out := apiserver.Aggregation{
		ClusterIPs:       a.Routing != nil && !*a.Routing,
		ForwardRedirects: a.RejectRedirects != nil && !*a.RejectRedirects, ExternalMetricsRoutes: a.ExternalMetricsRoutes,
	}
	if f != nil {
		out.Certificate = f.Certificate
	}
	return out
}

// rereadEvery is the interval at which a certificate is read again if its directory reports no changes.
const rereadEvery = time.Minute

// followFrontProxyClient reads the certificate again when its files change, and calls rotated if it is another one. What cannot be read
// leaves the old one in place.
func followFrontProxyClient(ctx context.Context, f *serving.FilePair, group *lifecycle.Group, log *slog.Logger, rotated func()) {
	if f == nil {
		return
	}
	group.Go(ctx, func(ctx context.Context) {
		reload.Watch(ctx, rereadEvery, log, func() {
			switch changed, err := f.Reload(); {
			case err != nil:
				log.ErrorContext(ctx, "Could not reload the front proxy's client certificate", "error", err)
			case changed:
				rotated()
			}
		}, f.CertFile, f.KeyFile)
	})
}

// automanaged marks registrations that servers create: "onstart" those of their own groups.
const automanaged = "kube-aggregator.kubernetes.io/automanaged"

// dropRegistrations deletes the registrations that an earlier start created for groups that are not served any more.
func dropRegistrations(ctx context.Context, server *apiserver.Server) error {
	r := schema.GroupResource{Group: apiregistrationv1.GroupName, Resource: "apiservices"}
	all, err := server.Backend().List(ctx, r, "")
	if unread := (*store.UnreadableError)(nil); errors.As(err, &unread) {
		return nil // that of one group keeps the others from being cleared away, not the server from starting
	}
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
