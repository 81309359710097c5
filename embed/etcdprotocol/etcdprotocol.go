// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package etcdprotocol serves the store of an embed.Server by etcd's protocol, for [embed.Extensions.EtcdProtocol]: to etcdctl, and to a
// kube-apiserver, by which its data can be left. It brings what it needs to write snapshots of etcd with it; package embed does without.
//
// # Stability
//
// What this package exports only grows: a committed list of it is compared in a test, and a change that breaks a program is announced in a
// release before.
package etcdprotocol

import (
	"context"
	"net"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/internal/etcdserver"
)

// Serve serves a store on a listener until ctx ends, and closes the listener. It refuses one without TLS, other than of a Unix socket.
func Serve(ctx context.Context, l net.Listener, o embed.EtcdProtocol) error {
	return etcdserver.New(etcdserver.Options{Engine: o.Engine, Scratch: o.Scratch, URL: o.URL, TLS: o.TLS}).Serve(ctx, l)
}
