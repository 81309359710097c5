// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package projected

import (
	"bytes"
	"cmp"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"hash/maphash"
	"path"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/mortise-dev/mortise/internal/agent/volumes/atomicwriter"
)

// maxLabelSelector is the maximum length of a selector of trust bundles, as text.
const maxLabelSelector = 100 << 10

// trustOrder seeds the order of trust anchors.
var trustOrder = maphash.MakeSeed()

// trustFile returns a source's file of trust anchors. It is empty if there are none and the source is optional.
func (p *plugin) trustFile(
	ctx context.Context, pod *corev1.Pod, source *corev1.ClusterTrustBundleProjection, mode *int32,
) (map[string]atomicwriter.File, error) {
	optional := source.Optional != nil && *source.Optional
	var bundles []*certificatesv1.ClusterTrustBundle
	var err error
	switch {
	case source.Name != nil:
		bundles, err = p.namedBundle(ctx, *source.Name, optional)
	case source.SignerName != nil:
		bundles, err = p.signersBundles(ctx, *source.SignerName, source.LabelSelector, optional)
	default:
		err = errors.New("ClusterTrustBundle projection requires either name or signerName to be set")
	}
	if err != nil {
		return nil, err
	}
	return map[string]atomicwriter.File{path.Clean(source.Path): credentialFile(pod, trustAnchors(trustOrder, bundles), mode)}, nil
}

func (p *plugin) namedBundle(ctx context.Context, name string, optional bool) ([]*certificatesv1.ClusterTrustBundle, error) {
	bundle, err := p.Host.Sources.TrustBundle(ctx, name)
	switch {
	case apierrors.IsNotFound(err) && optional:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("while getting ClusterTrustBundle: %w", err)
	}
	return []*certificatesv1.ClusterTrustBundle{bundle}, nil
}

// signersBundles returns a signer's bundles with matching labels. No selector matches none, an empty one matches all.
func (p *plugin) signersBundles(
	ctx context.Context, signer string, wanted *metav1.LabelSelector, optional bool,
) ([]*certificatesv1.ClusterTrustBundle, error) {
	selector, err := metav1.LabelSelectorAsSelector(wanted)
	if err != nil {
		return nil, fmt.Errorf("while parsing label selector: %w", err)
	}
	if n := len(selector.String()); n > maxLabelSelector {
		return nil, fmt.Errorf("label selector length (%d) is larger than %d", n, maxLabelSelector)
	}
	all, err := p.Host.Sources.TrustBundles(ctx, signer)
	if err != nil {
		return nil, fmt.Errorf("while listing ClusterTrustBundles matching label selector %v: %w", wanted, err)
	}
	bundles := slices.DeleteFunc(slices.Clone(all), func(b *certificatesv1.ClusterTrustBundle) bool {
		return b.Spec.SignerName != signer || !selector.Matches(labels.Set(b.Labels))
	})
	if len(bundles) == 0 && !optional {
		return nil, errors.New("combination of signerName and labelSelector matched zero ClusterTrustBundles")
	}
	return bundles, nil
}

// trustAnchors returns the bundles' certificates, each once, without headers and text between them. Consumers must not rely on the order:
// it is the same for the same certificates, whichever bundles contain them, but differs with each seed.
func trustAnchors(seed maphash.Seed, bundles []*certificatesv1.ClusterTrustBundle) []byte {
	var anchors [][]byte
	for _, b := range bundles {
		anchors = append(anchors, blocks(b.Spec.TrustBundle)...)
	}
	slices.SortFunc(anchors, func(a, b []byte) int {
		return cmp.Or(cmp.Compare(maphash.Bytes(seed, a), maphash.Bytes(seed, b)), bytes.Compare(a, b))
	})
	return certificateBlocks(slices.CompactFunc(anchors, bytes.Equal))
}

// blocks returns the contents of PEM blocks.
func blocks(text string) (out [][]byte) {
	for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
		out = append(out, block.Bytes)
	}
	return out
}

// certificateBlocks encodes certificates as PEM.
func certificateBlocks(certificates [][]byte) []byte {
	out := []byte{}
	for _, c := range certificates {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c})...)
	}
	return out
}
