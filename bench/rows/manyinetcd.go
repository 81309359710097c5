// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

const (
	opens      = 3   // how often each server is opened
	pageOfMany = 500 // objects: what informers and kubectl read at once
)

// opened is what a server on many objects took.
type opened struct {
	ready, list    float64   // seconds until it was ready, and until all objects were listed after that
	idle, resident float64   // MB when ready, and after all were listed and garbage was collected
	readies        []float64 // all of them
}

// manyInEtcd opens Mortise and kube-apiserver by turns on one etcd, in which each has as many objects as the other.
func manyInEtcd(ctx context.Context, b *bench, add adder) (err error) {
	if !isDirectory(b.peer) {
		return errors.New("needs -peer with the directory of kube-apiserver and etcd")
	}
	e, err := load.StartEtcd(ctx, b.peer, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Stop()) }()
	s, err := startOnEtcd(ctx, b, e) // creates what each cluster has
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	first, err := load.StartUpstreamOn(ctx, b.peer, e, upstreamPrefix)
	if err != nil {
		return err
	}
	if err := first.Stop(); err != nil {
		return err
	}
	began := time.Now()
	for _, prefix := range []string{mortisePrefix, upstreamPrefix} {
		if err := e.ConfigMaps(ctx, prefix, b.Objects, kilobyte); err != nil {
			return err
		}
	}
	filled := time.Since(began)
	mine, peer := &opened{}, &opened{}
	for i := range opens {
		list := i == opens-1
		if err := s.Again(ctx, b.binary, append([]string{"--store", "etcd", "--etcd-servers", e.URL, "--etcd-prefix", mortisePrefix},
			load.Bare...)...); err != nil {
			return err
		}
		if err := mine.measure(ctx, b, &s.Target, s.Ready, list); err != nil {
			return err
		}
		u, err := load.StartUpstreamOn(ctx, b.peer, e, upstreamPrefix)
		if err != nil {
			return err
		}
		if err := errors.Join(peer.measure(ctx, b, &u.Target, u.Ready, list), u.Stop()); err != nil {
			return err
		}
	}
	n := report.Number(float64(b.Objects))
	beside := func(what, unit string, mine, peer float64, bound report.Bound) {
		add(fmt.Sprintf("%s, %s objects of 1 KB in etcd", what, n), report.Value{Unit: unit, Number: mine, Bound: bound},
			report.Value{Name: "kube-apiserver", Unit: unit, Number: peer})
	}
	beside("exec → ready", "s", mine.ready, peer.ready, report.AtMost(3))
	beside("resident memory when ready", "MB", mine.idle, peer.idle, report.Bound{})
	beside("all listed by pages of 500, after exec", "s", mine.ready+mine.list, peer.ready+peer.list, report.Bound{})
	beside("resident memory after that, garbage collected", "MB", mine.resident, peer.resident, report.AtMost(peer.resident/2))
	add("the same objects written into etcd twice, without a server", report.Value{Unit: "s", Number: filled.Seconds()})
	return nil
}

// measure books a start, whose time is the median of all, and lists the objects.
func (o *opened) measure(ctx context.Context, b *bench, t *load.Target, ready time.Duration, list bool) error {
	o.readies = append(o.readies, ready.Seconds())
	o.ready = medianOf(o.readies)
	const mb = 1 << 20
	resident, _, err := t.Memory()
	if err != nil {
		return err
	}
	o.idle = float64(resident) / mb
	if !list {
		return nil
	}
	client, err := t.Client(1)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	began := time.Now()
	n, err := paged(ctx, client, t.Config.Host+"/api/v1/namespaces/default/configmaps")
	if err != nil {
		return err
	}
	if n < b.Objects {
		return fmt.Errorf("the server lists %d objects of %d", n, b.Objects)
	}
	o.list = time.Since(began).Seconds()
	if _, err := t.Collected(ctx); err != nil {
		return err
	}
	resident, _, err = t.Memory()
	o.resident = float64(resident) / mb
	return err
}

// paged lists a collection as informers do that take pages, and counts the objects.
func paged(ctx context.Context, client *http.Client, base string) (n int, err error) {
	for next := ""; ; {
		page := fmt.Sprintf("%s?limit=%d&continue=%s", base, pageOfMany, url.QueryEscape(next))
		status, answer, err := load.Say(ctx, client, "GET", page, "", "")
		if err != nil {
			return 0, err
		}
		var list struct {
			Metadata struct{ Continue string }
			Items    []json.RawMessage
		}
		if err := json.Unmarshal(answer, &list); err != nil || status != http.StatusOK {
			return 0, errors.Join(fmt.Errorf("list: status %d: %.200s", status, answer), err)
		}
		n += len(list.Items)
		if next = list.Metadata.Continue; next == "" {
			return n, nil
		}
	}
}
