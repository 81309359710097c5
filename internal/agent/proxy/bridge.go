// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/mortise-dev/mortise/internal/agent/netfilter"
)

// Bridge makes packets between pods on one bridge pass the rules, if the kernel can. Otherwise the response of a pod on the same bridge
// would come from an address that the client never called.
func Bridge(ctx context.Context) error {
	return netfilter.WithModule(ctx, "br_netfilter", setBridge)
}

func setBridge() error {
	var errs []error
	for _, name := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
		if err := os.WriteFile("/proc/sys/net/bridge/"+name, []byte("1"), 0o644); err != nil {
			errs = append(errs, fmt.Errorf("turn on bridge-nf-call: %w", err))
		}
	}
	return errors.Join(errs...)
}
