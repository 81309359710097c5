// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

// narrowWatchers watch the pods of one node each, as kubelets do.
const narrowWatchers = 2000

// received counts bytes.
type received struct{ atomic.Int64 }

// Write implements [io.Writer].
func (r *received) Write(p []byte) (int, error) {
	r.Add(int64(len(p)))
	return len(p), nil
}

// besideKubelets measures creates of pods, each of a node, by some clients, while narrowWatchers others watch the pods of a node each.
func besideKubelets(writers int) comparison {
	return comparison{
		name: fmt.Sprint("kubelets", writers),
		what: fmt.Sprintf("create of a pod beside %d watches of a node's pods, %d client-go", narrowWatchers, writers),
		begin: func(ctx context.Context, b *bench, t *load.Target) (*contender, error) {
			return asKubelets(ctx, b, t, writers)
		},
	}
}

func asKubelets(ctx context.Context, b *bench, t *load.Target, writers int) (*contender, error) {
	c := conversations()["pod"]
	c.next = numbered(func(base string, n int64) *load.Request {
		body := strings.Replace(pod(fmt.Sprint("k-", n)), `"spec":{`, fmt.Sprintf(`"spec":{"nodeName":"n-%d",`, n*7919%narrowWatchers), 1)
		return &load.Request{Method: "POST", Path: base, Media: jsonBody, Body: []byte(body)}
	})
	clients, err := t.Clients(load.JSON)
	if err != nil {
		return nil, err
	}
	watching, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	end := func() { cancel(); group.Wait(); clients.Close() }
	var seen received
	err = beginWatches(ctx, watching, narrowWatchers, func(i int) (*http.Client, string) {
		return clients.HTTP(i), fmt.Sprintf("%s/api/v1/pods?watch=1&timeoutSeconds=3600&fieldSelector=spec.nodeName%%3Dn-%d", t.Config.Host, i)
	}, func(body io.ReadCloser) {
		group.Go(func() {
			_, _ = io.Copy(&seen, body) // it ends when the measurement does
			_ = body.Close()
		})
	})
	if err != nil {
		end()
		return nil, err
	}
	one, err := c.begin(ctx, b, t, writers)
	if err != nil {
		end()
		return nil, err
	}
	return &contender{end: func() { one.end(); end() }, measure: func(ctx context.Context) ([]report.Value, error) {
		values, err := one.measure(ctx)
		if err == nil && seen.Load() == 0 {
			err = errors.New("no watch had an event")
		}
		return values, err
	}}, nil
}
