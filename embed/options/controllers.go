// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Controllers are the settings of the control loops, under kube-controller-manager's flag names. What is nil or zero is as
// it has it without the flag.
type Controllers struct {
	Nodes Nodes
	// FinishedPods is how many finished pods are kept; nil: 12500; not above 0: all.
	FinishedPods *int
	// MirroredAddresses is how many addresses of one subset of Endpoints are mirrored to slices; nil: 1000.
	MirroredAddresses *int
	Endpoints         Endpoints
	// Masks are how large a node's part of the pods' addresses is.
	Masks Masks
	// QuotaPeriod is how long after a change of its use a quota is counted once more; nil: 5 min.
	QuotaPeriod *time.Duration
	// Syncs is how many objects a controller works on at once, by its name.
	Syncs map[string]int
	// LegacyTokenPeriod is after how long without use tokens go that were made unasked; nil: a year.
	LegacyTokenPeriod *time.Duration
	Election          Election
	Signing           Signing
}

// Masks are how large a node's part of the pods' addresses is, as the length of its prefix.
type Masks struct {
	// All is for whatever family there is, where there is one only; nil: IPv4 and IPv6 say.
	All *int
	// IPv4 and IPv6 are of one family; nil: 24, 64.
	IPv4, IPv6 *int
}

func (o *Masks) addFlags(f *pflag.FlagSet) {
	f.Var(&numeral[int]{&o.All, 0}, "node-cidr-mask-size", "Mask size of a node's pod address range in a single-stack cluster. Default: 24 for IPv4, 64 for IPv6.")
	f.Var(&numeral[int]{&o.IPv4, 0}, "node-cidr-mask-size-ipv4", "Mask size of a node's IPv4 pod address range. Default: 24.")
	f.Var(&numeral[int]{&o.IPv6, 0}, "node-cidr-mask-size-ipv6", "Mask size of a node's IPv6 pod address range. Default: 64.")
}

// Endpoints says how endpoints of services are published.
type Endpoints struct {
	// PerSlice is how many endpoints are in one EndpointSlice; nil: 100.
	PerSlice *int
	// Batch, SliceBatch and MirrorBatch are how long changes of pods are collected before Endpoints and EndpointSlices are
	// written, and changes of mirrored EndpointSlices; nil: not at all.
	Batch, SliceBatch, MirrorBatch *time.Duration
}

func (o *Endpoints) addFlags(f *pflag.FlagSet) {
	f.Var(&numeral[int]{&o.PerSlice, 100}, "max-endpoints-per-slice", "Maximum number of endpoints in an EndpointSlice, from 1 to 1000.")
	f.Var(&span{&o.Batch, 0}, "endpoint-updates-batch-period", "Time for which the endpoints controller collects pod changes before it writes Endpoints.")
	f.Var(&span{&o.SliceBatch, 0}, "endpointslice-updates-batch-period", "Time for which the EndpointSlice controller collects pod changes before it writes EndpointSlices.")
	f.Var(&span{&o.MirrorBatch, 0}, "mirroring-endpointslice-updates-batch-period", "Time for which the mirroring controller collects changes of EndpointSlices before it corrects them.")
}

func (o *Endpoints) check() error {
	if n := o.PerSlice; n != nil && *n < 1 {
		return fmt.Errorf("max-endpoints-per-slice must not be less than %d, but got %d", 1, *n) // upstream's words
	} else if n != nil && *n > 1000 {
		return fmt.Errorf("max-endpoints-per-slice must not be more than %d, but got %d", 1000, *n) // upstream's words
	}
	return nil
}

// Nodes says when a node counts as lost, and how fast its pods are evicted then.
type Nodes struct {
	// Grace is how long a node may be silent, StartupGrace one that has never reported; nil: 50 s, 1 min.
	Grace, StartupGrace *time.Duration
	// Period is how long changes are collected before zones are judged; nil: 5 s.
	Period *time.Duration
	// EvictionRate is how many nodes of a zone are emptied a second, SecondaryEvictionRate the same where most of a zone is
	// lost; nil: 0.1, 0.01.
	EvictionRate, SecondaryEvictionRate *float32
	// LargeZone is up to how many nodes the latter is none at all; nil: 50.
	LargeZone *int
	// UnhealthyZone is which part of a zone is most; nil: 0.55.
	UnhealthyZone *float32
}

