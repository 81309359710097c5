// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/bench/report"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
)

const (
	floorTimes = 20_000
	floorBody  = 1200 // bytes of a request's or response's body, as of a ConfigMap of 1 KB
	floorBatch = 16   // writes that share a sync, with 16 clients
	floorSyncs = 200

	floorWatchers = fanWatchers / 8 // of each of client-go's eight connections in the row "clients"
)

// floor is what a server that does nothing else cannot avoid for a request of 1 KB, on this machine and in Go: CPU of the system calls, of
// TLS, of HTTP/2's frames and headers, and of a sixteenth of a synced write. Each is measured alone, on one thread.
//
// Of a watch event and of a list it is what sealing and writing them takes, many at once: the server reads nothing for them.
func floor(_ context.Context, _ *bench, add adder) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sockets, err := socketFloor()
	if err != nil {
		return fmt.Errorf("measure sockets: %w", err)
	}
	records, err := recordFloor()
	if err != nil {
		return fmt.Errorf("measure TLS: %w", err)
	}
	frames, err := frameFloor()
	if err != nil {
		return fmt.Errorf("measure HTTP/2: %w", err)
	}
	syncs, err := syncFloor()
	if err != nil {
		return fmt.Errorf("measure synced writes: %w", err)
	}
	bulk, err := bulkFloor()
	if err != nil {
		return fmt.Errorf("measure long answers: %w", err)
	}
	value := func(name string, n float64) report.Value { return report.Value{Name: name, Unit: "µs", Number: n} }
	read := sockets + records + frames
	add("the least CPU of a GET of 1 KB", value("", read), value("a read and a write of a socket", sockets),
		value("two TLS records", records), value("HTTP/2 frames and headers", frames))
	add("the least CPU of a create of 1 KB, 16 clients", value("", read+syncs), value("a sixteenth of a synced write", syncs))
	add(fmt.Sprintf("the least CPU of a watch event of 1 KB, to %d watchers of a connection at once", floorWatchers),
		value("", bulk/floorWatchers))
	add("the least CPU of a megabyte of a list", value("", bulk*(1<<20)/(floorWatchers*floorBody)))
	return nil
}

// each returns the CPU of this thread that one of n calls takes, in microseconds.
func each(n int, do func(i int) error) (float64, error) {
	var before, after unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &before); err != nil {
		return 0, err
	}
	for i := range n {
		if err := do(i); err != nil {
			return 0, err
		}
	}
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &after); err != nil {
		return 0, err
	}
	return float64(after.Nano()-before.Nano()) / 1000 / float64(n), nil
}

// socketFloor is a write to a connection of loopback, and the read of it at the other end: a server does one of each.
func socketFloor() (float64, error) {
	a, b, err := loopback()
	if err != nil {
		return 0, err
	}
	defer a.Close()
	defer b.Close()
	out, in := make([]byte, floorBody), make([]byte, floorBody)
	return each(floorTimes, func(int) error {
		if _, err := a.Write(out); err != nil {
			return err
		}
		_, err := io.ReadFull(b, in)
		return err
	})
}

// loopback is both ends of a connection.
func loopback() (a, b net.Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	if b, err = l.Accept(); err != nil {
		return nil, nil, errors.Join(err, a.Close())
	}
	return a, b, nil
}

// recordFloor is a TLS record sealed and opened, without the system calls.
func recordFloor() (float64, error) {
	material, err := serving.LoadOrCreate("", []string{"127.0.0.1"}, serving.Options{})
	if err != nil {
		return 0, err
	}
	a, b, err := loopback()
	if err != nil {
		return 0, err
	}
	defer a.Close()
	defer b.Close()
	kept := &keptConn{Conn: a}
	client := tls.Client(kept, &tls.Config{RootCAs: material.CA.Pool(), ServerName: "127.0.0.1", DynamicRecordSizingDisabled: true})
	server := &keptConn{Conn: b}
	opened := tls.Server(server, &tls.Config{Certificates: []tls.Certificate{material.Server.TLS()}})
	done := make(chan error, 1)
	go func() { done <- opened.Handshake() }()
	if err := errors.Join(client.Handshake(), <-done); err != nil {
		return 0, err
	}
	kept.aside = &server.ahead // from now on what one end writes is what the other one reads
	out, in := make([]byte, floorBody), make([]byte, floorBody)
	return each(floorTimes, func(int) error {
		if _, err := client.Write(out); err != nil {
			return err
		}
		_, err := io.ReadFull(opened, in)
		return err
	})
}

