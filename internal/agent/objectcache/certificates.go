// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"context"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// bundleReference returns the key of the trust bundles that a source refers to.
func bundleReference(source *corev1.ClusterTrustBundleProjection) []objectKey {
	switch {
	case source.Name != nil:
		return []objectKey{{kind: kindTrustBundle, name: *source.Name}}
	case source.SignerName != nil:
		return []objectKey{{kind: kindTrustBundles, name: *source.SignerName}}
	}
	return nil
}

// TrustBundle returns one ClusterTrustBundle. The caller must not change it.
func (m *Manager) TrustBundle(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error) {
	return get(ctx, m, objectKey{kind: kindTrustBundle, name: name}, func() (*certificatesv1.ClusterTrustBundle, error) {
		return m.client.CertificatesV1().ClusterTrustBundles().Get(ctx, name, metav1.GetOptions{})
	})
}

// TrustBundles returns a signer's ClusterTrustBundles. The caller must not change them.
func (m *Manager) TrustBundles(ctx context.Context, signer string) ([]*certificatesv1.ClusterTrustBundle, error) {
	store, err := m.store(ctx, objectKey{kind: kindTrustBundles, name: signer})
	if err != nil {
		return nil, err
	}
	var out []*certificatesv1.ClusterTrustBundle
	if store != nil {
		for _, obj := range store.List() {
			out = append(out, obj.(*certificatesv1.ClusterTrustBundle))
		}
		return out, nil
	}
	ofSigner := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(signerField, signer).String()}
	list, err := m.client.CertificatesV1().ClusterTrustBundles().List(ctx, ofSigner)
	if err != nil {
		return nil, fmt.Errorf("list trust bundles of signer %s: %w", signer, err)
	}
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	return out, nil
}

// RequestCertificate creates a request for a pod's certificate. The API server checks that the requester is the node of the pod.
func (m *Manager) RequestCertificate(
	ctx context.Context, request *certificatesv1.PodCertificateRequest,
) (*certificatesv1.PodCertificateRequest, error) {
	account, err := m.client.CoreV1().ServiceAccounts(request.Namespace).Get(ctx, request.Spec.ServiceAccountName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("while fetching service account: %w", err)
	}
	node, err := m.client.CoreV1().Nodes().Get(ctx, m.node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", m.node, err)
	}
	request.Spec.ServiceAccountUID, request.Spec.NodeName, request.Spec.NodeUID = account.UID, types.NodeName(m.node), node.UID
	made, err := m.client.CertificatesV1().PodCertificateRequests(request.Namespace).Create(ctx, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create PodCertificateRequest: %w", err)
	}
	return made, nil
}

// CertificateRequest returns one of the node's requests. The caller must not change it.
func (m *Manager) CertificateRequest(ctx context.Context, namespace, name string) (*certificatesv1.PodCertificateRequest, error) {
	store, err := m.store(ctx, objectKey{kind: kindCertificateRequests, name: m.node})
	if err != nil {
		return nil, err
	}
	if store == nil {
		return m.client.CertificatesV1().PodCertificateRequests(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	obj, ok, err := store.GetByKey(cache.NewObjectName(namespace, name).String())
	if err != nil {
		return nil, fmt.Errorf("find PodCertificateRequest %s/%s: %w", namespace, name, err)
	}
	if !ok {
		return nil, apierrors.NewNotFound(certificatesv1.Resource("podcertificaterequest"), name)
	}
	return obj.(*certificatesv1.PodCertificateRequest), nil
}
