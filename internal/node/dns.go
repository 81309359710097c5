// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/internal/agent/dnsservice"
)

// EnsureDNS creates the Service of the cluster DNS unless the cluster has one, in the range that its API server was started with. It
// returns the Service's address. The client needs the rights of an administrator.
func EnsureDNS(ctx context.Context, client kubernetes.Interface) (address netip.Addr, made bool, err error) {
	own, err := client.NetworkingV1().ServiceCIDRs().Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return netip.Addr{}, false, fmt.Errorf("read the range of Services: %w", err)
	}
	var ranges []netip.Prefix
	for _, text := range own.Spec.CIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return netip.Addr{}, false, fmt.Errorf("read the range of Services: %w", err)
		}
		ranges = append(ranges, p)
	}
	found, made, err := dnsservice.Ensure(ctx, client, ranges)
	if err != nil {
		return netip.Addr{}, made, err
	}
	return found.Addresses[0], made, nil
}
