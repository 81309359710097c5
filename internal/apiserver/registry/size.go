// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/mortise-dev/mortise/resource"
)

// An object may be as large as etcd takes it with its defaults, wherever it is kept: one that is accepted here fits there.
const (
	maxStored  = 1536 << 10 // of a transaction in etcd's log
	maxMessage = 2 << 20    // of the message that brings it
	// roomy is a value of which it is certain that it fits, without counting.
	roomy = 1 << 20
)

// checkSize refuses a value in the words in which etcd, or the client before it, refuses the transaction that stores it.
func checkSize(key string, value []byte, expect int64) error {
	if len(value) < roomy && len(key) < roomy/8 {
		return nil
	}
	switch n := transactionSize(len(key), len(value), expect); {
	case n > maxMessage:
		return fmt.Errorf("rpc error: code = ResourceExhausted desc = trying to send message larger than max (%d vs. %d)", n, maxMessage)
	case n > maxStored:
		return errors.New("etcdserver: request is too large")
	}
	return nil
}

// transactionSize is how long etcd's TxnRequest is that puts a value where the key is at a revision, and else gets it.
func transactionSize(key, value int, expect int64) int {
	field := func(n int) int { return 1 + protowire.SizeBytes(n) }
	n := field(2 + field(key) + 1 + protowire.SizeVarint(uint64(expect)))
	n += field(field(field(key) + field(value)))
	if expect > 0 {
		n += field(field(field(key)))
	}
	return n
}

// encode makes the stored bytes of an object. If there are too many and giveUpFields is set, it drops the managed fields.
func encode(k *Kind, key string, obj resource.Object, expect int64, giveUpFields bool) ([]byte, error) {
	data, err := k.Codec.Encode(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", key, err)
	}
	err = checkSize(key, data, expect)
	if err == nil || !giveUpFields || len(obj.GetManagedFields()) == 0 {
		return data, err
	}
	obj.SetManagedFields(nil)
	return encode(k, key, obj, expect, false)
}
