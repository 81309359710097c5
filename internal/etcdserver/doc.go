// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package etcdserver serves a store engine by etcd's protocol, version 3: to etcdctl, to a kube-apiserver and to other clients of etcd. So
// data that is kept without etcd can be left at any time.
//
//	server.go       gRPC, TLS, limits
//	backend.go      reads of intervals of keys at one revision; keys and versions
//	kv.go           KV: Range, Put, DeleteRange, Compact
//	txn.go          KV: Txn
//	watch.go        Watch
//	lease.go        Lease
//	maintenance.go  Maintenance: Status, Snapshot; Cluster: MemberList
//	errors.go       the store's errors in etcd's words
//
// It is not an etcd. These are the limits:
//
//   - Keys are written below /registry/ only, and the key compact_rev_key, which is kept as /registry/compact_rev_key.
//   - A transaction that writes may compare only keys that it writes, and read only before or after all of its writes. That is what the
//     package kubernetes of etcd's client, kube-apiserver and etcdctl's put and del do. Transactions in transactions are refused.
//   - A watch that begins at the revision to which the history was compacted does not show deletions of that revision.
//   - A deletion of a range of keys deletes those that were there when it began.
//   - A key's version is exact at the newest revision of keys that were written here since the server began; otherwise it is 1 for keys
//     that have not changed since they were created, and 2 or more. Responses name its lease at the newest revision only.
//   - Leases live in memory. After a restart, one with an ID that the server has chosen is known by that, without its keys; keys
//     expire in any case. Keeping a lease alive writes its keys again: each gets a new revision.
//   - There are no users and roles, no alarms, no hashes, no defragmentation, no streamed ranges and no members to add.
package etcdserver
