// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"sync"

	"github.com/mortise-dev/mortise/internal/apiserver/aggregate"
	"github.com/mortise-dev/mortise/internal/apiserver/externalmetrics"
)

// others are the other servers that serve groups.
type others struct {
	aggregator *aggregate.Aggregator   // by APIServices
	routes     *externalmetrics.Routes // by routes of external metrics; nil: these are disabled
}

func newOthers(o aggregate.Options, routes bool) others {
	s := others{aggregator: aggregate.New(o)}
	if routes {
		o.Beside = s.aggregator
		s.routes = externalmetrics.New(externalmetrics.Options{Servers: o, Default: func() *aggregate.Service {
			return s.aggregator.Find("/apis/" + externalmetrics.Group + "/" + externalmetrics.Version)
		}})
	}
	return s
}

// run checks whether the servers respond, until ctx ends.
func (o *others) run(ctx context.Context) {
	var g sync.WaitGroup
	defer g.Wait()
	if o.routes != nil {
		g.Go(func() { o.routes.Run(ctx) })
	}
	o.aggregator.Run(ctx)
}

// find returns the other server that serves a path; nil: this server does. The error is why none can.
func (o *others) find(path string) (*aggregate.Service, error) {
	if o.routes != nil {
		if to, err := o.routes.Find(path); to != nil || err != nil {
			return to, err
		}
	}
	return o.aggregator.Find(path), nil
}

// discovers reports whether a path is that of the resources of several servers together.
func (o *others) discovers(path string) bool {
	return o.routes != nil && o.routes.Any() && externalmetrics.Discovers(path)
}

// serve reports whether other servers are asked for a path.
func (o *others) serve(path string) bool {
	to, err := o.find(path)
	return to != nil || err != nil || o.discovers(path)
}
