// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Peers says how the servers that share a store reach each other, to forward requests for what one of them does not serve.
type Peers struct {
	// CAFile is the file of the authorities of the other servers' serving certificates; empty: the cluster's own.
	CAFile string
	// AdvertiseIP and AdvertisePort are where the others reach this server; set both or none. Empty: at its advertised address.
	AdvertiseIP, AdvertisePort string
}

func (o *Peers) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.CAFile, "peer-ca-file", o.CAFile,
		"File of the authorities of the serving certificates of other servers of the cluster. Default: the cluster's CA.")
	f.StringVar(&o.AdvertiseIP, "peer-advertise-ip", o.AdvertiseIP,
		"Address at which other servers of the cluster reach this one, to forward requests. Default: the advertised address.")
	f.StringVar(&o.AdvertisePort, "peer-advertise-port", o.AdvertisePort, "Port of --peer-advertise-ip.")
}
