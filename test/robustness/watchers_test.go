// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package robustness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// last is where watches end.
type last struct {
	revision int64
	written  chan struct{} // closed when revision is set
}

// reached reports whether a watch has seen the last revision.
func (l *last) reached(revision int64) bool {
	select {
	case <-l.written:
		return revision >= l.revision
	default:
		return false
	}
}

// watch watches by connections that end after a moment, each to a server chosen at random from the resourceVersion on that was seen last,
// until it has seen the end.
func (r *recorder) watch(w Watch, seed uint64, end *last) {
	random := rand.New(rand.NewPCG(seed, uint64(w.Client)))
	late := time.Now().Add(2 * limit)
	at := w.After
	var all []*http.Client
	for range r.cluster.servers {
		all = append(all, r.cluster.client())
	}
	defer func() {
		for _, c := range all {
			c.CloseIdleConnections()
		}
	}()
	for !end.reached(at) {
		if time.Now().After(late) {
			r.test.Errorf("watch %d ends at %d, and not at %d", w.Client, at, end.revision)
			break
		}
		at = r.stream(&w, all, random, at, end)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Watches = append(r.history.Watches, w)
}

// stream watches by one connection, and returns the last resourceVersion that it has seen.
func (r *recorder) stream(w *Watch, clients []*http.Client, random *rand.Rand, at int64, end *last) int64 {
	server := random.IntN(len(clients))
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(50+random.IntN(700))*time.Millisecond)
	defer cancel()
	path := fmt.Sprintf("%s?watch=true&allowWatchBookmarks=true&resourceVersion=%d", r.path(), at)
	if w.Name != "" {
		path += "&fieldSelector=metadata.name%3D" + w.Name
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.cluster.url(server, path), nil)
	if err != nil {
		r.test.Error(err)
		return at
	}
	response, err := clients[server].Do(request)
	if err != nil || random.IntN(8) == 0 { // the connection may be dead
		defer clients[server].CloseIdleConnections()
		clients[server] = r.cluster.client()
	}
	if err != nil {
		return at
	}
	defer response.Body.Close()
	if response.StatusCode >= http.StatusInternalServerError || response.StatusCode == http.StatusTooManyRequests {
		return at
	}
	if response.StatusCode != http.StatusOK {
		r.test.Errorf("watch %d from %d at server %d: %s", w.Client, at, server, response.Status)
		return at
	}
	number := 0
	if len(w.Notes) > 0 {
		number = w.Notes[len(w.Notes)-1].Stream + 1
	}
	for decoder := json.NewDecoder(response.Body); !end.reached(at); {
		var e struct {
			Type   string `json:"type"`
			Object struct {
				configMap
				Code    int    `json:"code"`
				Message string `json:"message"`
			} `json:"object"`
		}
		if decoder.Decode(&e) != nil {
			return at
		}
		if e.Type == "ERROR" {
			if e.Object.Code < http.StatusInternalServerError {
				r.test.Errorf("watch %d from %d at server %d: %d %s", w.Client, at, server, e.Object.Code, e.Object.Message)
			}
			return at
		}
		object, err := e.Object.object()
		if err != nil {
			r.test.Errorf("watch %d: %+v: %v", w.Client, e, err)
			return at
		}
		w.Notes = append(w.Notes, Note{Type: e.Type, Name: object.Name, Value: object.Value, Revision: object.Revision,
			Server: fmt.Sprint(server), Stream: number})
		at = object.Revision
	}
	return at
}

// log reads from the store itself what has happened after a revision, up to another one.
func (r *recorder) log(ctx context.Context, after, until int64) (out []Event, err error) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), limit)
	defer cancel()
	prefix := "/registry/configmaps/" + r.namespace + "/"
	for ctx.Err() == nil {
		out = nil
		watch, end := context.WithCancel(ctx)
		for response := range r.cluster.etcd.Watch(watch, prefix, clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithRev(after+1)) {
			if err = response.Err(); err != nil {
				break
			}
			for _, e := range response.Events {
				event := Event{Revision: e.Kv.ModRevision, Name: strings.TrimPrefix(string(e.Kv.Key), prefix)}
				if e.PrevKv != nil {
					event.Previous = e.PrevKv.ModRevision
				}
				if e.Type == mvccpb.Event_PUT {
					if event.Value, err = stored(e.Kv.Value); err != nil {
						end()
						return nil, err
					}
				}
				if out = append(out, event); event.Revision == until {
					end()
					return out, nil
				}
			}
		}
		end() // a member may have no leader yet
	}
	return nil, errors.Join(err, ctx.Err())
}

// stored finds the value of the key v in a ConfigMap as it is stored, in protobuf: the entry of a map whose key is field 1, and value
// field 2.
func stored(text []byte) (string, error) {
	_, rest, found := bytes.Cut(text, []byte("\x0a\x01v\x12"))
	if !found || len(rest) == 0 || len(rest) <= int(rest[0]) {
		return "", fmt.Errorf("a ConfigMap without the key v is stored: %q", text)
	}
	return string(rest[1 : 1+rest[0]]), nil
}