func (o *Controllers) addFlags(f *pflag.FlagSet) {
	n := &o.Nodes
	f.Var(&span{&n.Grace, 50 * time.Second}, "node-monitor-grace-period", "Time for which a node may be silent before the controller marks it unhealthy.")
	f.Var(&span{&n.StartupGrace, time.Minute}, "node-startup-grace-period", "Time for which a starting node may be silent before the controller marks it unhealthy.")
	f.Var(&span{&n.Period, 5 * time.Second}, "node-monitor-period", "Time for which the node lifecycle controller collects changes of nodes before it evaluates zones.")
	f.Var(&numeral[float32]{&n.EvictionRate, 0.1}, "node-eviction-rate", "Nodes per second and zone whose pods are deleted when nodes fail and the zone is healthy.")
	f.Var(&numeral[float32]{&n.SecondaryEvictionRate, 0.01}, "secondary-node-eviction-rate", "Nodes per second and zone whose pods are deleted when nodes fail and the zone is unhealthy.")
	f.Var(&numeral[int]{&n.LargeZone, 50}, "large-cluster-size-threshold", "Number of nodes of a zone up to which --secondary-node-eviction-rate is taken as 0.")
	f.Var(&numeral[float32]{&n.UnhealthyZone, 0.55}, "unhealthy-zone-threshold", "Fraction of a zone's nodes, at least three, that must be not ready for the zone to be unhealthy.")
	f.Var(&numeral[int]{&o.FinishedPods, 12500}, "terminated-pod-gc-threshold", "Number of terminated pods that may exist before the collector deletes terminated pods. 0 or less keeps all.")
	f.Var(&numeral[int]{&o.MirroredAddresses, 1000}, "mirroring-max-endpoints-per-subset", "Maximum number of addresses of an Endpoints subset that are mirrored to EndpointSlices, from 1 to 1000.")
	f.Var(&span{&o.LegacyTokenPeriod, 365 * 24 * time.Hour}, "legacy-service-account-token-clean-up-period", "Time since the last use after which an auto-generated service-account token Secret is deleted.")
	f.Var(&span{&o.QuotaPeriod, 5 * time.Minute}, "resource-quota-sync-period", "Time after a change of usage after which the controller recalculates a quota.")
	o.Masks.addFlags(f)
	o.Endpoints.addFlags(f)
	o.addSyncs(f)
	o.Election.addFlags(f)
	o.Signing.addFlags(f)
}

// Check refuses what makes no sense.
func (o *Controllers) Check() error {
	for name, d := range map[string]*time.Duration{
		"node-monitor-grace-period": o.Nodes.Grace, "node-startup-grace-period": o.Nodes.StartupGrace, "node-monitor-period": o.Nodes.Period,
		"legacy-service-account-token-clean-up-period": o.LegacyTokenPeriod,
		"resource-quota-sync-period":                   o.QuotaPeriod,
	} {
		if d != nil && *d <= 0 {
			return fmt.Errorf("--%s must be above 0", name)
		}
	}
	for name, rate := range map[string]*float32{"node-eviction-rate": o.Nodes.EvictionRate, "secondary-node-eviction-rate": o.Nodes.SecondaryEvictionRate} {
		if rate != nil && !(*rate >= 0 && *rate <= 1e6) {
			return fmt.Errorf("--%s must be from 0 to a million", name)
		}
	}
	if t := o.Nodes.UnhealthyZone; t != nil && !(*t >= 0 && *t <= 1) {
		return errors.New("--unhealthy-zone-threshold must be from 0 to 1")
	}
	if n := o.MirroredAddresses; n != nil && *n < 1 {
		return fmt.Errorf("mirroring-max-endpoints-per-subset must not be less than %d, but got %d", 1, *n) // upstream's words
	} else if n != nil && *n > 1000 {
		return fmt.Errorf("mirroring-max-endpoints-per-subset must not be more than %d, but got %d", 1000, *n) // upstream's words
	}
	return errors.Join(o.Endpoints.check(), o.checkSyncs(), o.Election.check(), o.Signing.check())
}
