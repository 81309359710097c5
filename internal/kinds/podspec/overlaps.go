// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// pathSource is a path in a volume, and the source that puts a file there.
type pathSource struct{ path, source string }

func (p pathSource) String() string {
	if p.source == "" {
		return fmt.Sprintf("%q", p.path)
	}
	return fmt.Sprintf("%q (%s)", p.path, p.source)
}

// overlaps warns of files of a volume that hide each other: the same path twice, or one below another.
func overlaps(v *corev1.Volume) []string {
	var out []string
	warn := func(kind string, paths []pathSource, before []pathSource) []pathSource {
		for _, p := range paths {
			p.path = strings.TrimRight(p.path, "/")
			for _, other := range before {
				if p.path != "" && other.path != "" && (other == p ||
					strings.HasPrefix(other.path+"/", p.path+"/") || strings.HasPrefix(p.path+"/", other.path+"/")) {
					out = append(out, fmt.Sprintf("volume %q (%s): overlapping paths: %s with %s", v.Name, kind, p, other))
				}
			}
			before = append(before, p)
		}
		return before
	}
	if s := v.ConfigMap; s != nil {
		warn(fmt.Sprintf("ConfigMap %q", s.Name), keyPaths(s.Items, ""), nil)
	}
	if s := v.Secret; s != nil {
		warn(fmt.Sprintf("Secret %q", s.SecretName), keyPaths(s.Items, ""), nil)
	}
	if s := v.DownwardAPI; s != nil {
		warn("DownwardAPI", downwardPaths(s.Items, ""), nil)
	}
	if v.Projected == nil {
		return out
	}
	var all []pathSource
	for _, s := range v.Projected.Sources {
		if s == (corev1.VolumeProjection{}) {
			out = append(out, fmt.Sprintf("volume %q (Projected) has no sources provided", v.Name))
			continue
		}
		all = warn("Projected", projectedPaths(s), all)
	}
	return out
}

// projectedPaths returns the paths that one source of a projected volume fills.
func projectedPaths(s corev1.VolumeProjection) []pathSource {
	switch {
	case s.ConfigMap != nil && s.ConfigMap.Items != nil:
		return keyPaths(s.ConfigMap.Items, fmt.Sprintf("ConfigMap %q", s.ConfigMap.Name))
	case s.Secret != nil && s.Secret.Items != nil:
		return keyPaths(s.Secret.Items, fmt.Sprintf("Secret %q", s.Secret.Name))
	case s.DownwardAPI != nil && s.DownwardAPI.Items != nil:
		return downwardPaths(s.DownwardAPI.Items, "DownwardAPI")
	case s.ServiceAccountToken != nil:
		return []pathSource{{s.ServiceAccountToken.Path, "ServiceAccountToken"}}
	case s.ClusterTrustBundle != nil:
		name := s.ClusterTrustBundle.Name
		if name == nil {
			name = s.ClusterTrustBundle.SignerName
		}
		if name == nil {
			name = new(string)
		}
		return []pathSource{{s.ClusterTrustBundle.Path, fmt.Sprintf("ClusterTrustBundle %q", *name)}}
	case s.PodCertificate != nil:
		var out []pathSource
		for _, p := range []pathSource{
			{s.PodCertificate.CertificateChainPath, "PodCertificate chain"},
			{s.PodCertificate.KeyPath, "PodCertificate key"},
			{s.PodCertificate.CredentialBundlePath, "PodCertificate credential bundle"},
		} {
			if p.path != "" {
				out = append(out, p)
			}
		}
		return out
	}
	return nil
}

func keyPaths(items []corev1.KeyToPath, source string) []pathSource {
	out := make([]pathSource, len(items))
	for i, item := range items {
		out[i] = pathSource{item.Path, source}
	}
	return out
}

func downwardPaths(items []corev1.DownwardAPIVolumeFile, source string) []pathSource {
	out := make([]pathSource, len(items))
	for i, item := range items {
		out[i] = pathSource{item.Path, source}
	}
	return out
}
