// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package join

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"

	"github.com/mortise-dev/mortise/internal/bootstraptoken"
)

// patience is the maximum time in which the server must respond to a machine that is no node yet.
const patience = 30 * time.Second

// Authorities determines the CA of the cluster of o.Server (PEM), as o says: from a file, or by the token and the hashes.
func Authorities(ctx context.Context, o Options) ([]byte, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	return o.discover(ctx)
}

// discover determines the cluster's CA. Before that, it sends nothing that could be misused.
func (o *Options) discover(ctx context.Context) ([]byte, error) {
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the cluster's authority: %w", err)
		}
		all, err := cert.ParseCertsPEM(pem)
		if err != nil {
			return nil, fmt.Errorf("read the cluster's authority in %s: %w", o.CAFile, err)
		}
		return pem, pinned(all, o.Hashes)
	}
	token, err := bootstraptoken.Parse(o.Token)
	if err != nil {
		return nil, err
	}
	// The server is not verified yet: the token verifies the signature of its response.
	client, err := kubernetes.NewForConfig(&rest.Config{Host: o.Server, Timeout: patience,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}}) //nolint:gosec // see above
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	info, err := client.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, bootstraptoken.InfoName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return nil, fmt.Errorf("%s does not publish its CA (%w); run `mortise token create` there, or give the CA with --ca-file", o.Server, err)
	case err != nil:
		return nil, fmt.Errorf("reach %s: %w", o.Server, err)
	}
	pem, err := authorities(info, token, o.Hashes)
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", o.Server, err)
	}
	if len(o.Hashes) == 0 {
		o.Logger.Warn("Verified the cluster's CA by the token alone, which others may know too; --ca-cert-hash pins the CA")
	}
	return pem, nil
}

// authorities returns the CA in the ConfigMap, if the token's signature is on it and the hashes match.
func authorities(info *corev1.ConfigMap, token bootstraptoken.Token, hashes []string) ([]byte, error) {
	signature, ok := info.Data[bootstraptoken.SignatureKey(token.ID)]
	if !ok {
		return nil, fmt.Errorf("token %s is unknown to the cluster or has expired: cluster-info has no signature by it", token.ID)
	}
	content := info.Data[bootstraptoken.InfoKey]
	if err := token.Verify(content, signature); err != nil {
		return nil, fmt.Errorf("verify cluster-info by token %s: %w", token.ID, err)
	}
	config, err := clientcmd.Load([]byte(content))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", bootstraptoken.InfoName, err)
	}
	for _, c := range config.Clusters {
		all, err := cert.ParseCertsPEM(c.CertificateAuthorityData)
		if err != nil {
			return nil, fmt.Errorf("read the authority in %s: %w", bootstraptoken.InfoName, err)
		}
		return c.CertificateAuthorityData, pinned(all, hashes)
	}
	return nil, fmt.Errorf("%s names no cluster", bootstraptoken.InfoName)
}

// pinned rejects CAs that do not match the hashes. All of them must match: any other could sign for the rest.
func pinned(all []*x509.Certificate, hashes []string) error {
	if len(hashes) == 0 {
		return nil
	}
	for _, c := range all {
		is := bootstraptoken.Hash(c)
		if !slices.ContainsFunc(hashes, func(h string) bool { return strings.EqualFold(h, is) }) {
			return fmt.Errorf("the hash of the cluster's CA is %s, not the one of --ca-cert-hash", is)
		}
	}
	return nil
}
