// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package encryption

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	kmsapi "k8s.io/kms/apis/v2"
	kmsservice "k8s.io/kms/pkg/service"
)

// reconnect sets short retry intervals for a lost connection to a plug-in, since a call waits only a few seconds for
// it.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	MinConnectTimeout: time.Second,
}

// dial makes the client of the plug-in on a socket. It is closed when ctx ends. Calls wait for the connection until
// their own deadline.
func dial(ctx context.Context, socket string) (kmsservice.Service, error) {
	conn, err := grpc.NewClient("passthrough:///"+socket,
		grpc.WithAuthority("localhost"), // the only authority that all servers on sockets accept
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(reconnect),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("make client of %s: %w", socket, err)
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() }) // the error does not matter
	return &client{kmsapi.NewKeyManagementServiceClient(conn)}, nil
}

// client calls a plug-in through gRPC.
type client struct {
	kmsapi.KeyManagementServiceClient
}

// Status implements [kmsservice.Service].
func (c *client) Status(ctx context.Context) (*kmsservice.StatusResponse, error) {
	r, err := c.KeyManagementServiceClient.Status(ctx, &kmsapi.StatusRequest{})
	if err != nil {
		return nil, err
	}
	return &kmsservice.StatusResponse{Version: r.Version, Healthz: r.Healthz, KeyID: r.KeyId}, nil
}

// Encrypt implements [kmsservice.Service].
func (c *client) Encrypt(ctx context.Context, uid string, data []byte) (*kmsservice.EncryptResponse, error) {
	r, err := c.KeyManagementServiceClient.Encrypt(ctx, &kmsapi.EncryptRequest{Plaintext: data, Uid: uid})
	if err != nil {
		return nil, err
	}
	return &kmsservice.EncryptResponse{Ciphertext: r.Ciphertext, KeyID: r.KeyId, Annotations: r.Annotations}, nil
}

// Decrypt implements [kmsservice.Service].
func (c *client) Decrypt(ctx context.Context, uid string, q *kmsservice.DecryptRequest) ([]byte, error) {
	r, err := c.KeyManagementServiceClient.Decrypt(ctx,
		&kmsapi.DecryptRequest{Ciphertext: q.Ciphertext, Uid: uid, KeyId: q.KeyID, Annotations: q.Annotations})
	if err != nil {
		return nil, err
	}
	return r.Plaintext, nil
}
