// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package join

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"
)

const (
	userPrefix = "system:node:"
	nodesGroup = "system:nodes"

	// approval is kubelet's maximum time until a request is approved.
	approval = 15 * time.Minute
)

// subject returns the certificate subject of a node.
func subject(name string) pkix.Name {
	return pkix.Name{CommonName: userPrefix + name, Organization: []string{nodesGroup}}
}

// obtain requests a certificate with the token, and stores it.
func (o *Options) obtain(ctx context.Context, i *Identity) error {
	config := &rest.Config{Host: i.Server, BearerToken: o.Token, TLSClientConfig: rest.TLSClientConfig{CAData: i.Authorities}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	if err := free(ctx, client, i.Name); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	request, err := cert.MakeCSRFromTemplate(key, &x509.CertificateRequest{Subject: subject(i.Name)})
	if err != nil {
		return fmt.Errorf("make request for a certificate: %w", err)
	}
	name, uid, err := csr.RequestCertificateWithContext(ctx, client, request, "", certificatesv1.KubeAPIServerClientKubeletSignerName, nil,
		certificate.DefaultKubeletClientGetUsages(key), key)
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the token is unknown to %s or has expired", i.Server)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the token does not allow requests for certificates: %w", err)
	case err != nil:
		return fmt.Errorf("request a certificate from %s: %w", i.Server, err)
	}
	o.Logger.Info("Requested a certificate", "node", i.Name, "request", name)
	waiting, cancel := context.WithTimeout(ctx, approval)
	defer cancel()
	issued, err := csr.WaitForCertificate(waiting, client, name, uid)
	if err != nil {
		if waiting.Err() != nil && ctx.Err() == nil {
			err = errors.Join(fmt.Errorf("not approved within %s", approval), err)
		}
		return fmt.Errorf("await the certificate of request %s: %w", name, err)
	}
	current, err := i.keep(issued, keyPEM)
	if err != nil {
		return err
	}
	i.use(current)
	o.Logger.Info("Joined the cluster", "node", i.Name, "server", i.Server)
	return nil
}

// free rejects the name of a live node, as kubeadm does: two nodes with the same identity would fight over it. If the node may not read
// Nodes, it skips the check.
func free(ctx context.Context, client kubernetes.Interface, name string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err): // the CSR reports it
		return nil
	case err != nil:
		return fmt.Errorf("get node %s: %w", name, err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return fmt.Errorf("node %s exists and is ready: set another --name, or delete that node; a stopped node stays ready for --node-monitor-grace-period", name)
		}
	}
	return nil
}
