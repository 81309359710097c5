// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package peerproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/transport"
)

const (
	// firstAsk and lastAsk bound the back-off of a question that fails. A server writes its address before it is ready to answer.
	firstAsk, lastAsk = 50 * time.Millisecond, 5 * time.Second
	// askTime bounds one question, dialTime a connection.
	askTime, dialTime = 10 * time.Second, 2 * time.Second
	// maxDocument bounds a server's discovery document: 2,000 definitions make some megabytes.
	maxDocument = 32 << 20
)

func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTime}
	return d.DialContext(ctx, network, address)
}

// ask asks a server what it serves until it answers or ctx ends.
func (p *Proxy) ask(ctx context.Context, id string, at netip.AddrPort) {
	for pause := firstAsk; ; pause = min(2*pause, lastAsk) {
		s, err := p.fetch(ctx, id, at)
		if err == nil {
			p.mu.Lock()
			if ctx.Err() == nil { // nothing newer is known
				p.set(id, s)
			}
			p.mu.Unlock()
			return
		}
		if ctx.Err() == nil {
			p.metrics.unread.WithLabelValues("fetch_discovery").Inc()
			p.o.Log.DebugContext(ctx, "Could not ask another server what it serves, retrying", "server", id, "address", at, "error", err)
		}
		if !wait(ctx, pause) {
			return
		}
	}
}

// fetch reads a server's discovery documents.
func (p *Proxy) fetch(ctx context.Context, id string, at netip.AddrPort) (*Server, error) {
	s := &Server{ID: id, Address: at, resources: map[schema.GroupVersionResource]bool{}}
	var all []apidiscoveryv2.APIGroupDiscovery
	before := p.o.Shared(ctx) // some may be deleted while the server answers, and others created
	for _, path := range []string{"/api", "/apis"} {
		list, err := p.document(ctx, at, path)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		all = append(all, list.Items...)
	}
	after := p.o.Shared(ctx)
	for _, g := range all {
		g.Versions = slices.DeleteFunc(g.Versions, func(v apidiscoveryv2.APIVersionDiscovery) bool {
			gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
			return before[gv] || after[gv]
		})
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				s.resources[schema.GroupVersionResource{Group: g.Name, Version: v.Version, Resource: r.Resource}] = true
			}
		}
		if g.Name != "" && len(g.Versions) > 0 {
			s.Groups = append(s.Groups, g)
		}
	}
	return s, ctx.Err()
}

// document reads one document: what the server itself serves, if it can tell that apart.
func (p *Proxy) document(ctx context.Context, at netip.AddrPort, path string) (*apidiscoveryv2.APIGroupDiscoveryList, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+at.String()+path, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", discovery.AcceptV2NoPeer+","+discovery.AcceptV2)
	r.Header.Set(Header, "true")
	transport.SetAuthProxyHeaders(r, user.APIServerUser, user.APIServerUser, []string{user.AllAuthenticated}, nil)
	resp, err := p.transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	p.metrics.rerouted.WithLabelValues(strconv.Itoa(resp.StatusCode), "", "", "").Inc()
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("it answers with status %d", resp.StatusCode)
	case len(body) > maxDocument:
		return nil, errors.New("the document is too large")
	}
	list := &apidiscoveryv2.APIGroupDiscoveryList{}
	if err := json.Unmarshal(body, list); err != nil {
		return nil, fmt.Errorf("decode it: %w", err)
	}
	return list, nil
}
