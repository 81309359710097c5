// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Etcd says where the store engine etcd finds its cluster, which other engines refuse; and where they are found as if they were etcd.
type Etcd struct {
	// Servers are the URLs of etcd's members, with http or https.
	Servers []string
	// CAFile is the file of the authorities that have signed the members' certificates; empty: the system's.
	CAFile string
	// CertFile and KeyFile are the server's certificate as a client of etcd, and its key; both or none.
	CertFile, KeyFile string
	// Prefix is the prefix of all keys in etcd; empty: /registry.
	Prefix string
	// Listen is where the server serves its own store by etcd's protocol: unix://PATH, or HOST:PORT with TLS; empty: nowhere. The engine etcd
	// refuses it.
	Listen string
}

func (o *Etcd) addFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.Servers, "etcd-servers", o.Servers, "URLs of etcd's members, for --store etcd.")
	f.StringVar(&o.CAFile, "etcd-cafile", o.CAFile, "File of the authorities of the members' certificates. Default: the system's.")
	f.StringVar(&o.CertFile, "etcd-certfile", o.CertFile, "File of the certificate with which the server is a client of etcd.")
	f.StringVar(&o.KeyFile, "etcd-keyfile", o.KeyFile, "File of the private key of --etcd-certfile.")
	if o.Prefix == "" {
		o.Prefix = "/registry"
	}
	f.StringVar(&o.Prefix, "etcd-prefix", o.Prefix, "Prefix of all keys in etcd.")
	f.StringVar(&o.Listen, "etcd-listen", o.Listen,
		"Where to serve the data directory's store by etcd's protocol: unix://PATH, or HOST:PORT for clients with certificates.")
}
