// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package robustness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// recorder takes down what clients do and see in one namespace.
type recorder struct {
	test      *testing.T
	cluster   *cluster
	namespace string
	began     time.Time

	mu      sync.Mutex
	history History
	writes  int           // acknowledged
	told    chan struct{} // closed and made anew when an operation was added
}

func (r *recorder) path() string { return "/api/v1/namespaces/" + r.namespace + "/configmaps" }

func (r *recorder) add(o Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Operations = append(r.history.Operations, o)
	if o.writes() && o.Outcome == Done {
		r.writes++
	}
	close(r.told)
	r.told = make(chan struct{})
}

// await waits until n more writes were acknowledged.
func (r *recorder) await(n int) error {
	late := time.After(limit)
	r.mu.Lock()
	want := r.writes + n
	r.mu.Unlock()
	for {
		r.mu.Lock()
		done, told := r.writes >= want, r.told
		r.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-told:
		case <-late:
			return fmt.Errorf("not %d writes were acknowledged within %s", n, limit)
		}
	}
}

// configMap is what is read of an object.
type configMap struct {
	Metadata struct {
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Data map[string]string `json:"data"`
}

func (m configMap) object() (Object, error) {
	revision, err := number(m.Metadata.ResourceVersion)
	return Object{Name: m.Metadata.Name, Value: m.Data["v"], Revision: revision}, err
}

func number(resourceVersion string) (revision int64, err error) {
	_, err = fmt.Sscan(resourceVersion, &revision)
	return revision, err
}

// answer is a response of any kind.
type answer struct {
	code int
	configMap
	Kind    string `json:"kind"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Details struct {
		Kind string `json:"kind"`
	} `json:"details"`
	Items    []configMap `json:"items"`
	Metadata struct {
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion"`
		Continue        string `json:"continue"`
	} `json:"metadata"`
}

// leastPatience, and up to morePatience, is how long a client waits for an answer.
const leastPatience, morePatience = time.Second, 4 * time.Second

// client sends one request after the other, each to a server chosen at random.
type client struct {
	*recorder
	id    int
	rand  *rand.Rand
	known map[string]int64 // the resourceVersions that it saw last
	seen  int64            // the newest of them
	http  []*http.Client   // by server
}

func newClient(r *recorder, id int, seed uint64) *client {
	c := &client{recorder: r, id: id, rand: rand.New(rand.NewPCG(seed, uint64(id))), known: map[string]int64{}}
	for range r.cluster.servers {
		c.http = append(c.http, r.cluster.client())
	}
	return c
}

func (c *client) close() {
	for _, h := range c.http {
		h.CloseIdleConnections()
	}
}

// anew gives up the connection to a server: one on which a request got lost may be dead.
func (c *client) anew(server int) {
	c.http[server].CloseIdleConnections()
	c.http[server] = c.cluster.client()
}

// run works until stop is closed.
func (c *client) run(stop <-chan struct{}) {
	defer c.close()
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		o := Operation{Client: c.id, Name: fmt.Sprint("k", c.rand.IntN(6))}
		o.Verb = []Verb{Create, Create, Create, Update, Update, Update, Update, Put, Put, Delete, Delete, Get, Get, List}[c.rand.IntN(14)]
		if o.Verb == Create || o.Verb == Update || o.Verb == Put {
			o.Value = fmt.Sprintf("%d-%d", c.id, n)
		}
		if o.Verb == List {
			o.Name = ""
		}
		if o.Expect = c.known[o.Name]; o.Verb == Update && o.Expect == 0 {
			o.Verb, o.Value = Get, ""
		}
		if o.Verb != Update && (o.Verb != Delete || c.rand.IntN(2) == 0) {
			o.Expect = 0
		}
		c.one(c.rand.IntN(len(c.http)), o, leastPatience+time.Duration(c.rand.Int64N(int64(morePatience))))
	}
}

// one sends one request and records what comes of it.
func (c *client) one(server int, o Operation, patience time.Duration) {
	o.Server = fmt.Sprint(server)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	o.Call = time.Since(c.began)
	a, err := c.send(ctx, server, o)
	o.Return = time.Since(c.began)
	var dial *net.OpError
	switch {
	case err != nil && errors.As(err, &dial) && dial.Op == "dial":
		return // it was not sent
	case err == nil && a.code == http.StatusGatewayTimeout && strings.Contains(a.Message, "Too large"):
		c.test.Errorf("%s at server %d: %s", describe(o), server, a.Message)
		return
	case err != nil, a.code >= http.StatusInternalServerError:
		c.anew(server)
		if o.Outcome = Unknown; o.writes() {
			c.add(o)
		}
		return
	case a.code == http.StatusTooManyRequests:
		return
	case a.code == http.StatusNotFound && a.Details.Kind == "configmaps":
		o.Outcome = NotFound
	case a.code == http.StatusConflict && (o.Verb == Create || o.Expect != 0):
		o.Outcome = Conflict
	case a.code == http.StatusConflict: // too many others were faster
		return
	case a.code == http.StatusOK, a.code == http.StatusCreated:
		o.Outcome = Done
	default:
		c.test.Errorf("%s at server %d: %d %s %s", describe(o), server, a.code, a.Reason, a.Message)
		return
	}
	whole, err := c.read(ctx, server, &o, a)
	if err != nil {
		c.test.Errorf("%s at server %d: %v", describe(o), server, err)
	}
	if whole {
		c.add(o)
	}
}

