// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serverjoin

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/bootstraptoken"
	"github.com/mortise-dev/mortise/internal/durable"
)

// The names of files of [serving.SharedFiles].
const (
	caCert, caKey       = "ca.crt", "ca.key"
	proxyCert, proxyKey = "front-proxy-ca.crt", "front-proxy-ca.key"
	accountsKey         = "sa.key"
)

// Bundle is what the servers of a cluster have in common, by the names of the files.
type Bundle map[string][]byte

// check refuses a bundle whose keys do not fit, or whose CA does not have a hash.
func (b Bundle) check(hash string) error {
	for _, pair := range [][2]string{{caCert, caKey}, {proxyCert, proxyKey}} {
		if _, err := tls.X509KeyPair(b[pair[0]], b[pair[1]]); err != nil {
			return fmt.Errorf("%s and %s: %w", pair[0], pair[1], err)
		}
	}
	if _, err := keyutil.ParsePrivateKeyPEM(b[accountsKey]); err != nil {
		return fmt.Errorf("%s: %w", accountsKey, err)
	}
	return pinned(b[caCert], hash)
}

// pinned refuses a CA without the hash.
func pinned(pem []byte, hash string) error {
	all, err := cert.ParseCertsPEM(pem)
	if err != nil {
		return fmt.Errorf("read the cluster's CA: %w", err)
	}
	for _, c := range all {
		if is := bootstraptoken.Hash(c); is != hash {
			return fmt.Errorf("the hash of the cluster's CA is %s, not the token's", is)
		}
	}
	return nil
}

// write makes the directory of keys, whole or not at all.
func (b Bundle) write(pki string) error {
	next := pki + ".joining"
	if err := os.RemoveAll(next); err != nil {
		return err
	}
	if err := os.MkdirAll(next, 0o700); err != nil {
		return err
	}
	for _, name := range append(serving.SharedFiles(), serving.SharedEncryption) {
		if text, ok := b[name]; ok {
			if err := durable.Write(filepath.Join(next, name), 0o600, text); err != nil {
				return err
			}
		}
	}
	return durable.Rename(next, pki) // fails if there is one that is not empty
}
