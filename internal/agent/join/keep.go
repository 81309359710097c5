// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package join

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/certificate"

	"github.com/mortise-dev/mortise/internal/durable"
	"github.com/mortise-dev/mortise/internal/serverset"
)

// ConfigFile is the name of the node's kubeconfig. The names of files are kubelet's, so that a kubelet could use them.
const ConfigFile = "kubelet.conf"

const (
	pkiDir     = "pki"
	clientPair = "kubelet-client"
	serverPair = "kubelet-server"
)

// read returns the stored identity without its certificate; nil if there is none.
func read(dir string) (*Identity, error) {
	path := filepath.Join(dir, ConfigFile)
	config, err := clientcmd.LoadFromFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read the node's kubeconfig: %w", err)
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil || config.Clusters[current.Cluster] == nil {
		return nil, fmt.Errorf("read the node's kubeconfig: %s names no cluster", path)
	}
	c := config.Clusters[current.Cluster]
	if _, err := pool(c.CertificateAuthorityData); err != nil {
		return nil, fmt.Errorf("read the authority in %s: %w", path, err)
	}
	more, err := serverset.Of(c)
	if err != nil {
		return nil, fmt.Errorf("read the node's kubeconfig: %w", err)
	}
	i := &Identity{dir: dir, Server: c.Server, Authorities: c.CertificateAuthorityData, more: more.Servers}
	return i, nil
}

// keep writes the certificate, and then the kubeconfig that refers to it, so that the reference is always valid.
func (i *Identity) keep(certificate, key []byte) (*tls.Certificate, error) {
	if err := os.MkdirAll(filepath.Join(i.dir, pkiDir), 0o700); err != nil {
		return nil, fmt.Errorf("make the node's directory: %w", err)
	}
	store := i.certificates()
	if store.err != nil {
		return nil, store.err
	}
	current, err := store.Store.Update(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("keep the node's certificate: %w", err)
	}
	return current, i.writeConfig()
}

// writeConfig writes the kubeconfig of the node's stored certificate.
func (i *Identity) writeConfig() error {
	const name = "default"
	pair := filepath.Join(i.dir, pkiDir, clientPair+"-current.pem")
	config := clientcmdapi.NewConfig()
	cluster := &clientcmdapi.Cluster{Server: i.Server, CertificateAuthorityData: i.Authorities}
	if len(i.more) > 0 {
		if err := (serverset.Servers{Servers: i.more}).In(cluster); err != nil {
			return fmt.Errorf("write the node's kubeconfig: %w", err)
		}
	}
	config.Clusters[name] = cluster
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificate: pair, ClientKey: pair}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	text, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("write the node's kubeconfig: %w", err)
	}
	path := filepath.Join(i.dir, ConfigFile)
	if err := durable.Write(path, 0o600, text); err != nil {
		return fmt.Errorf("write the node's kubeconfig: %w", err)
	}
	return nil
}

// files stores certificates; a new one atomically replaces the previous one.
type files struct {
	certificate.Store
	err error
	now func(*tls.Certificate) // called with each new certificate; may be nil
}

// certificates returns the store of the node's client certificates.
func (i *Identity) certificates() *files { return i.store(clientPair, i.renew) }

func (i *Identity) store(pair string, now func(*tls.Certificate)) *files {
	dir := filepath.Join(i.dir, pkiDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return &files{err: fmt.Errorf("make the node's directory: %w", err)}
	}
	s, err := certificate.NewFileStore(pair, dir, dir, "", "")
	if err != nil {
		return &files{err: fmt.Errorf("open the node's certificates: %w", err)}
	}
	return &files{Store: s, now: now}
}

// Current implements [certificate.Store].
func (f *files) Current() (*tls.Certificate, error) {
	if f.err != nil {
		return nil, f.err
	}
	return f.Store.Current()
}

// Update implements [certificate.Store].
func (f *files) Update(certificate, key []byte) (*tls.Certificate, error) {
	if f.err != nil {
		return nil, f.err
	}
	c, err := f.Store.Update(certificate, key)
	if err == nil && f.now != nil {
		f.now(c)
	}
	return c, err
}
