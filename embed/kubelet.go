// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/agent/server"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
)

// kubelet is how the node is to be, by a file; without one it is nil.
type kubelet struct {
	*configv1beta1.KubeletConfiguration
	secure    *tls.Config    // versions, suites and curves
	clientCAs *x509.CertPool // beside the cluster's own; nil: none
}

// checkKubelet reads the node's configuration, before anything is started.
func checkKubelet(_ context.Context, o *settled) error {
	file, dir := o.apiserver.Node.ConfigFile, o.apiserver.Node.ConfigDir
	if file == "" && dir == "" {
		return nil
	}
	config, skipped, err := kubeletconfig.Load(file, dir)
	if err != nil {
		return err
	}
	k := &kubelet{KubeletConfiguration: config}
	if k.secure, err = kubeletconfig.TLS(config); err != nil {
		return fmt.Errorf("read kubelet configuration: %w", err)
	}
	if config.TLSCertFile != "" {
		pair, err := tls.LoadX509KeyPair(config.TLSCertFile, config.TLSPrivateKeyFile)
		if err != nil {
			return fmt.Errorf("read the node's certificate: %w", err)
		}
		k.secure.Certificates = []tls.Certificate{pair}
	}
	if path := config.Authentication.X509.ClientCAFile; path != "" {
		pem, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the node's clients' authorities: %w", err)
		}
		k.clientCAs = x509.NewCertPool()
		if !k.clientCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("read the node's clients' authorities: no certificate in %s", path)
		}
	}
	if config.ContainerRuntimeEndpoint != "" {
		if o.criSocket != "" && o.criSocket != config.ContainerRuntimeEndpoint {
			return errors.New("--cri-socket and containerRuntimeEndpoint of the kubelet configuration say different things")
		}
		o.criSocket = config.ContainerRuntimeEndpoint
	}
	for _, path := range skipped {
		o.log.Info("kubelet configuration", "file", path, "skipped", "its name does not end in .conf")
	}
	for _, text := range kubeletconfig.Unheeded(config) {
		o.log.Warn("kubelet configuration", "file", file, "warning", text)
	}
	o.kubelet = k
	return nil
}

// checkKubelets reads who signs the serving certificates of nodes.
func checkKubelets(_ context.Context, p *parts, o *settled) (err error) {
	path := o.apiserver.Kubelets.CAFile
	if path == "" {
		return nil
	}
	if p.nodeCAs, err = os.ReadFile(path); err != nil {
		return fmt.Errorf("--kubelet-certificate-authority: %w", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(p.nodeCAs) {
		return fmt.Errorf("--kubelet-certificate-authority: no certificate in %s", path)
	}
	return nil
}

// nodeAuthorities verify nodes' serving certificates: those of the file, and the cluster's own, by which nodes in this process have theirs.
func (p *parts) nodeAuthorities() *x509.CertPool {
	if p.nodeCAs == nil {
		return nil
	}
	pool := p.pki.CA.Pool()
	pool.AppendCertsFromPEM(p.nodeCAs)
	return pool
}

// listenAt is where the node's API listens.
func (k *kubelet) listenAt(usual string) string {
	if k == nil {
		return usual
	}
	return net.JoinHostPort(k.Address, strconv.Itoa(int(k.Port)))
}

// secured is how the node's API speaks TLS.
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

// settings are the node's API's, beside the usual ones.
func (k *kubelet) settings(usual server.Options) server.Options {
	usual.Effective = agent.Effective(k.configuration())
	if k == nil {
		return usual
	}
	usual.MoreClientCAs, usual.Kubelet = k.clientCAs, k.KubeletConfiguration
	return usual
}

// configuration is nil without a file.
func (k *kubelet) configuration() *configv1beta1.KubeletConfiguration {
	if k == nil {
		return nil
	}
	return k.KubeletConfiguration
}

// staticPods reads the manifests of pods that the node runs by itself.
func staticPods() agent.DecodePods { return upstream.StaticPods }
