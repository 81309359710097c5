// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
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
	if u.Scheme != "https" {
		err := greet(ctx, u.Host)
		if errors.Is(err, errNoAnswer) && secure(ctx, u, &tls.Config{InsecureSkipVerify: true}) == nil { // nothing is sent by it
			return errTLS
		}
		if errors.Is(err, errNoAnswer) {
			return nil // it may be starting
		}
		return err
	}
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	err = secure(ctx, u, config)
	if err != nil && !rejected(err) && greet(ctx, u.Host) == nil {
		return errPlain
	}
	return err
}

// secure makes a connection with TLS.
func secure(ctx context.Context, u *url.URL, config *tls.Config) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	defer c.Close()
	config = config.Clone()
	config.ServerName, config.NextProtos = u.Hostname(), []string{"h2"}
	secured := tls.Client(c, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("tls: handshake: %w", err)
	}
	if err := c.SetReadDeadline(time.Now().Add(alertTime)); err != nil || config.InsecureSkipVerify {
		return err
	}
	// In TLS 1.3, a member refuses the client's certificate by what it sends next.
	if _, err := secured.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// errTLS and errPlain are of a member that speaks TLS where its URL says otherwise; errNoAnswer of one that ends a connection without TLS
// before it has said anything.
var (
	errTLS      = errors.New("the member speaks TLS, and its URL is http")
	errPlain    = errors.New("the member speaks no TLS, and its URL is https")
	errNoAnswer = errors.New("the member ends a connection without TLS")
)

// preface is how a client of HTTP/2 begins: with its magic and a frame of settings.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// greet makes a connection without TLS, and waits for the first byte of a server of HTTP/2.
func greet(ctx context.Context, host string) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil {
		return err
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return err
		}
	}
	first := make([]byte, 1)
	if _, err = io.WriteString(c, preface); err == nil {
		_, err = io.ReadFull(c, first)
	}
	if err != nil || first[0] != 0 { // a frame of settings has less than 64 KiB
		return errNoAnswer
	}
	return nil
}

// rejected reports whether one of the two sides has refused the other's certificate, or does not speak TLS at all.
func rejected(err error) bool {
	var alert tls.AlertError
	var verification *tls.CertificateVerificationError
	var refused *net.OpError
	if errors.Is(err, errTLS) || errors.Is(err, errPlain) {
		return true
	}
	return errors.As(err, &verification) || errors.As(err, &alert) || errors.As(err, &refused) && refused.Op == "remote error"
}
