// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// root is the prefix of the store's keys that a prefix of etcd's takes the place of.
const root = DefaultPrefix + "/"

// keyspace translates between the store's keys and etcd's.
type keyspace struct {
	prefix string // with a slash at its end; empty: keys are the same
}

func newKeyspace(prefix string) keyspace {
	if prefix == "" {
		return keyspace{}
	}
	return keyspace{"/" + strings.Trim(prefix, "/") + "/"} // as kube-apiserver does
}

// outer returns etcd's key of a store's key, and false if it has none.
func (k keyspace) outer(key string) (string, bool) {
	if k.prefix == "" || k.prefix == root {
		return key, k.prefix == "" || strings.HasPrefix(key, root)
	}
	rest, ok := strings.CutPrefix(key, root)
	return k.prefix + rest, ok
}

// inner returns the store's key of an etcd's key under the prefix.
func (k keyspace) inner(key []byte) string {
	if k.prefix == "" || k.prefix == root {
		return string(key)
	}
	return root + string(key[len(k.prefix):])
}

// holds reports whether an etcd's key is under the prefix.
func (k keyspace) holds(key []byte) bool { return strings.HasPrefix(string(key), k.prefix) }

// first and end are the range of etcd's keys.
func (k keyspace) first() string {
	if k.prefix == "" {
		return "\x00"
	}
	return k.prefix
}

func (k keyspace) end() string {
	if k.prefix == "" {
		return "\x00" // all keys from the first on
	}
	return clientv3.GetPrefixRangeEnd(k.prefix)
}

// any returns a key that the engine may read.
func (k keyspace) any() string { return k.first() }
