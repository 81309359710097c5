// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package keyspace translates between the store's keys and those of etcd under a prefix.
//
// # Stability
//
// Other programs may use this package. A committed list of what it exports is compared in a test, so that nothing changes by accident. A
// release may change it, and its notes announce the change.
package keyspace

import (
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// DefaultPrefix is kube-apiserver's default of --etcd-prefix.
const DefaultPrefix = "/registry"

// Root is the prefix of the store's keys that a prefix of etcd's takes the place of.
const Root = DefaultPrefix + "/"

// Keyspace translates between the store's keys and etcd's.
type Keyspace struct {
	prefix string // with a slash at its end; empty: keys are the same
}

// New returns the keyspace of a prefix. Empty: keys are those of etcd.
func New(prefix string) Keyspace {
	if prefix == "" {
		return Keyspace{}
	}
	return Keyspace{"/" + strings.Trim(prefix, "/") + "/"} // as kube-apiserver does
}

// Outer returns etcd's key of a store's key, and false if it has none.
func (k Keyspace) Outer(key string) (string, bool) {
	if k.prefix == "" || k.prefix == Root {
		return key, k.prefix == "" || strings.HasPrefix(key, Root)
	}
	rest, ok := strings.CutPrefix(key, Root)
	return k.prefix + rest, ok
}

// Inner returns the store's key of an etcd's key under the prefix.
func (k Keyspace) Inner(key []byte) string {
	if k.prefix == "" || k.prefix == Root {
		return string(key)
	}
	return Root + string(key[len(k.prefix):])
}

// Holds reports whether an etcd's key is under the prefix.
func (k Keyspace) Holds(key []byte) bool { return strings.HasPrefix(string(key), k.prefix) }

// First and End are the range of etcd's keys.
func (k Keyspace) First() string {
	if k.prefix == "" {
		return "\x00"
	}
	return k.prefix
}

func (k Keyspace) End() string {
	if k.prefix == "" {
		return "\x00" // all keys from the first on
	}
	return clientv3.GetPrefixRangeEnd(k.prefix)
}

// Any returns a key that the engine may read.
func (k Keyspace) Any() string { return k.First() }
