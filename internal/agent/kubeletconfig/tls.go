// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"crypto/tls"
	"fmt"

	configv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// TLS returns the TLS configuration of the node's API: versions, cipher suites and curves, without certificates.
func TLS(c *configv1beta1.KubeletConfiguration) (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	switch c.TLSMinVersion {
	case "", "VersionTLS12":
	case "VersionTLS10":
		out.MinVersion = tls.VersionTLS10
	case "VersionTLS11":
		out.MinVersion = tls.VersionTLS11
	case "VersionTLS13":
		out.MinVersion = tls.VersionTLS13
	default:
		return nil, fmt.Errorf("unknown tls version %q", c.TLSMinVersion) // upstream's words
	}
	if len(c.TLSCipherSuites) > 0 && out.MinVersion == tls.VersionTLS13 {
		return nil, fmt.Errorf("tlsCipherSuites %v cannot be chosen with %s", c.TLSCipherSuites, c.TLSMinVersion)
	}
	known := map[string]uint16{}
	for _, s := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		known[s.Name] = s.ID
	}
	for _, name := range c.TLSCipherSuites {
		id, ok := known[name]
		if !ok {
			return nil, fmt.Errorf("cipher suite %s not supported or doesn't exist", name) // upstream's words
		}
		out.CipherSuites = append(out.CipherSuites, id)
	}
	for _, id := range c.TLSCurvePreferences {
		switch curve := tls.CurveID(id); curve {
		case tls.CurveP256, tls.CurveP384, tls.CurveP521, tls.X25519, tls.X25519MLKEM768:
			out.CurvePreferences = append(out.CurvePreferences, curve)
		default:
			return nil, fmt.Errorf("tlsCurvePreferences: %d is no curve that is known here", id)
		}
	}
	return out, nil
}
