// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

// conversation is what a client on client-go says time and again.
type conversation struct {
	what  string
	media string  // that is asked for; empty: JSON
	share float64 // the budget of CPU, of upstream's
	upon  int     // how many objects are there before
	pods  bool    // of this kind, else ConfigMaps
	next  func(base string) func() *load.Request
}

const (
	sixth    = 1.0 / 6
	eighth   = 1.0 / 8
	jsonBody = load.JSON
)

// numbered calls make with 1, 2, 3 …
func numbered(make func(base string, n int64) *load.Request) func(base string) func() *load.Request {
	return func(base string) func() *load.Request {
		var serial atomic.Int64
		return func() *load.Request { return make(base, serial.Add(1)) }
	}
}

// oneOf is the path of one of the thousand objects that are there before.
func oneOf(base string, n int64) string { return fmt.Sprintf("%s/m-%d", base, n*7919%thousand+1) }

func conversations() map[string]conversation {
	return map[string]conversation{
		"create": {what: "create of 1 KB", share: sixth, next: numbered(func(base string, n int64) *load.Request {
			return &load.Request{Method: "POST", Path: base, Media: jsonBody, Body: []byte(configMap(fmt.Sprint("c-", n), kilobyte))}
		})},
		"update": {what: "update", share: sixth, upon: thousand, next: numbered(func(base string, n int64) *load.Request {
			path := oneOf(base, n)
			return &load.Request{Method: "PUT", Path: path, Media: jsonBody, Body: []byte(configMap(path[len(base)+1:], fmt.Sprint(n, kilobyte)))}
		})},
		"merge": {what: "merge patch", share: sixth, upon: thousand, next: numbered(func(base string, n int64) *load.Request {
			return &load.Request{Method: "PATCH", Path: oneOf(base, n), Media: "application/merge-patch+json",
				Body: fmt.Appendf(nil, `{"data":{"p":"%d"}}`, n)}
		})},
		"apply": {what: "apply, creating", share: eighth, next: numbered(func(base string, n int64) *load.Request {
			name := fmt.Sprint("a-", n)
			return &load.Request{Method: "PATCH", Path: base + "/" + name, Parameters: map[string]string{"fieldManager": "bench"},
				Media: "application/apply-patch+yaml", Body: []byte(configMap(name, kilobyte))}
		})},
		"reapply": {what: "apply, changing", share: eighth, upon: thousand, next: numbered(func(base string, n int64) *load.Request {
			path := oneOf(base, n)
			return &load.Request{Method: "PATCH", Path: path, Parameters: map[string]string{"fieldManager": "bench", "force": "true"},
				Media: "application/apply-patch+yaml", Body: []byte(configMap(path[len(base)+1:], fmt.Sprint(n, kilobyte)))}
		})},
		"get": {what: "GET", share: eighth, upon: thousand, next: numbered(func(base string, n int64) *load.Request {
			return &load.Request{Method: "GET", Path: oneOf(base, n)}
		})},
		"getprotobuf": {what: "GET, protobuf", media: load.Protobuf, share: eighth, upon: thousand,
			next: numbered(func(base string, n int64) *load.Request { return &load.Request{Method: "GET", Path: oneOf(base, n)} })},
		"pod": {what: "create of a pod", share: sixth, pods: true, next: numbered(func(base string, n int64) *load.Request {
			return &load.Request{Method: "POST", Path: base, Media: jsonBody, Body: []byte(pod(fmt.Sprint("p-", n)))}
		})},
		"list":         {what: "LIST of 5,000 pods, JSON", share: tenth, pods: true, upon: pods, next: listed},
		"listprotobuf": {what: "LIST of 5,000 pods, protobuf", media: load.Protobuf, share: eighth, pods: true, upon: pods, next: listed},
	}
}

func listed(base string) func() *load.Request {
	return func() *load.Request { return &load.Request{Method: "GET", Path: base} }
}

