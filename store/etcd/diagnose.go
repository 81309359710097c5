// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"time"
)

// dialTime bounds one connection of a diagnosis, alertTime the wait for a member that refuses a certificate after the handshake.
const dialTime, alertTime = 2 * time.Second, 200 * time.Millisecond

// diagnose connects to each server and returns why that fails, nil if one can be reached. The client itself only says that its time was up.
// Refused reports whether certificates are the reason at all of them.
func diagnose(ctx context.Context, servers []string, config *tls.Config) (reason error, refused bool) {
	refused = true
	for _, s := range servers {
		err := connect(ctx, s, config)
		if err == nil {
			return nil, false
		}
		refused = refused && rejected(err)
		reason = errors.Join(reason, fmt.Errorf("%s: %w", s, err))
	}
	return reason, refused
}

// connect makes a connection as the client does.
func connect(ctx context.Context, server string, config *tls.Config) error {
	u, err := url.Parse(server)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	defer c.Close()
	if u.Scheme != "https" {
		return nil
	}
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	config = config.Clone()
	config.ServerName, config.NextProtos = u.Hostname(), []string{"h2"}
	secure := tls.Client(c, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("tls: handshake: %w", err)
	}
	if err := c.SetReadDeadline(time.Now().Add(alertTime)); err != nil {
		return err
	}
	// In TLS 1.3, a member refuses the client's certificate by what it sends next.
	if _, err := secure.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// rejected reports whether one of the two sides has refused the other's certificate.
func rejected(err error) bool {
	var alert tls.AlertError
	var verification *tls.CertificateVerificationError
	var refused *net.OpError
	return errors.As(err, &verification) || errors.As(err, &alert) || errors.As(err, &refused) && refused.Op == "remote error"
}
