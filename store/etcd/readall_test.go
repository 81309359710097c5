// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/etcd/keyspace"
)

// streamer is an etcd with keys, which sends parts of two keys by RangeStream and then ends with an error, if it has one.
type streamer struct {
	pb.UnimplementedKVServer
	keys   []string
	parts  int // before the error
	err    error
	asked  []string // the keys that Range began at
	stream int      // calls of RangeStream
}

func (s *streamer) kvs(from []byte) (all []*mvccpb.KeyValue) {
	for _, key := range s.keys {
		if bytes.Compare([]byte(key), from) >= 0 {
			all = append(all, &mvccpb.KeyValue{Key: []byte(key), Value: []byte(key), ModRevision: 7})
		}
	}
	return all
}

func (s *streamer) RangeStream(r *pb.RangeRequest, to grpc.ServerStreamingServer[pb.RangeStreamResponse]) error {
	s.stream++
	parts := slices.Collect(slices.Chunk(s.kvs(r.Key), 2))
	for i, kvs := range parts {
		if s.err != nil && i == s.parts {
			return s.err
		}
		if err := to.Send(&pb.RangeStreamResponse{RangeResponse: &pb.RangeResponse{Kvs: kvs}}); err != nil {
			return err
		}
	}
	return s.err
}

func (s *streamer) Range(_ context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if r.Revision != 9 {
		return nil, fmt.Errorf("revision %d", r.Revision)
	}
	s.asked = append(s.asked, strings.TrimSuffix(string(r.Key), "\x00"))
	kvs := s.kvs(r.Key)
	more := len(kvs) > 3
	return &pb.RangeResponse{Header: &pb.ResponseHeader{}, Kvs: kvs[:min(len(kvs), 3)], More: more}, nil
}

// TestReadAll: all keys of a revision come once and in order: by one stream; by pages if etcd has none; by a stream and then pages if it
// breaks off. What etcd refuses, or who takes the keys, ends it.
func TestReadAll(t *testing.T) {
	var keys []string
	for i := range 9 {
		keys = append(keys, fmt.Sprint("/registry/k", i))
	}
	broken, enough := status.Error(codes.Unavailable, "the member ends"), errors.New("enough")
	for name, c := range map[string]struct {
		parts int
		err   error // of the stream
		stop  int   // takes so many keys
		asked []string
		want  error
	}{
		"a stream":            {},
		"an etcd of 3.6":      {err: status.Error(codes.Unimplemented, "unknown method"), asked: []string{"/registry/", keys[2], keys[5]}},
		"a stream that ends":  {parts: 2, err: broken, asked: []string{keys[3], keys[6]}},
		"a compacted history": {err: rpctypes.ErrGRPCCompacted, want: store.ErrCompacted},
		"a compaction amid":   {parts: 1, err: rpctypes.ErrGRPCCompacted, want: store.ErrCompacted},
		"a taker who stops":   {stop: 3, want: enough},
	} {
		t.Run(name, func(t *testing.T) {
			s := &streamer{keys: keys, parts: c.parts, err: c.err}
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer()
			pb.RegisterKVServer(server, s)
			var serving sync.WaitGroup
			serving.Go(func() { _ = server.Serve(listener) })
			defer serving.Wait()
			defer server.Stop()
			client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + listener.Addr().String()}, Logger: zap.NewNop()})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			var got []string
			err = readAll(t.Context(), client, keyspace.New(DefaultPrefix), 9, func(kv *mvccpb.KeyValue) error {
				if got = append(got, string(kv.Key)); len(got) == c.stop {
					return enough
				}
				return nil
			})
			if !errors.Is(err, c.want) || c.want == nil && (err != nil || !slices.Equal(got, keys)) {
				t.Errorf("%q, %v, want %v", got, err, c.want)
			}
			if s.stream != 1 || !slices.Equal(s.asked, c.asked) {
				t.Errorf("%d streams, pages from %q, want 1 and %q", s.stream, s.asked, c.asked)
			}
			if c.stop > 0 && len(got) != c.stop {
				t.Errorf("%d keys after the end", len(got)-c.stop)
			}
		})
	}
}