// asClients are the lines of the row: how many clients say what.
func asClients() (all []comparison) {
	known := conversations()
	for _, line := range []struct {
		clients int
		name    string
	}{
		{1, "create"}, {16, "create"}, {128, "create"}, {16, "update"}, {16, "merge"}, {16, "apply"}, {16, "reapply"}, {16, "get"},
		{16, "getprotobuf"}, {16, "pod"}, {1, "list"}, {8, "list"}, {1, "listprotobuf"}, {8, "listprotobuf"},
	} {
		c := known[line.name]
		all = append(all, comparison{
			name: fmt.Sprint(line.name, line.clients),
			what: fmt.Sprintf("%s, %d client-go", c.what, line.clients),
			begin: func(ctx context.Context, b *bench, t *load.Target) (*contender, error) {
				return c.begin(ctx, b, t, line.clients)
			},
		})
	}
	return append(all, comparison{
		name: "watch", what: fmt.Sprintf("watch event of 1 KB to %d watchers, client-go, writes included", fanWatchers), begin: fanning,
	}, comparison{
		name: "paced", what: fmt.Sprintf("the same, at most %d writes a second", pacedWrites), begin: fanningPaced,
	}, besideKubelets(1), besideKubelets(16))
}

// begin makes what is there before, and connects the clients.
func (c *conversation) begin(ctx context.Context, b *bench, t *load.Target, n int) (*contender, error) {
	base, err := c.prepare(ctx, b, t)
	if err != nil {
		return nil, err
	}
	media := c.media
	if media == "" {
		media = load.JSON
	}
	clients, err := t.Clients(media)
	if err != nil {
		return nil, err
	}
	next := c.next(base)
	return &contender{end: clients.Close, measure: func(ctx context.Context) ([]report.Value, error) {
		r, err := load.Repeat(ctx, t, n, b.length(), func(ctx context.Context, loop int) error {
			_, err := load.Send(ctx, clients.Of(loop), next())
			return err
		})
		return []report.Value{
			{Unit: "/s", Number: r.Rate}, {Name: "CPU", Unit: "µs", Number: 1000 * r.Cpu, Bound: report.ShareOf(0, c.share)},
			{Name: "p50", Unit: "ms", Number: r.P50}, {Name: "p99", Unit: "ms", Number: r.P99},
		}, err
	}}, nil
}

// prepare makes a namespace with the objects that there are before, by clients on client-go, and returns the path of its objects. All lists
// are of the same pods.
func (c *conversation) prepare(ctx context.Context, b *bench, t *load.Target) (string, error) {
	if base := b.podsOf[t]; base != "" && c.pods && c.upon > 0 {
		return base, nil
	}
	ns, err := t.Namespace(ctx)
	if err != nil {
		return "", err
	}
	base := "/api/v1/namespaces/" + ns
	if !c.pods {
		base += "/configmaps"
		return base, fillAs(ctx, t, base, c.upon, func(i int) string { return configMap(fmt.Sprintf("m-%d", i), kilobyte) })
	}
	base += "/pods"
	if c.upon > 0 {
		if b.podsOf == nil {
			b.podsOf = map[*load.Target]string{}
		}
		b.podsOf[t] = base
	}
	return base, fillPods(ctx, t, base, c.upon)
}

// fillPods makes pods as clients on client-go do.
func fillPods(ctx context.Context, t *load.Target, base string, n int) error {
	return fillAs(ctx, t, base, n, func(i int) string { return pod(fmt.Sprintf("web-5d59d67564-%05d", i)) })
}

// fillAs makes objects as clients on client-go do.
func fillAs(ctx context.Context, t *load.Target, base string, n int, body func(i int) string) error {
	clients, err := t.Clients(load.JSON)
	if err != nil {
		return err
	}
	defer clients.Close()
	return load.ManyTimes(ctx, 16, n, func(ctx context.Context, loop, i int) error {
		_, err := load.Send(ctx, clients.Of(loop), &load.Request{Method: "POST", Path: base, Media: load.JSON, Body: []byte(body(i))})
		return err
	})
}

func fanning(ctx context.Context, b *bench, t *load.Target) (*contender, error) {
	return fanningShare(ctx, b, t, 1.0/4)
}

