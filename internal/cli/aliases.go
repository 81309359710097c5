// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/spf13/pflag"
)

// aliasFlags are flags of `up` under the names of kube-apiserver and kube-controller-manager.
type aliasFlags struct {
	bindAddress string
	securePort  int
	listen      bool // the command line has --listen
}

// names are the names of these flags.
func (*aliasFlags) names() []string {
	return []string{"bind-address", "secure-port", "service-cluster-ip-range", "cluster-cidr"}
}

func (a *aliasFlags) add(f *pflag.FlagSet) {
	f.StringVar(&a.bindAddress, "bind-address", "", "IP address of the API, the host of --listen.")
	f.IntVar(&a.securePort, "secure-port", 0, "Port of the API, that of --listen.")
	f.Var(f.Lookup("service-cidr").Value, "service-cluster-ip-range", "The same as --service-cidr.")
	f.Var(f.Lookup("pod-cidr").Value, "cluster-cidr", "The same as --pod-cidr.")
}

// apply combines an address and a port into HOST:PORT.
func (a *aliasFlags) apply(f *pflag.FlagSet, listen string) (string, error) {
	address, port := f.Changed("bind-address"), f.Changed("secure-port")
	if !address && !port {
		return listen, nil
	}
	if a.listen {
		return "", errors.New("--listen says what --bind-address and --secure-port say: give one or the other")
	}
	h, p, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("--listen %q: want HOST:PORT: %w", listen, err)
	}
	if address {
		if _, err := netip.ParseAddr(a.bindAddress); err != nil {
			return "", fmt.Errorf("--bind-address %q: want an IP address", a.bindAddress)
		}
		h = a.bindAddress
	}
	if port {
		if a.securePort < 1 || a.securePort > 65535 {
			return "", fmt.Errorf("--secure-port %d must be between 1 and 65535, inclusive", a.securePort)
		}
		p = strconv.Itoa(a.securePort)
	}
	return net.JoinHostPort(h, p), nil
}
