// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strconv"

	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/agent/server"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/internal/node"
)

// kubelet is the node's KubeletConfiguration; nil without a file.
type kubelet struct {
	*configv1beta1.KubeletConfiguration
	secure    *tls.Config    // versions, suites and curves
	clientCAs *x509.CertPool // beside the cluster's own; nil: none
}

// checkKubelet reads the node's configuration, and sets the runtime's socket from it. Without files and kubelet's flags it returns nil.
func checkKubelet(o *node.Options) (*kubelet, error) {
	file, dir := o.Settings.ConfigFile, o.Settings.ConfigDir
	if file == "" && dir == "" && o.KubeletFlags == nil {
		return nil, nil
	}
	config, skipped, err := kubeletconfig.LoadUnder(file, dir, o.KubeletFlags)
	if err != nil {
		return nil, err
	}
	k := &kubelet{KubeletConfiguration: config}
	if k.secure, err = kubeletconfig.TLS(config); err != nil {
		return nil, fmt.Errorf("read kubelet configuration: %w", err)
	}
	if config.TLSCertFile != "" {
		pair, err := tls.LoadX509KeyPair(config.TLSCertFile, config.TLSPrivateKeyFile)
		if err != nil {
			return nil, fmt.Errorf("read the node's certificate: %w", err)
		}
		k.secure.Certificates = []tls.Certificate{pair}
	}
	if path := config.Authentication.X509.ClientCAFile; path != "" {
		pem, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read the node's clients' authorities: %w", err)
		}
		k.clientCAs = x509.NewCertPool()
		if !k.clientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read the node's clients' authorities: no certificate in %s", path)
		}
	}
	if config.ContainerRuntimeEndpoint != "" {
		if o.CRISocket != "" && !kubeletconfig.SameEndpoint(o.CRISocket, config.ContainerRuntimeEndpoint) {
			return nil, fmt.Errorf("--cri-socket %s and containerRuntimeEndpoint %s of the KubeletConfiguration differ",
				o.CRISocket, config.ContainerRuntimeEndpoint)
		}
		o.CRISocket = config.ContainerRuntimeEndpoint
	}
	for _, path := range skipped {
		o.Logger.Info("Skipped a file of the KubeletConfiguration directory, because its name does not end in .conf", "file", path)
	}
	for _, text := range kubeletconfig.Unheeded(config) {
		o.Logger.Warn("Warning in the KubeletConfiguration", "file", file, "warning", text)
	}
	return k, nil
}

// listenAt returns the address on which the node's API listens.
func (k *kubelet) listenAt(usual string) string {
	if k == nil {
		return usual
	}
	return net.JoinHostPort(k.Address, strconv.Itoa(int(k.Port)))
}

// admits returns the wrapper of the node API's listener; nil if the configuration sets the address.
func (k *kubelet) admits(usual func(net.Listener) net.Listener) func(net.Listener) net.Listener {
	if k == nil {
		return usual
	}
	return nil
}

// secured returns the TLS configuration of the node's API.
func (k *kubelet) secured(usual *tls.Config) *tls.Config {
	if k == nil {
		return usual
	}
	out := usual.Clone()
	out.MinVersion, out.CipherSuites, out.CurvePreferences = k.secure.MinVersion, k.secure.CipherSuites, k.secure.CurvePreferences
	if len(k.secure.Certificates) > 0 {
		out.Certificates, out.GetCertificate = k.secure.Certificates, nil
	}
	return out
}

// settings returns the node API's options, changed by the configuration.
func (k *kubelet) settings(usual server.Options) server.Options {
	effective := kubeletconfig.Effective(k.configuration())
	usual.Effective, usual.Kubelet = effective, effective
	if k != nil {
		usual.MoreClientCAs = k.clientCAs
	}
	return usual
}

// configuration returns nil without a file.
func (k *kubelet) configuration() *configv1beta1.KubeletConfiguration {
	if k == nil {
		return nil
	}
	return k.KubeletConfiguration
}

// staticPods returns the decoder of static pod manifests.
func staticPods() agent.DecodePods { return upstream.StaticPods }
