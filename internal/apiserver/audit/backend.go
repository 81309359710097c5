// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
)

// Mode determines whether a request waits for its events to be stored.
type Mode string

// The modes.
const (
	Batch          Mode = "batch"           // it does not wait; events are dropped when the buffer is full
	Blocking       Mode = "blocking"        // it waits; lost events are counted
	BlockingStrict Mode = "blocking-strict" // it waits, and is rejected if its first event is lost
)

// Names of the plug-ins in the error metric.
const (
	pluginLog      = "log"
	pluginWebhook  = "webhook"
	pluginBuffered = "buffered"
	pluginTruncate = "truncate"
)

// Truncate limits the sizes of events and of batches in bytes. The zero value sets no limits.
type Truncate struct{ Event, Batch int64 }

// fit shortens an event whose line is too long: it removes the objects, and if that does not suffice, drops the event.
// ok is false if it is dropped.
func (t Truncate) fit(e *auditinternal.Event, line []byte) (shorter []byte, ok bool) {
	if t.Event <= 0 || int64(len(line)) <= t.Event {
		return line, true
	}
	if e.Level.Less(auditinternal.LevelRequest) {
		return nil, false
	}
	short := *e
	short.RequestObject, short.ResponseObject = nil, nil
	short.Annotations = make(map[string]string, len(e.Annotations)+1)
	for k, v := range e.Annotations {
		short.Annotations[k] = v
	}
	short.Annotations["audit.k8s.io/truncated"] = "true"
	shorter = appendEvent(nil, &short)
	return shorter, int64(len(shorter)) <= t.Event
}

// Backend stores events.
type Backend interface {
	// take stores or queues an event. line is its encoding, which take must not retain. If take returns false, a strict
	// backend rejects the request.
	take(e *auditinternal.Event, line []byte) bool
	// run does the background work. When ctx ends, the backend accepts no more events; run returns when it has stored
	// all accepted ones.
	run(ctx context.Context)
	// bind sets the counters and the logger.
	bind(c *Counters, log *slog.Logger)
}

// duties are the common parts of backends.
type duties struct {
	counters *Counters
	log      *slog.Logger
}

func (d *duties) bind(c *Counters, log *slog.Logger) { d.counters, d.log = c, log }

// lost counts events that a plug-in did not store. It logs the first one, and then each doubling of the number.
func (d *duties) lost(plugin string, n int, err error) {
	total := d.counters.failed(plugin, n)
	if before := total - int64(n); before == 0 || bits(before) != bits(total) {
		d.log.Error("Lost audit events", "plugin", plugin, "events", total, "error", err)
	}
}

func bits(n int64) (b int) {
	for ; n > 0; n >>= 1 {
		b++
	}
	return b
}

// LogOptions are the options of [NewLog].
type LogOptions struct {
	Mode     Mode
	Legacy   bool // one line of text per event instead of JSON
	Truncate Truncate
	// Buffer is the number of events to buffer in batch mode.
	Buffer int
}

// logger writes events to a file, one a line.
type logger struct {
	duties
	o     LogOptions
	out   io.Writer
	mu    sync.Mutex // guards out
	queue *queue     // in batch mode
}

// NewLog writes events to out. Only one goroutine at a time uses out. If out is a [File], the backend runs it, and
// closes it at the end.
func NewLog(out io.Writer, o LogOptions) Backend {
	l := &logger{o: o, out: out}
	if o.Mode == Batch {
		l.queue = newQueue(o.Buffer)
	}
	return l
}

func (l *logger) take(e *auditinternal.Event, line []byte) bool {
	line, ok := l.o.Truncate.fit(e, line)
	if !ok {
		l.lost(pluginTruncate, 1, errTooLarge)
		return true
	}
	if l.o.Legacy {
		line = append([]byte(audit.EventString(e)), '\n')
	}
	if l.queue != nil {
		if err := l.queue.put(line); err != nil {
			l.lost(pluginBuffered, 1, err)
		}
		return true
	}
	return l.write(line, 1) || l.o.Mode != BlockingStrict
}

func (l *logger) write(lines []byte, n int) bool {
	l.mu.Lock()
	_, err := l.out.Write(lines)
	l.mu.Unlock()
	if err != nil {
		l.lost(pluginLog, n, err)
	}
	return err == nil
}

func (l *logger) run(ctx context.Context) {
	var g sync.WaitGroup
	file, isFile := l.out.(*File)
	if isFile {
		g.Go(func() { file.Run(ctx) })
	}
	if l.queue != nil {
		g.Go(func() { l.drain(ctx) })
	}
	g.Wait()
	if isFile {
		<-ctx.Done()
		if err := file.Close(); err != nil {
			l.log.Error("Could not close the audit log", "error", err)
		}
	}
}

// writeAtOnce is the maximum number of queued bytes in one system call.
const writeAtOnce = 256 << 10

// drain writes queued events until ctx ends and the queue is empty.
func (l *logger) drain(ctx context.Context) {
	stop := context.AfterFunc(ctx, l.queue.close)
	defer stop()
	var lines []byte
	for first := range l.queue.lines {
		lines, n, size := append(lines[:0], first...), 1, len(first)
	more:
		for len(lines) < writeAtOnce {
			select {
			case line, ok := <-l.queue.lines:
				if !ok {
					break more
				}
				lines = append(lines, line...)
				n++
				size += len(line)
			default:
				break more
			}
		}
		l.write(lines, n)
		l.queue.done(size)
	}
}

// maxQueued limits the size of queued and unsent events in bytes, whatever their number.
const maxQueued = 64 << 20

// queue holds events until a backend takes them. put never blocks.
type queue struct {
	lines chan []byte
	bytes atomic.Int64 // of lines that were put and are not done

	mu     sync.RWMutex // read-locked by put, so that the channel is not closed meanwhile
	closed bool
}

func newQueue(n int) *queue { return &queue{lines: make(chan []byte, n)} }

// put queues a copy of a line.
func (q *queue) put(line []byte) error {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed {
		return errClosed
	}
	if q.bytes.Add(int64(len(line))) > maxQueued {
		q.bytes.Add(-int64(len(line)))
		return errFull
	}
	if len(q.lines) < cap(q.lines) { // otherwise the copy would be wasted
		select {
		case q.lines <- append([]byte(nil), line...):
			return nil
		default:
		}
	}
	q.bytes.Add(-int64(len(line)))
	return errFull
}

// done reports that lines of so many bytes have been stored or dropped.
func (q *queue) done(size int) { q.bytes.Add(-int64(size)) }

// close ends the queue. Its lines can still be taken.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.lines)
	}
}
