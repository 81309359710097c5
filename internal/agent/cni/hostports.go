// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/mortise-dev/mortise/internal/agent/netfilter"
)

// hostPorts is the iptables chain in which the plug-in portmap has a rule for each container with host ports.
const hostPorts = "CNI-HOSTPORT-DNAT"

// RemoveHostPorts deletes the chains that the plug-in portmap creates for all containers together and never deletes; it creates them again
// when it needs them. The chains stay while a container of any network has host ports.
func RemoveHostPorts(ctx context.Context) error {
	var errs []error
	for _, v6 := range []bool{false, true} {
		x, err := netfilter.OpenXTables(v6)
		if errors.Is(err, exec.ErrNotFound) {
			continue
		}
		if err == nil {
			err = removeHostPorts(ctx, x)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func removeHostPorts(ctx context.Context, x *netfilter.XTables) error {
	saved, err := x.Save(ctx)
	if err != nil {
		return fmt.Errorf("find what host ports have left: %w", err)
	}
	if strings.Contains(saved, "\n-A "+hostPorts+" ") {
		return nil
	}
	return x.Remove(ctx, func(chain string) bool {
		return slices.Contains([]string{hostPorts, "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ"}, chain)
	})
}