// read completes an operation by what the answer says. It reports false for a read whose rest got lost.
func (c *client) read(ctx context.Context, server int, o *Operation, a answer) (bool, error) {
	if o.Verb == List {
		return c.pages(ctx, server, o, a)
	}
	if delete(c.known, o.Name); o.Outcome != Done || o.Verb == Delete {
		return true, nil
	}
	a.configMap.Metadata.Name, a.configMap.Metadata.ResourceVersion = a.Metadata.Name, a.Metadata.ResourceVersion
	object, err := a.object()
	if err == nil && (object.Name != o.Name || o.writes() && object.Value != o.Value) {
		err = errors.New("another object is answered")
	}
	if err != nil {
		return false, fmt.Errorf("%+v: %w", object, err)
	}
	c.known[o.Name], c.seen = object.Revision, max(c.seen, object.Revision)
	if o.Verb == Get {
		o.Objects = []Object{object}
	} else {
		o.Revision = object.Revision
	}
	return true, nil
}

// pages reads the rest of a list, which comes from another server.
func (c *client) pages(ctx context.Context, server int, o *Operation, a answer) (bool, error) {
	var err error
	if o.Revision, err = number(a.Metadata.ResourceVersion); err != nil {
		return false, err
	}
	for {
		for _, item := range a.Items {
			object, err := item.object()
			if err != nil {
				return false, err
			}
			o.Objects = append(o.Objects, object)
		}
		if a.Metadata.Continue == "" {
			return true, nil
		}
		server = (server + 1) % len(c.http)
		a, err = c.ask(ctx, server, http.MethodGet, c.path()+"?limit=2&continue="+url.QueryEscape(a.Metadata.Continue), "", nil)
		if err != nil || a.code >= http.StatusInternalServerError || a.code == http.StatusTooManyRequests {
			c.anew(server)
			return false, nil
		}
		if a.code != http.StatusOK || a.Metadata.ResourceVersion != fmt.Sprint(o.Revision) {
			return false, fmt.Errorf("the next page of revision %d: %d %s, revision %s", o.Revision, a.code, a.Message, a.Metadata.ResourceVersion)
		}
	}
}

// send sends the request of an operation.
func (c *client) send(ctx context.Context, server int, o Operation) (answer, error) {
	at := c.path() + "/" + o.Name
	object := map[string]any{"metadata": map[string]any{"name": o.Name}, "data": map[string]any{"v": o.Value}}
	switch o.Verb {
	case Create:
		return c.ask(ctx, server, http.MethodPost, c.path(), "application/json", object)
	case Update:
		object["metadata"] = map[string]any{"name": o.Name, "resourceVersion": fmt.Sprint(o.Expect)}
		return c.ask(ctx, server, http.MethodPut, at, "application/json", object)
	case Put:
		if c.rand.IntN(2) == 0 {
			return c.ask(ctx, server, http.MethodPut, at, "application/json", object)
		}
		return c.ask(ctx, server, http.MethodPatch, at, "application/merge-patch+json", object)
	case Delete:
		options := map[string]any{"kind": "DeleteOptions", "apiVersion": "v1"}
		if o.Expect != 0 {
			options["preconditions"] = map[string]any{"resourceVersion": fmt.Sprint(o.Expect)}
		}
		return c.ask(ctx, server, http.MethodDelete, at, "application/json", options)
	case List:
		query := []string{"", "?limit=2", fmt.Sprintf("?resourceVersion=%d&resourceVersionMatch=NotOlderThan", c.seen)}[c.rand.IntN(3)]
		return c.ask(ctx, server, http.MethodGet, c.path()+query, "", nil)
	}
	return c.ask(ctx, server, http.MethodGet, at, "", nil)
}

// ask sends a request with a body of JSON, if it is not nil, and reads the answer.
func (c *client) ask(ctx context.Context, server int, method, path, mediaType string, body any) (a answer, err error) {
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return a, err
		}
		sent = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.cluster.url(server, path), sent)
	if err != nil {
		return a, err
	}
	r.Header.Set("Content-Type", mediaType)
	response, err := c.http[server].Do(r)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return a, err
	}
	a.code = response.StatusCode
	if err := json.Unmarshal(text, &a); err != nil && a.code < http.StatusInternalServerError {
		return a, fmt.Errorf("%d %s: %w", a.code, text, err)
	}
	return a, nil
}
