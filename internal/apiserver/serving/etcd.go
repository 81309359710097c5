// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// EtcdTLS returns the TLS configuration of a server that serves the store by etcd's protocol to clients with certificates of an authority
// of its own: certificates of the cluster's authority, as nodes have them, open nothing. It reads the authority and the certificates, or
// creates them, under kubeadm's names: etcd/ca and etcd/server in dir, and apiserver-etcd-client, of a client.
func EtcdTLS(dir string, hosts []string) (*tls.Config, error) {
	now := time.Now()
	own := pairDirectory{dir: filepath.Join(dir, "etcd"), now: now}
	if err := os.MkdirAll(own.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make certificate directory: %w", err)
	}
	ca, err := own.authority("ca", "etcd-ca")
	if err != nil {
		return nil, err
	}
	server, err := own.leaf("server", ca, subject{name: "mortise", hosts: hosts, server: true, client: true})
	if err != nil {
		return nil, err
	}
	clients := pairDirectory{dir: dir, now: now}
	if _, err := clients.leaf("apiserver-etcd-client", ca, subject{name: "kube-apiserver-etcd-client"}); err != nil {
		return nil, err
	}
	return &tls.Config{
		Certificates: []tls.Certificate{server.TLS()}, ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS12,
	}, nil
}
