// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mortise-dev/mortise/internal/apiserver/aggregate"
	"github.com/mortise-dev/mortise/internal/apiserver/aggregate/learn"
	"github.com/mortise-dev/mortise/internal/apiserver/discovery"
	"github.com/mortise-dev/mortise/internal/apiserver/externalmetrics"
)

// newLearner makes the learner, which reads the discovery of other servers, and the handler of the merged discovery documents.
func (s *Server) newLearner() error {
	s.learner = learn.New(learn.Options{Remotes: s.remotes, Changed: s.others.aggregator.Changed, Told: s.told, Log: s.opts.Log})
	s.documents = discovery.New(s.Kinds).With(s.learner.Discovery)
	return s.metrics.Registry().Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "aggregator_discovery_aggregation_count_total", Help: "[ALPHA] Counter of number of times discovery was aggregated",
	}, func() float64 { return float64(s.documents.Builds()) }))
}

// told reports to the aggregator whether the discovery of a registration's server could be read.
func (s *Server) told(r *learn.Remote, err error) {
	var reason, message string
	if err != nil {
		reason, message = "NotRead", err.Error()
		if t := (*learn.Trouble)(nil); errors.As(err, &t) {
			reason, message = t.Reason, t.URL+": "+message
		}
	}
	s.others.aggregator.Read(r.Name, r.Server, reason, message)
}

// remotes returns the group versions of other servers for the learner.
func (s *Server) remotes() []learn.Remote {
	services := s.others.aggregator.Services()
	out := make([]learn.Remote, 0, len(services)+1)
	routed := false
	if s.others.routes != nil {
		var r learn.Remote
		if r, routed = s.others.routes.Remote(); routed {
			out = append(out, r)
		}
	}
	for _, a := range services {
		if routed && a.Name == externalmetrics.Name {
			continue // it is one of the routes' servers
		}
		base := a.URL("")
		out = append(out, learn.Remote{
			Name: a.Name, Group: a.Group, Version: a.Version, GroupPriority: int(a.GroupPriority), VersionPriority: int(a.VersionPriority),
			Unavailable: !a.Available, Server: base.Host, State: fmt.Sprint(a.UID, a.Available, a.Epoch()), Base: base,
			Discovery: a.As(aggregate.Discovery()), OpenAPI: a.As(aggregate.OpenAPI()),
		})
	}
	return out
}
