// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/server/egressselector/metrics"
)

// connect asks a proxy for a connection by HTTP CONNECT. A proxy that does not answer is given up when ctx ends.
func (p *proxy) connect(ctx context.Context, address string, stage *string) (net.Conn, error) {
	var conn net.Conn
	var err error
	if p.tls != nil {
		conn, err = (&tls.Dialer{Config: p.tls}).DialContext(ctx, p.network, p.address)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, p.network, p.address)
	}
	if err != nil {
		return nil, err
	}
	*stage = metrics.StageProxy
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err = p.ask(conn, address)
	if !stop() {
		err = cmp.Or(context.Cause(ctx), err)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// ask has the other end of conn become address. The errors are upstream's words.
func (p *proxy) ask(conn net.Conn, address string) error {
	if strings.ContainsAny(address, " \r\n") {
		return fmt.Errorf("address %q: want HOST:PORT", address)
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", address); err != nil {
		return fmt.Errorf("write CONNECT to %s via proxy %s: %w", address, p.address, err)
	}
	r := bufio.NewReader(io.LimitReader(conn, http.DefaultMaxHeaderBytes)) // a proxy may answer endlessly
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return fmt.Errorf("reading HTTP response from CONNECT to %s via proxy %s failed: %w", address, p.address, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("proxy error from %s while dialing %s, code %d: %v", p.address, address, resp.StatusCode, resp.Status)
	}
	if n := r.Buffered(); n > 0 { // the client of TLS and HTTP sends first
		return fmt.Errorf("unexpected %d bytes of buffered data from CONNECT proxy %q", n, p.address)
	}
	return nil
}
