// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

// What upstream (kube-apiserver 1.37.1 with etcd 3.6.7) was measured at on two cores, for budgets that are shares of it
// when no peer is measured beside: milliseconds of server CPU, and operations a second.
const (
	upstreamGet    = 0.75
	upstreamMerge  = 2.3
	upstreamApply  = 1.9
	upstreamUpdate = 2.1

	fifth = 1.0 / 5
	tenth = 1.0 / 10
)

// thousand is how many objects GET, update and patch choose from.
const thousand = 1000

var kilobyte = strings.Repeat("x", 900)

func configMap(name, value string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"k":%q}}`, name, value)
}

// stored makes a namespace with n ConfigMaps of 1 KB, m-1 to m-n, and returns the address of its ConfigMaps.
func stored(ctx context.Context, t *load.Target, n int) (string, error) {
	ns, err := t.Namespace(ctx)
	if err != nil {
		return "", err
	}
	base := t.Config.Host + "/api/v1/namespaces/" + ns + "/configmaps"
	return base, fill(ctx, t, base, 0, n)
}

// fill makes the objects after from, up to and with to.
func fill(ctx context.Context, t *load.Target, base string, from, to int) error {
	return load.Many(ctx, t, 32, to-from, func(ctx context.Context, client *http.Client, i int) error {
		return load.Expect(ctx, client, http.StatusCreated, "POST", base, "application/json", configMap(fmt.Sprintf("m-%d", from+i), kilobyte))
	})
}

// some chooses one of n objects after the other, far apart.
func some(base string, n int) func() string {
	var turn atomic.Int64
	return func() string { return fmt.Sprintf("%s/m-%d", base, turn.Add(7919)%int64(n)+1) }
}

func creates(ctx context.Context, b *bench, t *load.Target, add adder) error {
	base, err := stored(ctx, t, 0)
	if err != nil {
		return err
	}
	var serial atomic.Int64
	for _, c := range []struct {
		clients   int
		rate, cpu float64 // upstream's
	}{{1, 240, 4.5}, {16, 900, 1.7}, {128, 1377, 1.2}} {
		r, err := load.Loop(ctx, t, c.clients, b.length(), func(ctx context.Context, client *http.Client) error {
			return load.Expect(ctx, client, http.StatusCreated, "POST", base, "application/json",
				configMap(fmt.Sprint("c-", serial.Add(1)), kilobyte))
		})
		if err != nil {
			return err
		}
		add(fmt.Sprintf("durable creates of 1 KB, %d clients", c.clients), r.Values(report.TimesOf(c.rate, 4), report.ShareOf(c.cpu, fifth))...)
	}
	return nil
}

// closedLoop is what each of some clients does time and again.
type closedLoop struct {
	what string
	cpu  report.Bound
	do   load.Does
}

// loops16 adds the line of a closed loop of 16 clients.
func loops16(ctx context.Context, b *bench, t *load.Target, add adder, l closedLoop) error {
	r, err := load.Loop(ctx, t, 16, b.length(), l.do)
	if err != nil {
		return err
	}
	add(l.what+", 16 clients", r.Values(report.Bound{}, l.cpu)...)
	return nil
}

func gets(ctx context.Context, b *bench, t *load.Target, add adder) error {
	base, err := stored(ctx, t, thousand)
	if err != nil {
		return err
	}
	name := some(base, thousand)
	return loops16(ctx, b, t, add, closedLoop{"GET", report.ShareOf(upstreamGet, fifth), func(ctx context.Context, client *http.Client) error {
		return load.Expect(ctx, client, http.StatusOK, "GET", name(), "", "")
	}})
}

func updates(ctx context.Context, b *bench, t *load.Target, add adder) error {
	base, err := stored(ctx, t, thousand)
	if err != nil {
		return err
	}
	name := some(base, thousand)
	var serial atomic.Int64
	return loops16(ctx, b, t, add, closedLoop{"update", report.ShareOf(upstreamUpdate, fifth),
		func(ctx context.Context, client *http.Client) error {
			url := name()
			return load.Expect(ctx, client, http.StatusOK, "PUT", url, "application/json",
				configMap(url[len(base)+1:], fmt.Sprint(serial.Add(1), kilobyte)))
		}})
}

func merges(ctx context.Context, b *bench, t *load.Target, add adder) error {
	base, err := stored(ctx, t, thousand)
	if err != nil {
		return err
	}
	name := some(base, thousand)
	var serial atomic.Int64
	return loops16(ctx, b, t, add, closedLoop{"merge patch", report.ShareOf(upstreamMerge, fifth),
		func(ctx context.Context, client *http.Client) error {
			return load.Expect(ctx, client, http.StatusOK, "PATCH", name(), "application/merge-patch+json",
				fmt.Sprintf(`{"data":{"p":"%d"}}`, serial.Add(1)))
		}})
}

func applies(ctx context.Context, b *bench, t *load.Target, add adder) error {
	base, err := stored(ctx, t, 0)
	if err != nil {
		return err
	}
	var serial atomic.Int64
	apply := func(ctx context.Context, client *http.Client, want int, name, value string) error {
		return load.Expect(ctx, client, want, "PATCH", base+"/"+name+"?fieldManager=bench", "application/apply-patch+yaml",
			configMap(name, value))
	}
	if err := loops16(ctx, b, t, add, closedLoop{"server-side apply, creating", report.ShareOf(upstreamApply, fifth),
		func(ctx context.Context, client *http.Client) error {
			return apply(ctx, client, http.StatusCreated, fmt.Sprint("a-", serial.Add(1)), kilobyte)
		}}); err != nil {
		return err
	}
	var turn atomic.Int64
	made := min(serial.Load(), thousand)
	return loops16(ctx, b, t, add, closedLoop{"server-side apply, changing", report.ShareOf(upstreamApply, fifth),
		func(ctx context.Context, client *http.Client) error {
			return apply(ctx, client, http.StatusOK, fmt.Sprint("a-", turn.Add(1)%made+1), fmt.Sprint(serial.Add(1), kilobyte))
		}})
}

func customs(ctx context.Context, b *bench, t *load.Target, add adder) error {
	ns, err := t.Namespace(ctx)
	if err != nil {
		return err
	}
	client, err := t.Client(1)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	d := definition{group: ns + ".example.com", plural: "widgets", kind: "Widget", fields: 10, rule: true}
	if _, err := d.use(ctx, client, t, ns); err != nil {
		return err
	}
	base := d.objects(t, ns)
	var serial atomic.Int64
	if err := loops16(ctx, b, t, add, closedLoop{"custom resource (10 fields, a CEL rule): create", report.ShareOf(1.7, fifth),
		func(ctx context.Context, client *http.Client) error {
			return load.Expect(ctx, client, http.StatusCreated, "POST", base, "application/json",
				d.object(fmt.Sprint("m-", serial.Add(1)), kilobyte))
		}}); err != nil {
		return err
	}
	name := some(base, int(min(serial.Load(), thousand)))
	return loops16(ctx, b, t, add, closedLoop{"custom resource: GET", report.ShareOf(upstreamGet, fifth),
		func(ctx context.Context, client *http.Client) error {
			return load.Expect(ctx, client, http.StatusOK, "GET", name(), "", "")
		}})
}
