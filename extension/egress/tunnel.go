// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apiserver/pkg/server/egressselector/metrics"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
)

// tunnel asks a konnectivity server for a connection by gRPC. Each connection has a tunnel of its own, which ends with it.
func (p *proxy) tunnel(ctx context.Context, address string, stage *string) (net.Conn, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end) // until there is a connection
	t, err := client.CreateSingleUseGrpcTunnelWithContext(ctx, life, p.address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, p.network, p.address)
		}))
	if err != nil {
		end()
		return nil, err
	}
	*stage = metrics.StageProxy
	conn, err := t.DialContext(ctx, "tcp", address)
	if !stop() && err == nil {
		_ = conn.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		end()
		return nil, err
	}
	return &tunnelled{Conn: conn, end: end}, nil
}

// tunnelled is a connection through a tunnel of its own.
type tunnelled struct {
	net.Conn
	end context.CancelFunc
}

// Close implements [net.Conn].
func (c *tunnelled) Close() error {
	defer c.end()
	return c.Conn.Close()
}
