// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package gateway makes a node the gateway of its pods to all that is not on their bridge: the node sends on what is not for
// itself, and what leaves the pods' ranges of the whole cluster has the node's address as source, since nobody outside knows
// a way back to a pod. What goes to a pod of another node keeps its source: network policies, logs and servers there see the
// pod that calls.
//
// [Forward] is the first, [Run] the second, in tables of its own (ip and ip6 mortise-pods). Rules stay when Run ends, as pods
// do; [Remove] deletes them. The plug-in that makes the bridge could masquerade as well, but it knows its own node's range
// alone, and hides pods from other nodes.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/knftables"
)

// tableName is our tables'.
const tableName = "mortise-pods"

const (
	// wholeAfter is when everything is written though nothing is known to be amiss: somebody may have flushed the tables.
	wholeAfter = time.Hour
	// retry is how long a failed transaction waits.
	retry = 30 * time.Second
)

// Options say for whom. Pods is required.
type Options struct {
	Pods   []netip.Prefix // the ranges of all pods of the cluster
	Logger *slog.Logger   // nil: nothing is logged
	Clock  clock.Clock    // nil: the real one

	write func(context.Context, []netip.Prefix) error
}

// family is what nft calls one of IP, how it matches its addresses, and where that sends to many at once.
type family struct {
	nft       knftables.Family
	match     string
	multicast string
	v6        bool
}

func families() []family {
	return []family{{knftables.IPv4Family, "ip", "224.0.0.0/4", false}, {knftables.IPv6Family, "ip6", "ff00::/8", true}}
}

// Forward lets the kernel send on what is not for this machine, in the families that pods have.
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
			errs = append(errs, fmt.Errorf("let the kernel forward %s: %w", f.match, err))
		}
	}
	return errors.Join(errs...)
}

// Write makes the rules.
func Write(ctx context.Context, pods []netip.Prefix) error {
	return transact(ctx, func(f family, tx *knftables.Transaction) {
		ranges := of(pods, f.v6)
		if len(ranges) == 0 {
			tx.Delete(&knftables.Table{})
			return
		}
		hook := &knftables.Chain{
			Name: "postrouting", Type: new(knftables.NATType), Hook: new(knftables.PostroutingHook), Priority: new(knftables.SNATPriority),
		}
		tx.Add(hook)
		tx.Flush(hook)
		from := "{ " + strings.Join(ranges, ", ") + " }"
		among := "{ " + strings.Join(append(ranges, f.multicast), ", ") + " }"
		tx.Add(&knftables.Rule{Chain: hook.Name, Rule: knftables.Concat(f.match, "saddr", from, f.match, "daddr !=", among, "masquerade fully-random")})
	})
}

// Remove deletes the tables.
func Remove(ctx context.Context) error {
	return transact(ctx, func(_ family, tx *knftables.Transaction) { tx.Delete(&knftables.Table{}) })
}

// transact writes the table of each family, which is there then.
func transact(ctx context.Context, write func(family, *knftables.Transaction)) error {
	var errs []error
	for _, f := range families() {
		nft, err := knftables.New(f.nft, tableName)
		if err != nil {
			errs = append(errs, fmt.Errorf("use nftables for %s: %w", f.match, err))
			continue
		}
		tx := nft.NewTransaction()
		tx.Add(&knftables.Table{Comment: new("what pods send out of the cluster, by Mortise")})
		write(f, tx)
		if err := nft.Run(ctx, tx); err != nil {
			errs = append(errs, fmt.Errorf("write %s rules for pods: %w", f.match, err))
		}
	}
	return errors.Join(errs...)
}

// of are the ranges of a family.
func of(pods []netip.Prefix, v6 bool) (out []string) {
	for _, p := range pods {
		if p.Addr().Is6() == v6 {
			out = append(out, p.Masked().String())
		}
	}
	return out
}

// Run keeps the rules until ctx is done. They are there already: who starts it has called Write.
func Run(ctx context.Context, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.write == nil {
		o.write = Write
	}
	again := o.Clock.NewTimer(wholeAfter)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C():
		}
		next := wholeAfter
		if err := o.write(ctx, o.Pods); err != nil && ctx.Err() == nil {
			o.Logger.Error("what pods send out of the cluster may not come back", "error", err, "again", retry)
			next = retry
		}
		again.Reset(next)
	}
}
