// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Patience is how long a row waits for what it caused.
const Patience = 10 * time.Minute

const (
	protobuf      = "application/vnd.kubernetes.protobuf"
	protobufNames = protobuf + ";stream=watch;as=PartialObjectMetadata;g=meta.k8s.io;v=v1" // namesAlone, in fewer bytes

	gatherFor  = 20 * time.Millisecond
	gatherMost = 1 << 20 // maximum bytes of one read
)

// UntilAdded reads a watch until n objects were added, and calls first with the first. From then on it looks once in 20 ms at what has
// come: it shares the processors with the server, and takes far more to be woken for an event than to count it. So the last may be seen
// 20 ms late, of which nothing is subtracted.
func UntilAdded(ctx context.Context, t *Target, url string, n int, first func() error) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	var begun atomic.Bool
	client, err := t.over(&http.Transport{
		TLSNextProto:       map[string]func(string, *tls.Conn) http.RoundTripper{},
		DisableCompression: true, ReadBufferSize: 64 << 10,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return dialSeldom(ctx, network, address, &begun)
		},
	})
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", protobufNames)
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if media := response.Header.Get("Content-Type"); response.StatusCode != http.StatusOK || !strings.HasPrefix(media, protobuf) {
		return fmt.Errorf("watch %s: status %d, %s", url, response.StatusCode, media)
	}
	err = countAdded(bufio.NewReaderSize(response.Body, 64<<10), n, func() error {
		begun.Store(true)
		return first()
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", url, errors.Join(err, ctx.Err()))
	}
	return nil
}

// countAdded reads events until n are of objects added. An event is its length in four bytes, then a metav1.WatchEvent, whose first
// field is its type; nothing else of it is looked at.
func countAdded(r *bufio.Reader, n int, first func() error) error {
	const (
		length = 4
		added  = "\x0a\x05ADDED"
		failed = "\x0a\x05ERROR"
	)
	for seen := 0; seen < n; {
		head, err := r.Peek(length + len(added)) // no type is shorter
		if err != nil {
			return fmt.Errorf("read event after %d of %d objects: %w", seen, n, err)
		}
		size := length + int(binary.BigEndian.Uint32(head))
		switch string(head[length:]) {
		case failed:
			return fmt.Errorf("the server ended it with an error after %d of %d objects", seen, n)
		case added:
			if seen++; seen == 1 {
				if err := first(); err != nil {
					return err
				}
			}
		}
		if _, err := r.Discard(size); err != nil {
			return fmt.Errorf("read event after %d of %d objects: %w", seen, n, err)
		}
	}
	return nil
}

// buffered is a connection that is read through a buffer.
type buffered struct {
	net.Conn
	reader *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.reader.Read(p) }

// dialSeldom makes a connection that is read once in a while from when begun is set.
func dialSeldom(ctx context.Context, network, address string, begun *atomic.Bool) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("dial %s: %s is not TCP", address, network), conn.Close())
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &buffered{conn, bufio.NewReaderSize(&seldom{conn: conn, raw: raw, begun: begun}, gatherMost)}, nil
}

// seldom reads what has come at a connection: once begun is set, what came in 20 ms.
type seldom struct {
	conn  net.Conn
	raw   syscall.RawConn
	begun *atomic.Bool
	told  bool // the kernel was
}

func (s *seldom) Read(p []byte) (int, error) {
	if !s.begun.Load() {
		return s.conn.Read(p)
	}
	if err := s.tell(); err != nil {
		return 0, err
	}
	for {
		<-time.After(gatherFor)
		n, err := 0, error(nil)
		if e := s.raw.Read(func(fd uintptr) bool { // does not wait
			n, err = unix.Read(int(fd), p)
			return true
		}); e != nil {
			return 0, e
		}
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("read connection: %w", err)
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// tell keeps the kernel from reporting small amounts of data to read: else the runtime is woken for each packet, though no
// goroutine waits for one.
func (s *seldom) tell() error {
	if s.told {
		return nil
	}
	s.told = true
	var err error
	if e := s.raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, gatherMost) }); e != nil {
		return e
	}
	if err != nil {
		return fmt.Errorf("set SO_RCVLOWAT: %w", err)
	}
	return nil
}
