// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Serving are the certificates that the API server presents to clients. The zero value is one that the cluster's own CA signs. The
// server reads the files again when they change.
type Serving struct {
	// CertFile and KeyFile are the certificate, followed by those of intermediate authorities, and its key; both or none.
	CertFile, KeyFile string
	// CertDir is a directory of apiserver.crt and apiserver.key, which are used without CertFile. If neither exists, the server
	// writes its own there.
	CertDir string
	// SNICertKeys are further certificates for clients that name a server, as CERT-FILE,KEY-FILE[:NAME,NAME...]. Without names, the
	// certificate's own names count.
	SNICertKeys []string
	// AdvertiseAddress is the IP address at which pods and other servers reach this one; empty: the address that it listens on or, if that
	// is none that others reach, the one on the machine's default route.
	AdvertiseAddress string
	Console          Console
}

func (o *Serving) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.CertFile, "tls-cert-file", o.CertFile,
		"File of the server's certificate, followed by those of intermediate authorities. Default: one that the cluster's own CA signs.")
	f.StringVar(&o.KeyFile, "tls-private-key-file", o.KeyFile, "File of the private key of --tls-cert-file: PKCS #1, PKCS #8 or SEC 1, as PEM.")
	f.StringVar(&o.CertDir, "cert-dir", o.CertDir,
		"Directory of apiserver.crt and apiserver.key, if --tls-cert-file is not set. If neither exists, the server writes its own there.")
	f.StringArrayVar(&o.SNICertKeys, "tls-sni-cert-key", o.SNICertKeys,
		"Certificate and key files, as CERT,KEY[:NAME,NAME...], for clients that ask for a NAME. Default names: the certificate's. Repeatable.")
	f.StringVar(&o.AdvertiseAddress, "advertise-address", o.AdvertiseAddress,
		"IP address at which pods and other servers reach this one. Default: the host of --listen, or the machine's address on its "+
			"default route.")
	o.Console.addFlags(f)
}
