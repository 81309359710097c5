// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// FlowControl limits concurrent requests. Nil and zero fields have kube-apiserver's defaults.
type FlowControl struct {
	// PriorityAndFairness queues requests by flow schemas and priority levels; nil: true. If false, the following two numbers limit the
	// requests in flight.
	PriorityAndFairness *bool
	// MaxRequestsInflight limits read requests, MaxMutatingRequestsInflight others; their sum is the number of seats of all priority
	// levels. Nil: 400 and 200; 0: no limit.
	MaxRequestsInflight, MaxMutatingRequestsInflight *int
	// RequestTimeout is the timeout of requests other than watches and streams; nil: a minute.
	RequestTimeout *time.Duration
	// GoawayChance is the probability, from 0 to 0.02, that a request closes its HTTP/2 connection by GOAWAY, so that clients rebalance
	// over servers.
	GoawayChance float64
	// MaxStreams is the maximum number of concurrent requests on one HTTP/2 connection; nil: 1000.
	MaxStreams *int
	// HTTP2Server is what serves HTTP/2: HTTP2ServerMortise (the default), or HTTP2ServerGo, which takes more CPU.
	HTTP2Server string
	// Connections is the maximum number of open connections, ConnectionsPerClient that of one address other than the
	// machine's own; nil: 20000 and 2000; 0: no limit.
	Connections, ConnectionsPerClient *int
	// BodyBytes is the maximum of request bodies in memory, except those of administrators; nil: an eighth of the machine's
	// memory, from 64 MiB to 1 GiB; 0: no limit.
	BodyBytes *int64
	// Watches is the maximum number of open watches and streams of one user, except administrators; nil: 10000; 0: no
	// limit.
	Watches *int
}

// The defaults of flags that are not set.
const (
	MaxRequestsInflight, MaxMutatingRequestsInflight = 400, 200
	RequestTimeout                                   = time.Minute
	MaxStreams                                       = 1000
	Connections, ConnectionsPerClient                = 20_000, 2_000
	Watches                                          = 10_000
	maxGoawayChance                                  = 0.02
)

// What serves HTTP/2.
const (
	HTTP2ServerGo      = "go"      // net/http
	HTTP2ServerMortise = "mortise" // a server of Mortise's own
)

func (o *FlowControl) addFlags(f *pflag.FlagSet) {
	addSwitch(f, &o.PriorityAndFairness, "enable-priority-and-fairness", true,
		"Queue requests by flow schemas and priority levels. If false, the --max-*-inflight flags alone limit them.")
	f.Var(&numeral[int]{&o.MaxRequestsInflight, MaxRequestsInflight}, "max-requests-inflight",
		"Maximum number of read-only requests in flight. With --max-mutating-requests-inflight, the seats of all priority levels. 0 means no limit.")
	f.Var(&numeral[int]{&o.MaxMutatingRequestsInflight, MaxMutatingRequestsInflight}, "max-mutating-requests-inflight",
		"Maximum number of mutating requests in flight. With --max-requests-inflight, the seats of all priority levels. 0 means no limit.")
	f.Var(&span{&o.RequestTimeout, RequestTimeout}, "request-timeout",
		"Maximum duration of a request other than a watch or a stream. A request waits in a queue for at most a quarter of it.")
	f.Float64Var(&o.GoawayChance, "goaway-chance", o.GoawayChance,
		"Probability, from 0 to 0.02, that a request closes its HTTP/2 connection (GOAWAY) so that clients rebalance.")
	f.Var(&numeral[int]{&o.MaxStreams, MaxStreams}, "http2-max-streams-per-connection",
		"Maximum number of concurrent streams of an HTTP/2 connection.")
	f.StringVar(&o.HTTP2Server, "http2-server", cmp.Or(o.HTTP2Server, HTTP2ServerMortise),
		"What serves HTTP/2: mortise, its own server, or go, that of net/http, which takes more CPU.")
	f.Var(&numeral[int]{&o.Connections, Connections}, "max-connections", "Maximum number of open connections. 0 means no limit.")
	f.Var(&numeral[int]{&o.ConnectionsPerClient, ConnectionsPerClient}, "max-connections-per-client",
		"Maximum number of open connections from one address of another machine. 0 means no limit.")
	f.Var(&numeral[int64]{&o.BodyBytes, 0}, "max-request-bytes-inflight",
		"Maximum bytes of request bodies in memory. Default: an eighth of the memory, from 64 MiB to 1 GiB. 0 means no limit.")
	f.Var(&numeral[int]{&o.Watches, Watches}, "max-watches-per-user",
		"Maximum number of open watches and streams of a user. 0 means no limit.")
}

// Check refuses invalid settings.
func (o *FlowControl) Check() error {
	for name, v := range map[string]*int{
		"max-requests-inflight": o.MaxRequestsInflight, "max-mutating-requests-inflight": o.MaxMutatingRequestsInflight,
		"http2-max-streams-per-connection": o.MaxStreams, "max-connections": o.Connections, "max-connections-per-client": o.ConnectionsPerClient,
		"max-watches-per-user": o.Watches,
	} {
		if v != nil && *v < 0 {
			return fmt.Errorf("--%s can not be negative value", name) // upstream's words
		}
	}
	switch {
	case o.BodyBytes != nil && *o.BodyBytes < 0:
		return errors.New("--max-request-bytes-inflight can not be negative value")
	case o.RequestTimeout != nil && *o.RequestTimeout < 0:
		return errors.New("--request-timeout can not be negative value") // upstream's words
	case o.HTTP2Server != "" && o.HTTP2Server != HTTP2ServerGo && o.HTTP2Server != HTTP2ServerMortise:
		return fmt.Errorf("--http2-server is %q, must be %s or %s", o.HTTP2Server, HTTP2ServerGo, HTTP2ServerMortise)
	case o.GoawayChance < 0 || o.GoawayChance > maxGoawayChance:
		return errors.New("--goaway-chance can not be less than 0 or greater than 0.02") // upstream's words
	}
	if on := o.PriorityAndFairness; (on == nil || *on) && o.MaxRequestsInflight != nil && o.MaxMutatingRequestsInflight != nil &&
		*o.MaxRequestsInflight+*o.MaxMutatingRequestsInflight == 0 {
		return errors.New("--max-requests-inflight and --max-mutating-requests-inflight leave no seats for priority levels")
	}
	return nil
}
