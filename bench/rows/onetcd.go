// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

// Each server has a part of the etcd's keys, so that neither works in the turn of the other.
const (
	mortisePrefix  = "/registry"
	upstreamPrefix = "/upstream"
)

// pair is Mortise and kube-apiserver on one etcd.
type pair struct {
	etcd     *load.Etcd
	mortise  *load.Server
	upstream *load.Upstream
}

// onOneEtcd returns the pair, which it starts when a row needs it first.
func (b *bench) onOneEtcd(ctx context.Context) (*pair, error) {
	if b.pair != nil {
		return b.pair, nil
	}
	if !isDirectory(b.peer) {
		return nil, errors.New("needs -peer with the directory of kube-apiserver and etcd")
	}
	p := &pair{}
	var err error
	if p.etcd, err = load.StartEtcd(ctx, b.peer, 1); err == nil {
		if p.mortise, err = startOnEtcd(ctx, b, p.etcd); err == nil {
			p.upstream, err = load.StartUpstreamOn(ctx, b.peer, p.etcd, upstreamPrefix)
		}
	}
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	b.pair = p
	return p, nil
}

// startOnEtcd starts Mortise with nothing but the API.
func startOnEtcd(ctx context.Context, b *bench, e *load.Etcd, args ...string) (*load.Server, error) {
	return load.Start(ctx, b.binary, append(append([]string{"--store", "etcd", "--etcd-servers", e.URL, "--etcd-prefix", mortisePrefix},
		load.Bare...), args...)...)
}

func (p *pair) targets() []*load.Target { return []*load.Target{&p.mortise.Target, &p.upstream.Target} }

func (p *pair) stop() error {
	var errs []error
	if p.upstream != nil {
		errs = append(errs, p.upstream.Stop())
	}
	if p.mortise != nil {
		errs = append(errs, p.mortise.Stop())
	}
	if p.etcd != nil {
		errs = append(errs, p.etcd.Stop())
	}
	return errors.Join(errs...)
}

// onEtcd are the lines of the row: CPU is that of the API server alone.
func onEtcd() (all []comparison) {
	known := conversations()
	for _, line := range []struct {
		clients int
		name    string
		share   float64 // the budget of CPU, of the peer's
		times   float64 // the budget of requests a second; 0: none
	}{
		{1, "create", 1.0 / 4, 0}, {16, "create", 1.0 / 4, 0}, {128, "create", 1.0 / 4, 1.5}, {16, "update", 1.0 / 4, 0}, {16, "get", 1.0 / 4, 0},
		{16, "getprotobuf", 1.0 / 4, 0}, {1, "list", eighth, 0}, {1, "listprotobuf", eighth, 0},
	} {
		c := known[line.name]
		c.share = line.share
		all = append(all, comparison{
			name: fmt.Sprint(line.name, line.clients),
			what: fmt.Sprintf("%s, %d client-go, on etcd", c.what, line.clients),
			begin: func(ctx context.Context, b *bench, t *load.Target) (*contender, error) {
				one, err := c.begin(ctx, b, t, line.clients)
				return withEtcd(one, b.pair.etcd, line.times), err
			},
		})
	}
	return append(all, comparison{
		name: "watch", what: fmt.Sprintf("watch event of 1 KB to %d watchers, client-go, writes included, on etcd", fanWatchers),
		begin: func(ctx context.Context, b *bench, t *load.Target) (*contender, error) {
			one, err := fanningShare(ctx, b, t, 1.0/3)
			return withEtcd(one, b.pair.etcd, 0), err
		},
	})
}

// withEtcd adds the CPU of etcd to what is measured, and a budget to the rate, which is the first value.
func withEtcd(c *contender, e *load.Etcd, times float64) *contender {
	if c == nil {
		return nil
	}
	return &contender{end: c.end, measure: func(ctx context.Context) ([]report.Value, error) {
		before, err := e.Cpu()
		if err != nil {
			return nil, err
		}
		began := time.Now()
		values, err := c.measure(ctx)
		if err != nil {
			return nil, err
		}
		elapsed := time.Since(began)
		after, err := e.Cpu()
		if times > 0 {
			values[0].Bound = report.TimesOf(0, times)
		}
		return append(values, report.Value{Name: "etcd", Unit: "µs",
			Number: float64((after - before).Microseconds()) / (values[0].Number * elapsed.Seconds())}), err
	}}
}
