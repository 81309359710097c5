// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// bundleReference is what a source of trust anchors refers to.
func bundleReference(source *corev1.ClusterTrustBundleProjection) []objectKey {
	switch {
	case source.Name != nil:
		return []objectKey{{kind: kindTrustBundle, name: *source.Name}}
	case source.SignerName != nil:
		return []objectKey{{kind: kindTrustBundles, name: *source.SignerName}}
	}
	return nil
}

// TrustBundle returns one ClusterTrustBundle; it must not be changed.
func (o *objects) TrustBundle(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error) {
	return get(ctx, o, objectKey{kind: kindTrustBundle, name: name}, func() (*certificatesv1.ClusterTrustBundle, error) {
		return o.client.CertificatesV1().ClusterTrustBundles().Get(ctx, name, metav1.GetOptions{})
	})
}

// TrustBundles returns a signer's ClusterTrustBundles; they must not be changed.
func (o *objects) TrustBundles(ctx context.Context, signer string) ([]*certificatesv1.ClusterTrustBundle, error) {
	store, err := o.store(ctx, objectKey{kind: kindTrustBundles, name: signer})
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
	list, err := o.client.CertificatesV1().ClusterTrustBundles().List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(signerField, signer).String()})
	if err != nil {
		return nil, fmt.Errorf("list trust bundles of signer %s: %w", signer, err)
	}
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	return out, nil
}
