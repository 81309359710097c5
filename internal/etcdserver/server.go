// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/mortise-dev/mortise/store"
)

// The limits of requests and connections; those that etcd has are its defaults.
const (
	maxRequest = 3 << 19 // bytes of a request
	overhead   = 1 << 19 // bytes of its envelope
	maxStreams = 10_000  // requests and watches of one connection
	leastPause = 5 * time.Second
	stopWait   = 500 * time.Millisecond // for requests in progress when the server stops
)

// Options are the options of a Server. Engine is required.
type Options struct {
	// Engine keeps the keys, as they are: below encryption at rest.
	Engine store.Engine
	// Scratch is a directory with room for snapshots; empty: the system's for temporary files.
	Scratch string
	// URL is the address of the server in its list of members.
	URL string
	// TLS is the configuration of connections; it must require and verify client certificates. Nil: there is no TLS, and Serve refuses
	// listeners other than of Unix sockets.
	TLS *tls.Config
	Now func() time.Time // nil: time.Now
}

// Server serves an engine by etcd's protocol.
type Server struct {
	o    Options
	grpc *grpc.Server
}

// New returns a server.
func New(o Options) *Server {
	if o.Now == nil {
		o.Now = time.Now
	}
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxRequest + overhead), grpc.MaxSendMsgSize(math.MaxInt32), grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: leastPause, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
	}
	if o.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(o.TLS)))
	}
	s := &Server{o: o, grpc: grpc.NewServer(options...)}
	b := newBackend(o.Engine, o.Now)
	pb.RegisterKVServer(s.grpc, &kv{backend: b})
	pb.RegisterWatchServer(s.grpc, &watches{backend: b})
	pb.RegisterLeaseServer(s.grpc, &leases{backend: b})
	pb.RegisterMaintenanceServer(s.grpc, &maintenance{backend: b, scratch: o.Scratch})
	pb.RegisterClusterServer(s.grpc, &cluster{backend: b, url: o.URL})
	return s
}

// Serve serves a listener until ctx ends, and closes it. It refuses one whose clients it could not tell from others.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if c := s.o.TLS; c == nil && l.Addr().Network() != "unix" {
		return errors.Join(fmt.Errorf("serve etcd's protocol on %s: without TLS, want a Unix socket", l.Addr()), l.Close())
	} else if c != nil && (c.ClientAuth != tls.RequireAndVerifyClientCert || c.ClientCAs == nil) {
		return errors.Join(fmt.Errorf("serve etcd's protocol on %s: want TLS that verifies client certificates", l.Addr()), l.Close())
	}
	stopping := context.AfterFunc(ctx, func() {
		late := time.AfterFunc(stopWait, s.grpc.Stop) // watches do not end by themselves
		defer late.Stop()
		s.grpc.GracefulStop()
	})
	defer stopping()
	if err := s.grpc.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve etcd's protocol on %s: %w", l.Addr(), err)
	}
	return nil
}
