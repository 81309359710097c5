// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package etcd runs the store engine etcd, and API servers on it, against clusters of three real etcd members on loopback: the store's
// conformance suite, two servers on one etcd, and members that are killed, stopped and brought back while clients write. It is a module of
// its own, so that etcd's server is none of Mortise's dependencies; server.mod has the version of etcd, apart from that of its client.
package etcd
