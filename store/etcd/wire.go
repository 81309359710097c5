// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"fmt"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/mortise-dev/mortise/store/etcd/internal/grpcconn"
)

// The methods of etcd's API that use the shared connection.
const (
	txnPath   = "/etcdserverpb.KV/Txn"
	rangePath = "/etcdserverpb.KV/Range"
	watchPath = "/etcdserverpb.Watch/Watch"
)

// encodings are buffers for requests.
var encodings = sync.Pool{New: func() any { return new([]byte) }}

// reply takes the one answer of a call.
type reply interface {
	grpcconn.Receiver
	// answered reports whether it has come.
	answered() bool
}

// ask sends a request and waits for its answer.
func ask(ctx context.Context, conn *grpcconn.Conn, path string, request proto.Message, to reply) error {
	buffer := encodings.Get().(*[]byte)
	encoded, err := proto.MarshalOptions{}.MarshalAppend((*buffer)[:0], request)
	if err != nil {
		return fmt.Errorf("encode request of etcd: %w", err)
	}
	s, err := conn.Begin(ctx, path, encoded, to)
	if cap(encoded) <= 64<<10 {
		*buffer = encoded
		encodings.Put(buffer)
	}
	if err != nil {
		return err
	}
	if err := s.Wait(ctx); err != nil {
		return err
	}
	if !to.answered() {
		return errUnanswered
	}
	return nil
}

var (
	errUnanswered = status.Error(codes.Internal, "etcd ends a call without an answer")
	errTwoAnswers = status.Error(codes.Internal, "etcd answers a call twice")
	errOtherCall  = status.Error(codes.Internal, "etcd answers another transaction than it was asked for")
)

// decoded is an answer that is decoded and no more.
type decoded struct {
	message proto.Message
	done    bool
}

// Receive implements [grpcconn.Receiver].
func (d *decoded) Receive(message []byte) error {
	if d.done {
		return errTwoAnswers
	}
	d.done = true
	return proto.Unmarshal(message, d.message)
}

func (d *decoded) answered() bool { return d.done }

// committed is a transaction's answer, of which the mirror hears first.
type committed struct {
	mirror   *mirror
	writes   []*write
	request  *pb.TxnRequest
	response *pb.TxnResponse
	done     bool
}

// Receive implements [grpcconn.Receiver].
func (c *committed) Receive(message []byte) error {
	if c.done {
		return errTwoAnswers
	}
	response := &pb.TxnResponse{}
	if err := proto.Unmarshal(message, response); err != nil {
		return err
	}
	asked := c.request.Failure
	if response.Succeeded {
		asked = c.request.Success
	}
	if response.Header == nil || len(response.Responses) != len(asked) {
		return errOtherCall
	}
	c.response, c.done = response, true
	if response.Succeeded {
		c.mirror.committed(c.writes, response)
	}
	return nil
}

func (c *committed) answered() bool { return c.done }

// The fields of a WatchResponse that come before its events, which etcd writes in the order of their numbers.
const (
	headerField, watchIDField, fragmentField, eventsField = 1, 2, 7, 11
	revisionField                                         = 3 // of the header
)

// eventsUntil returns the revision of an answer of a watch that has events, none of which is newer; 0 for all other answers. Decoding it
// costs more than that.
func eventsUntil(message []byte) (revision int64) {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return 0
		}
		message = message[n:]
		switch field {
		case headerField:
			header, n := protowire.ConsumeBytes(message)
			if n < 0 {
				return 0
			}
			revision, message = revisionOf(header), message[n:]
		case watchIDField, fragmentField:
			if n = protowire.ConsumeFieldValue(field, kind, message); n < 0 {
				return 0
			}
			message = message[n:]
		case eventsField:
			return revision
		default:
			return 0
		}
	}
	return 0
}

// revisionOf returns the revision of a header.
func revisionOf(header []byte) int64 {
	for len(header) > 0 {
		field, kind, n := protowire.ConsumeTag(header)
		if n < 0 {
			return 0
		}
		header = header[n:]
		if field == revisionField && kind == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(header)
			return int64(v)
		}
		if n = protowire.ConsumeFieldValue(field, kind, header); n < 0 {
			return 0
		}
		header = header[n:]
	}
	return 0
}