// bulkFloor is what it takes to frame an event for each watcher of a connection, to seal all of them and to write them at once.
func bulkFloor() (n float64, err error) {
	a, b, err := loopback()
	if err != nil {
		return 0, err
	}
	defer a.Close()
	defer b.Close()
	var sealed bytes.Buffer
	out, err := sealer(&sealed)
	if err != nil {
		return 0, err
	}
	read := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, b)
		read <- err
	}()
	var frames bytes.Buffer
	f, event := http2.NewFramer(&frames, nil), make([]byte, floorBody)
	n, err = each(floorTimes/10, func(int) error {
		frames.Reset()
		sealed.Reset()
		for i := range floorWatchers {
			if err := f.WriteData(uint32(2*i+1), false, event); err != nil {
				return err
			}
		}
		if _, err := out.Write(frames.Bytes()); err != nil {
			return err
		}
		_, err := a.Write(sealed.Bytes())
		return err
	})
	return n, errors.Join(err, a.Close(), <-read)
}

// sealer is a TLS connection after its handshake, which writes to a buffer.
func sealer(to *bytes.Buffer) (*tls.Conn, error) {
	material, err := serving.LoadOrCreate("", []string{"127.0.0.1"}, serving.Options{})
	if err != nil {
		return nil, err
	}
	a, b := net.Pipe()
	kept := &keptConn{Conn: a}
	out := tls.Client(kept, &tls.Config{RootCAs: material.CA.Pool(), ServerName: "127.0.0.1", DynamicRecordSizingDisabled: true})
	done := make(chan error, 1)
	go func() {
		done <- tls.Server(b, &tls.Config{Certificates: []tls.Certificate{material.Server.TLS()}, SessionTicketsDisabled: true}).Handshake()
	}()
	if err := errors.Join(out.Handshake(), <-done); err != nil {
		return nil, err
	}
	kept.aside = to
	return out, nil
}

// keptConn is a connection that writes to a buffer once it has one, and reads what is in its own first.
type keptConn struct {
	net.Conn
	aside *bytes.Buffer
	ahead bytes.Buffer
}

func (c *keptConn) Write(p []byte) (int, error) {
	if c.aside != nil {
		return c.aside.Write(p)
	}
	return c.Conn.Write(p)
}

func (c *keptConn) Read(p []byte) (int, error) {
	if c.ahead.Len() > 0 {
		return c.ahead.Read(p)
	}
	return c.Conn.Read(p)
}

// frameFloor is a request's headers and body read as frames, and a response's written.
func frameFloor() (float64, error) {
	var wire, block bytes.Buffer
	f := http2.NewFramer(&wire, &wire)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	headers, body := hpack.NewEncoder(&block), make([]byte, floorBody)
	return each(floorTimes, func(i int) error {
		block.Reset()
		for _, h := range []hpack.HeaderField{{Name: ":status", Value: "200"}, {Name: "content-type", Value: "application/json"},
			{Name: "cache-control", Value: "no-cache, private"}, {Name: "audit-id", Value: fmt.Sprint("8a2b6c1e-", i)},
			{Name: "content-length", Value: fmt.Sprint(floorBody)}} {
			if err := headers.WriteField(h); err != nil {
				return err
			}
		}
		stream := uint32(2*i + 1)
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true}); err != nil {
			return err
		}
		if err := f.WriteData(stream, true, body); err != nil {
			return err
		}
		for range 2 {
			if _, err := f.ReadFrame(); err != nil {
				return err
			}
		}
		return nil
	})
}

// syncFloor is the share of one write of a synced batch.
func syncFloor() (n float64, err error) {
	dir, err := os.MkdirTemp("", "mortise-bench-floor-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	f, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	batch := make([]byte, floorBatch*floorBody)
	if err := errors.Join(f.Truncate(int64(floorSyncs*len(batch))), f.Sync()); err != nil {
		return 0, err
	}
	n, err = each(floorSyncs, func(i int) error {
		if _, err := f.WriteAt(batch, int64(i*len(batch))); err != nil {
			return err
		}
		return unix.Fdatasync(int(f.Fd()))
	})
	return n / floorBatch, err
}
