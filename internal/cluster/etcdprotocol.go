// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/store"
)

// EtcdProtocol is a store that is served by etcd's protocol, and how.
type EtcdProtocol struct {
	Engine  store.Engine // below encryption at rest
	Scratch string       // a directory with room for snapshots; empty: the system's for temporary files
	URL     string       // by which clients reach it
	// TLS requires and verifies client certificates; nil: the listener is of a Unix socket.
	TLS *tls.Config
}

// unixScheme begins the address of a Unix socket.
const unixScheme = "unix://"

// checkEtcdListen refuses to serve by etcd's protocol what is in etcd, and addresses that are none.
func checkEtcdListen(at string, shared bool, dataDir string) error {
	if at == "" {
		return nil
	}
	if shared {
		return errors.New("etcd listen: the store is an etcd already: clients can ask its members")
	}
	if path, ok := strings.CutPrefix(at, unixScheme); ok {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("etcd listen %q: want unix:// and an absolute path", at)
		}
		return nil
	}
	if _, _, err := net.SplitHostPort(at); err != nil || strings.Contains(at, "/") {
		return fmt.Errorf("etcd listen %q: want unix://PATH or HOST:PORT", at)
	}
	if dataDir == "" {
		return fmt.Errorf("etcd listen %q: clients need certificates, which need a data directory; or want unix://PATH", at)
	}
	return nil
}

// serveEtcd serves the store by etcd's protocol, if the settings want it.
func (a *assembly) serveEtcd(ctx context.Context) error {
	at := a.settings.APIServer.Etcd.Listen
	if at == "" || a.settings.origin != nil {
		return nil
	}
	serve := a.settings.Extensions.EtcdProtocol
	if serve == nil {
		return errors.New("etcd listen: this program does not serve etcd's protocol: want embed.Extensions with package embed/etcdprotocol")
	}
	o := EtcdProtocol{Engine: bottom(a.store.Engine())}
	if a.settings.DataDir != "" {
		o.Scratch = filepath.Join(a.settings.DataDir, "store")
		if _, err := os.Stat(o.Scratch); err != nil {
			o.Scratch = a.settings.DataDir
		}
	}
	var l net.Listener
	var err error
	if path, ok := strings.CutPrefix(at, unixScheme); ok {
		l, err = listenUnix(path)
		o.URL = at
	} else {
		var lc net.ListenConfig
		if l, err = lc.Listen(ctx, "tcp", at); err == nil {
			o.URL = "https://" + l.Addr().String()
			o.TLS, err = serving.EtcdTLS(filepath.Join(a.settings.DataDir, "pki"), etcdHosts(at))
			if err != nil {
				err = errors.Join(err, l.Close())
			}
		}
	}
	if err != nil {
		return fmt.Errorf("serve etcd's protocol: %w", err)
	}
	a.background.Run(ctx, "server of etcd's protocol", func(ctx context.Context) error { return serve(ctx, l, o) })
	return nil
}

// etcdHosts returns the hosts of the certificate of an address.
func etcdHosts(at string) []string {
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	host, _, _ := net.SplitHostPort(at)
	if ip, err := netip.ParseAddr(host); host != "" && (err != nil || !ip.IsUnspecified()) {
		return append(hosts, host)
	}
	return append(hosts, hostAddress().String())
}

// listenUnix listens on a Unix socket that only this user can connect to. It replaces a socket that a former process has left.
func listenUnix(path string) (_ net.Listener, err error) {
	switch info, err := os.Lstat(path); {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case err == nil && info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("listen on %s: it is no socket", path)
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".etcd-") // its mode lets no other user in before the socket has its own
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, "s")})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(l.Addr().String(), 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if err := os.Rename(l.Addr().String(), path); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &socket{l, path}, nil
}

// socket is a listener that removes its socket.
type socket struct {
	net.Listener
	path string
}

// Close implements [net.Listener].
func (s *socket) Close() error {
	err := s.Listener.Close()
	if err == nil {
		err = os.Remove(s.path)
	}
	return err
}

// bottom returns the engine under all decorators, as that of encryption.
func bottom(e store.Engine) store.Engine {
	for {
		u, ok := e.(store.Unwrapper)
		if !ok {
			return e
		}
		e = u.Unwrap()
	}
}
