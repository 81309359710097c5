// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/transport"

	"github.com/mortise-dev/mortise/extension"
)

// The server's identity for its own requests.
const (
	prober  = "system:kube-aggregator"
	reader  = "system:aggregator"
	masters = "system:masters"
)

// Discovery returns the user that reads a server's discovery documents and probes its availability.
func Discovery() user.Info { return &user.DefaultInfo{Name: prober, Groups: []string{masters}} }

// OpenAPI returns the user that reads a server's OpenAPI documents.
func OpenAPI() user.Info { return &user.DefaultInfo{Name: reader, Groups: []string{masters}} }

// As returns the transport to the server under a user's name: each call goes to one of its endpoints, and is recorded
// in the ledger.
func (s *Service) As(who user.Info) http.RoundTripper { return &named{s, who} }

type named struct {
	service *Service
	who     user.Info
}

// RoundTrip implements [http.RoundTripper].
func (n *named) RoundTrip(r *http.Request) (*http.Response, error) {
	host, err := n.service.host(r.Context())
	if err != nil {
		return nil, fmt.Errorf("find the server of %s: %w", n.service.Title(), err)
	}
	to := *r.URL
	to.Scheme, to.Host = "https", host
	out := r.Clone(r.Context())
	out.URL, out.Host = &to, host
	identify(out.Header, n.who)
	return n.service.send(out)
}

// identify sets the user's headers in h, and removes all other headers that name a user.
func identify(h http.Header, who user.Info) {
	transport.SetAuthProxyHeaders(&http.Request{Header: h}, who.GetName(), who.GetUID(), who.GetGroups(), who.GetExtra())
}

// send makes a call, whose headers name the user, through the ledger.
func (s *Service) send(r *http.Request) (*http.Response, error) {
	if s.way.err != nil {
		return nil, s.way.err
	}
	var resp *http.Response
	var own error
	err := s.aggregator.o.Ledger.Call(r.Context(), s.ref(), extension.Policy{}, func(ctx context.Context) error {
		resp, own = s.way.transport.RoundTrip(r.WithContext(ctx))
		switch {
		case own != nil && errors.Is(r.Context().Err(), context.Canceled):
			return nil // the client disconnected
		case own != nil:
			return own
		case resp.StatusCode >= http.StatusInternalServerError:
			return fmt.Errorf("answered with status %d", resp.StatusCode)
		}
		return nil
	})
	if own != nil {
		return nil, own
	}
	if resp == nil {
		return nil, err
	}
	return resp, nil
}
