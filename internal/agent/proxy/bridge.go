// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"time"
)

// Bridge lets what pods on one bridge tell each other pass the rules, where the kernel can: else the answer of a pod on the
// same bridge would come from an address that was never called.
func Bridge(ctx context.Context) error {
	err := setBridge()
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if out, failed := exec.CommandContext(ctx, "modprobe", "br_netfilter").CombinedOutput(); failed != nil {
		return errors.Join(err, fmt.Errorf("load br_netfilter: %w: %.200s", failed, out))
	}
	return setBridge()
}

func setBridge() error {
	var errs []error
	for _, name := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
		if err := os.WriteFile("/proc/sys/net/bridge/"+name, []byte("1"), 0o644); err != nil {
			errs = append(errs, fmt.Errorf("let bridges pass the rules: %w", err))
		}
	}
	return errors.Join(errs...)
}
