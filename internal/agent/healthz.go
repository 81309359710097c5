// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// listenHealthz opens the port of the node's health check; nil if none is configured.
func (n *node) listenHealthz(ctx context.Context) (net.Listener, error) {
	if *n.Kubelet.HealthzPort == 0 {
		return nil, nil
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(n.Kubelet.HealthzBindAddress, strconv.Itoa(int(*n.Kubelet.HealthzPort))))
	if err != nil {
		return nil, fmt.Errorf("listen for questions after the node's health: %w", err)
	}
	return listener, nil
}

// serveHealthz answers until ctx is done.
func (n *node) serveHealthz(ctx context.Context, listener net.Listener) error {
	if listener == nil {
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
	if err := AnswerPlain(ctx, listener, mux); err != nil {
		return fmt.Errorf("serve questions after the node's health: %w", err)
	}
	return nil
}

// AnswerPlain serves clients without TLS and authentication until ctx is done: the health pages of kubelet and kube-proxy.
func AnswerPlain(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 30 * time.Second}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) && ctx.Err() == nil {
		return err
	}
	return nil
}
