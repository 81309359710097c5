// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

const (
	largeNodes   = 1000
	largePods    = 700 // MB that 100,000 pods of 2 KB may take
	watcherBytes = 8   // KB that a watcher over HTTP/2 may take
	restFor      = 12  // seconds, in which a burst's memory is given back
)

// largePod is a pod of 2 KB, as it is stored, on one of the nodes. It stays there when the node is not ready.
func largePod(i int) string {
	p := pod(fmt.Sprintf("web-5d59d67564-%06d", i))
	p = strings.Replace(p, `"spec":{`, fmt.Sprintf(`"spec":{"nodeName":"large-%d","tolerations":[{"operator":"Exists"}],`, i%largeNodes), 1)
	text := strings.Repeat("0123456789abcdef", 12)
	return strings.Replace(p, `"annotations":{`, fmt.Sprintf(`"annotations":{"example.com/text":%q,`, text), 1)
}

// manyPodsHeld is what many pods take, with all controllers and the scheduler in the process: while they are created, and at rest.
func manyPodsHeld(ctx context.Context, b *bench, t *load.Target, add adder) error {
	ns, err := t.Namespace(ctx)
	if err != nil {
		return err
	}
	err = load.Many(ctx, t, 16, largeNodes, func(ctx context.Context, client *http.Client, i int) error {
		return load.Expect(ctx, client, http.StatusCreated, "POST", t.Config.Host+"/api/v1/nodes", jsonContent,
			fmt.Sprintf(`{"metadata":{"name":"large-%d"}}`, i%largeNodes))
	})
	if err != nil {
		return err
	}
	before, err := t.Collected(ctx)
	if err != nil {
		return err
	}
	base := t.Config.Host + "/api/v1/namespaces/" + ns + "/pods"
	_, most, err := t.Peak(func() error {
		return load.Many(ctx, t, 16, b.Objects, func(ctx context.Context, client *http.Client, i int) error {
			return load.Expect(ctx, client, http.StatusCreated, "POST", base, jsonContent, largePod(i))
		})
	})
	if err != nil {
		return err
	}
	clients, err := t.Clients(load.JSON)
	if err != nil {
		return err
	}
	defer clients.Close()
	if err := while(ctx, clients.Of(0), restFor); err != nil {
		return err
	}
	resident, _, err := t.Memory()
	if err != nil {
		return err
	}
	after, err := t.Collected(ctx)
	if err != nil {
		return err
	}
	add(fmt.Sprintf("%s pods of 2 KB, all controllers and the scheduler in, %d s after the last was created",
		report.Number(float64(b.Objects)), restFor),
		report.Value{Name: "resident", Unit: "MB", Number: float64(resident) / (1 << 20), Bound: report.AtMost(largePods)},
		report.Value{Name: "live", Unit: "MB", Number: after.Live / 1024}, report.Value{Name: "most", Unit: "MB", Number: most},
		report.Value{Name: "live of each", Unit: "KB", Number: (after.Live - before.Live) / float64(b.Objects)})
	return nil
}

// watchers is what idle watchers take that share HTTP/2 connections: objects, stacks of goroutines, and all memory.
func watchers(ctx context.Context, b *bench, t *load.Target, add adder) error {
	base, err := stored(ctx, t, few)
	if err != nil {
		return err
	}
	before, err := t.Collected(ctx)
	if err != nil {
		return err
	}
	client, err := t.Streams()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	c, err := gather(ctx, client, base, b.Watchers)
	if err != nil {
		return err
	}
	defer c.close()
	told := func(what string) error {
		idle, err := t.Collected(ctx)
		if err != nil {
			return err
		}
		each := func(now, then float64) float64 { return (now - then) / float64(b.Watchers) }
		add(fmt.Sprintf("%s watchers over HTTP/2 %s, each", report.Number(float64(b.Watchers)), what),
			report.Value{Name: "live", Unit: "KB", Number: each(idle.Live, before.Live), Bound: report.AtMost(watcherBytes)},
			report.Value{Name: "stacks", Unit: "KB", Number: each(idle.Stacks, before.Stacks)},
			report.Value{Name: "resident", Unit: "KB", Number: each(idle.Resident, before.Resident), Bound: report.AtMost(watcherBytes)})
		return nil
	}
	if err := told("that have got nothing"); err != nil {
		return err
	}
	all, err := latencies(ctx, t, c, base, idleTold)
	if err != nil {
		return err
	}
	return told(fmt.Sprintf("after %d events (write → the last of them: p50 %s ms)", idleTold, report.Number(load.Quantile(all, 50))))
}