// fanningShare measures the CPU of an event. The share is its budget, of upstream's.
func fanningShare(ctx context.Context, b *bench, t *load.Target, share float64) (*contender, error) {
	return fanningTo(ctx, t, flooding{length: b.length()}, share)
}

// pacedWrites are the writes a second that are to reach all watchers, if the machine is fast enough.
const pacedWrites = 1000

// fanningPaced measures the CPU of an event of paced writes.
func fanningPaced(ctx context.Context, b *bench, t *load.Target) (*contender, error) {
	return fanningTo(ctx, t, flooding{length: b.length(), every: time.Second * writers / pacedWrites}, 1.0/4)
}

// fanningTo prepares 200 watchers on the connections of client-go, which see what a flood writes.
func fanningTo(ctx context.Context, t *load.Target, f flooding, share float64) (*contender, error) {
	base, err := stored(ctx, t, 16)
	if err != nil {
		return nil, err
	}
	clients, err := t.Clients(load.JSON)
	if err != nil {
		return nil, err
	}
	c, err := gatherBy(ctx, base, fanWatchers, clients.HTTP)
	if err != nil {
		clients.Close()
		return nil, err
	}
	return &contender{end: func() { c.close(); clients.Close() }, measure: func(ctx context.Context) ([]report.Value, error) {
		events, elapsed, cpu, err := flood(ctx, t, c, base, f)
		delivered := float64(events * fanWatchers)
		return []report.Value{
			{Unit: "/s", Number: delivered / elapsed.Seconds()},
			{Name: "CPU", Unit: "µs", Number: float64(cpu.Microseconds()) / delivered, Bound: report.ShareOf(0, share)},
		}, err
	}}, nil
}

// burst is what 5,000 pods that clients on client-go create and list leave in memory.
func burst(ctx context.Context, b *bench, t *load.Target, add adder) error {
	ns, err := t.Namespace(ctx)
	if err != nil {
		return err
	}
	resting, _, err := t.Memory()
	if err != nil {
		return err
	}
	base := "/api/v1/namespaces/" + ns + "/pods"
	clients, err := t.Clients(load.JSON)
	if err != nil {
		return err
	}
	defer clients.Close()
	begun, err := t.Cpu()
	if err != nil {
		return err
	}
	_, most, err := t.Peak(func() error {
		if err := fillPods(ctx, t, base, pods); err != nil {
			return err
		}
		return load.ManyTimes(ctx, 8, 40, func(ctx context.Context, loop, _ int) error {
			_, err := load.Send(ctx, clients.Of(loop), &load.Request{Method: "GET", Path: base})
			return err
		})
	})
	if err != nil {
		return err
	}
	after, _, err := t.Memory()
	if err != nil {
		return err
	}
	ended, err := t.Cpu()
	if err != nil {
		return err
	}
	if err := while(ctx, clients.Of(0), restFor); err != nil {
		return err
	}
	later, _, err := t.Memory()
	mb := func(n int64) float64 { return float64(n) / (1 << 20) }
	add("resident memory after 5,000 pods were created and listed, client-go",
		report.Value{Unit: "MB", Number: mb(after), Bound: report.ShareOf(0, 1.0/4)},
		report.Value{Name: "before", Unit: "MB", Number: mb(resting)}, report.Value{Name: "most", Unit: "MB", Number: most},
		report.Value{Name: "12 s later", Unit: "MB", Number: mb(later)},
		report.Value{Name: "CPU of all", Unit: "s", Number: (ended - begun).Seconds()})
	return err
}

// while waits: a watch of which nothing comes, that the server itself ends.
func while(ctx context.Context, client *rest.RESTClient, seconds int) error {
	_, err := load.Send(ctx, client, &load.Request{Method: "GET", Path: "/api/v1/namespaces/default/configmaps", Parameters: map[string]string{
		"watch": "1", "timeoutSeconds": fmt.Sprint(seconds), "fieldSelector": "metadata.name=none",
	}})
	return err
}
