// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package netfilter selects the kernel's packet filter for a node, nftables or iptables, and writes iptables rules.
//
// [Choose] probes the machine: it selects nftables, or iptables if the kernel or the program nft lacks support. Packages write nftables
// rules with sigs.k8s.io/knftables, and iptables rules with [XTables], which runs iptables-restore, and finds and removes chains by their
// names. The package keeps no state between calls.
package netfilter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"

	"sigs.k8s.io/knftables"
)

// Backend is a packet filter.
type Backend string

// The backends, under the names of kube-proxy's modes.
const (
	NFTables Backend = "nftables"
	IPTables Backend = "iptables"
)

// CheckMode validates a mode: empty selects the best that the machine supports, else it is a backend's name. Its errors
// distinguish kube-proxy's other modes from unknown ones.
func CheckMode(mode string) error {
	switch mode {
	case "", string(NFTables), string(IPTables):
		return nil
	case "ipvs":
		return errors.New("proxy mode ipvs is not supported: Kubernetes deprecated it and removes it in 1.43; use nftables, or leave the mode empty")
	case "kernelspace":
		return errors.New("proxy mode kernelspace is for Windows; use nftables or iptables, or leave the mode empty")
	}
	return fmt.Errorf("proxy mode %q is neither nftables nor iptables", mode)
}

// Choose selects the backend for a mode that CheckMode accepts, and logs which one and why. It is an error if an explicit backend does not
// work.
func Choose(ctx context.Context, mode string, log *slog.Logger) (Backend, error) {
	return choose(ctx, mode, log, map[Backend]func(context.Context) error{NFTables: tryNFTables, IPTables: tryIPTables})
}

func choose(ctx context.Context, mode string, log *slog.Logger, try map[Backend]func(context.Context) error) (Backend, error) {
	if err := CheckMode(mode); err != nil {
		return "", err
	}
	if mode != "" {
		b := Backend(mode)
		if err := try[b](ctx); err != nil {
			return "", fmt.Errorf("use proxy mode %s: %w", b, err)
		}
		log.Info("Selected the packet filter for Services and pods, as the proxy mode demands", "by", b)
		return b, nil
	}
	without := try[NFTables](ctx)
	if without == nil {
		log.Info("Selected the packet filter for Services and pods", "by", NFTables)
		return NFTables, nil
	}
	if err := try[IPTables](ctx); err != nil {
		return "", fmt.Errorf("use nftables: %w; use iptables instead: %w", without, err)
	}
	log.Warn("Selected the packet filter for Services and pods, because nftables does not work", "by", IPTables, "error", without)
	return IPTables, nil
}

// tryNFTables makes the kernel check rules of the kinds that we write, without applying them. One IP family is enough.
func tryNFTables(ctx context.Context) error {
	var errs []error
	for _, f := range []knftables.Family{knftables.IPv4Family, knftables.IPv6Family} {
		nft, err := knftables.New(f, "mortise-check")
		if err != nil {
			errs = append(errs, fmt.Errorf("use nft for %s: %w", f, err))
			continue
		}
		tx := nft.NewTransaction()
		tx.Add(&knftables.Table{})
		tx.Add(&knftables.Chain{Name: "nat", Type: new(knftables.NATType), Hook: new(knftables.PostroutingHook),
			Priority: new(knftables.SNATPriority)})
		tx.Add(&knftables.Rule{Chain: "nat", Rule: "numgen random mod 2 0 fib saddr type local masquerade fully-random"})
		if err := nft.Check(ctx, tx); err != nil {
			errs = append(errs, fmt.Errorf("check %s rules: %w", f, err))
			continue
		}
		return nil
	}
	return errors.Join(errs...)
}

func tryIPTables(ctx context.Context) error {
	var errs []error
	for _, v6 := range []bool{false, true} {
		x, err := OpenXTables(v6)
		if err == nil {
			err = x.Check(ctx)
		}
		errs = append(errs, err)
	}
	if slices.Contains(errs, nil) {
		return nil
	}
	return errors.Join(errs...)
}

// RemoveTable deletes the nftables tables of a name in both families. Without the program there is nothing to remove.
func RemoveTable(ctx context.Context, name string) error {
	var errs []error
	for _, f := range []knftables.Family{knftables.IPv4Family, knftables.IPv6Family} {
		nft, err := knftables.New(f, name)
		if errors.Is(err, exec.ErrNotFound) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("use nft for %s: %w", f, err))
			continue
		}
		tx := nft.NewTransaction()
		tx.Add(&knftables.Table{})
		tx.Delete(&knftables.Table{})
		if err := nft.Run(ctx, tx); err != nil {
			errs = append(errs, fmt.Errorf("delete table %s %s: %w", f, name, err))
		}
	}
	return errors.Join(errs...)
}
