// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package gateway makes a node the gateway of its pods to everything outside their bridge: the node forwards packets, and
// masquerades traffic that leaves the pod ranges of the whole cluster, since networks outside have no route to pods. Traffic to a
// pod of another node keeps its source address: network policies, logs and servers there see the calling pod.
//
// [Forward] enables the first, [Run] maintains the rules of the second, in its own nftables tables (ip and ip6 mortise-pods) or its own
// iptables chain (MORTISE-PODS in nat). Rules stay when Run ends, as pods do; [Remove] deletes them. The CNI plug-in bridge could
// masquerade as well, but it knows only its own node's range, and hides pods from other nodes.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/knftables"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/netfilter"
)

// tableName is the name of our tables, chainName of our iptables chains.
const (
	tableName = "mortise-pods"
	chainName = "MORTISE-PODS"
)

const (
	// wholeAfter is the interval at which all rules are written even without a known difference: another program may have
	// flushed the tables.
	wholeAfter = time.Hour
	// retry is the delay after a failed transaction.
	retry = 30 * time.Second
)

// Options configure the gateway. Pods is required.
type Options struct {
	Pods    []netip.Prefix    // the ranges of all pods in the cluster
	Backend netfilter.Backend // empty: nftables
	Logger  *slog.Logger      // nil discards logs
	Clock   clock.Clock       // nil: the real clock

	write      func(context.Context, []netip.Prefix) error
	clearOther func(context.Context) error
}

// family describes an IP family: nft's name, the match of its addresses, and its multicast range.
type family struct {
	nft       knftables.Family
	match     string
	multicast string
	v6        bool
}

func families() []family {
	return []family{{knftables.IPv4Family, "ip", "224.0.0.0/4", false}, {knftables.IPv6Family, "ip6", "ff00::/8", true}}
}

// Forward enables forwarding in the kernel, for the IP families of pods.
func Forward(pods []netip.Prefix) error {
	var errs []error
	for _, f := range families() {
		if len(of(pods, f.v6)) == 0 {
			continue
		}
		path := "/proc/sys/net/ipv4/ip_forward"
		if f.v6 {
			path = "/proc/sys/net/ipv6/conf/all/forwarding"
		}
		if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
			errs = append(errs, fmt.Errorf("turn on IP forwarding of %s: %w", f.match, err))
		}
	}
	return errors.Join(errs...)
}

// Write writes the rules with a backend.
func Write(ctx context.Context, b netfilter.Backend, pods []netip.Prefix) error {
	if b == netfilter.IPTables {
		return writeChains(ctx, pods)
	}
	return writeTables(ctx, pods)
}

// clearOther removes the rules that an earlier run has written with the other backend.
func clearOther(ctx context.Context, b netfilter.Backend) error {
	if b == netfilter.IPTables {
		return netfilter.RemoveTable(ctx, tableName)
	}
	return netfilter.RemoveChains(ctx, isOurs)
}

// writeTables writes the nftables rules.
func writeTables(ctx context.Context, pods []netip.Prefix) error {
	var errs []error
	for _, f := range families() {
		nft, err := knftables.New(f.nft, tableName)
		if err != nil {
			errs = append(errs, fmt.Errorf("use nftables for %s: %w", f.match, err))
			continue
		}
		tx := nft.NewTransaction()
		tx.Add(&knftables.Table{Comment: new("what pods send out of the cluster, by Mortise")})
		if ranges := of(pods, f.v6); len(ranges) == 0 {
			tx.Delete(&knftables.Table{})
		} else {
			hook := &knftables.Chain{
				Name: "postrouting", Type: new(knftables.NATType), Hook: new(knftables.PostroutingHook), Priority: new(knftables.SNATPriority),
			}
			tx.Add(hook)
			tx.Flush(hook)
			from := "{ " + strings.Join(ranges, ", ") + " }"
			among := "{ " + strings.Join(append(ranges, f.multicast), ", ") + " }"
			tx.Add(&knftables.Rule{Chain: hook.Name, Rule: knftables.Concat(f.match, "saddr", from, f.match, "daddr !=", among,
				"masquerade fully-random")})
		}
		if err := nft.Run(ctx, tx); err != nil {
			errs = append(errs, fmt.Errorf("write %s rules for pods: %w", f.match, err))
		}
	}
	return errors.Join(errs...)
}

func isOurs(chain string) bool { return chain == chainName }

// writeChains writes the iptables rules.
func writeChains(ctx context.Context, pods []netip.Prefix) error {
	var errs []error
	for _, f := range families() {
		if err := f.writeChain(ctx, of(pods, f.v6)); err != nil {
			errs = append(errs, fmt.Errorf("write %s rules for pods: %w", f.match, err))
		}
	}
	return errors.Join(errs...)
}

func (f family) writeChain(ctx context.Context, ranges []string) error {
	x, err := netfilter.OpenXTables(f.v6)
	if err != nil {
		return err
	}
	if len(ranges) == 0 {
		return x.Remove(ctx, isOurs)
	}
	saved, err := x.Save(ctx)
	if err != nil {
		return err
	}
	lines := []string{"*nat", ":" + chainName + " - [0:0]"}
	for _, to := range append(slices.Clone(ranges), f.multicast) {
		lines = append(lines, "-A "+chainName+" -d "+to+" -j RETURN")
	}
	for _, from := range ranges {
		lines = append(lines, "-A "+chainName+" -s "+from+" -j MASQUERADE --random-fully")
	}
	lines = append(lines, netfilter.Find(saved, isOurs)["nat"].Hook(
		`POSTROUTING -m comment --comment "what pods send out of the cluster, by Mortise" -j `+chainName)...)
	return x.Restore(ctx, strings.Join(append(lines, "COMMIT"), "\n")+"\n")
}

// Remove deletes the rules of all backends.
func Remove(ctx context.Context) error {
	return errors.Join(netfilter.RemoveTable(ctx, tableName), netfilter.RemoveChains(ctx, isOurs))
}

// of returns the ranges of a family.
func of(pods []netip.Prefix, v6 bool) (out []string) {
	for _, p := range pods {
		if p.Addr().Is6() == v6 {
			out = append(out, p.Masked().String())
		}
	}
	return out
}

// Run maintains the rules until ctx is done, and removes those of the other backend. The caller has called Write before.
func Run(ctx context.Context, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.write == nil {
		o.write = func(ctx context.Context, pods []netip.Prefix) error { return Write(ctx, o.Backend, pods) }
	}
	if o.clearOther == nil {
		o.clearOther = func(ctx context.Context) error { return clearOther(ctx, o.Backend) }
	}
	if err := o.clearOther(ctx); err != nil && ctx.Err() == nil {
		o.Logger.Warn("Could not remove the pod gateway's rules of another backend", "error", err)
	}
	var failures backoff.Failures
	again := o.Clock.NewTimer(wholeAfter)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C():
		}
		next := wholeAfter
		switch err := o.write(ctx, o.Pods); {
		case err == nil:
			failures.Clear()
		case ctx.Err() == nil:
			failures.Log(o.Clock.Now(), o.Logger.Error, "Could not write the pod gateway's rules, retrying", "error", err, "again", retry)
			next = retry
		}
		again.Reset(next)
	}
}
