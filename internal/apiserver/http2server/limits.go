// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import "time"

// The limits of a connection. Those that a configuration may change are in [Options].
const (
	// prefaceTime is how long a client may take to send its preface and first settings.
	prefaceTime = 10 * time.Second
	// lingerTime is how long, and lingerBytes how much of, a connection is read after a GOAWAY with an error, so that the client can read why.
	lingerTime  = time.Second
	lingerBytes = 1 << 20
	// maxControlFrames is how many frames that answer the client's (acknowledgements, resets, window updates) may wait to be written: a
	// client that sends and does not read is disconnected. It bounds floods of PING, SETTINGS and of requests that are refused.
	maxControlFrames = 10_000
	// queuedPerStream is how many requests may wait for each of the concurrent ones: a client that opens and resets streams faster than
	// handlers end is disconnected (rapid reset, CVE-2023-44487).
	queuedPerStream = 4
	// maxIdleFrames is how many frames without effect (pings, settings, priorities, empty data, unknown ones) a client may send for each
	// request, before it is disconnected.
	maxIdleFrames = 100_000
	// maxSettings is how many settings a frame may have: each may concern all streams.
	maxSettings = 100
	// maxOutput is how many bytes of frames may wait to be written before handlers that write more have to wait.
	maxOutput = 64 << 10
	// maxRounds is how many times in a row a goroutine writes what others have appended meanwhile.
	maxRounds = 8
	// maxPatience is how many times in a row a goroutine lets others append before it writes, although none has; maxYield is how long it
	// does so in all.
	maxPatience = 4
	maxYield    = 200 * time.Microsecond
	// longStep is how long a worker takes the steps of a connection's responses before it leaves them to another one.
	longStep = 5 * time.Millisecond
	// tableSize is the maximum size of the tables of header fields, RFC 7541's default.
	tableSize = 4096
	// readBuffer is the size of the buffer of a connection's reader.
	readBuffer = 4 << 10
	// maxWorkers is how many goroutines wait for requests; further ones end with their request.
	maxWorkers = 64
)

// Sizes of RFC 9113.
const (
	initialWindow     = 65535
	initialFrameBytes = 16384
	maxWindow         = 1<<31 - 1
)

// Options are what a configuration chooses. The zero value of a field means its default.
type Options struct {
	Streams      int           // concurrent requests of a connection; default 250
	HeaderBytes  int           // of a request, as RFC 9113 counts them; default 1 MiB
	FrameBytes   uint32        // of the largest frame that a client may send; default 16 KiB
	StreamWindow int32         // bytes of a request's body that may wait to be read; default 256 KiB
	ConnWindow   int32         // bytes of all bodies of a connection that may wait to be read; default 1 MiB
	Idle         time.Duration // how long a connection stays open without a request; 0: for ever
	// Take is how long a client may take nothing of what is written to it; 0: for ever.
	Take time.Duration
}

func (o Options) withDefaults() Options {
	if o.Streams <= 0 {
		o.Streams = 250
	}
	if o.HeaderBytes <= 0 {
		o.HeaderBytes = 1 << 20
	}
	o.FrameBytes = max(o.FrameBytes, initialFrameBytes)
	if o.StreamWindow <= 0 {
		o.StreamWindow = 256 << 10
	}
	if o.ConnWindow <= 0 {
		o.ConnWindow = 1 << 20
	}
	o.ConnWindow = max(o.ConnWindow, initialWindow)
	return o
}
