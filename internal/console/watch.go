// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Bounds of the connections for watches.
const (
	mostWatches    = 64       // of one connection
	watchBytes     = 1 << 20  // of events of one watch that wait to be sent
	messageBytes   = 1 << 20  // of events in one message, but for one that is larger
	commandBytes   = 16 << 10 // of a message of the browser
	eventBytes     = 8 << 20  // of one event
	sendEvery      = 50 * time.Millisecond
	sendTime       = 30 * time.Second // for the browser to take a message
	pingEvery      = 30 * time.Second
	silence        = 90 * time.Second // without a message or an answer to a ping
	closeSignedOut = 4401
)

// Why a connection ends, beside an error of it.
var (
	errLeaving   = errors.New("the server ends")
	errSignedOut = errors.New("the session has ended")
)

// command is a message of the browser.
type command struct {
	ID    int64  `json:"id"`
	Path  string `json:"path"`
	Table bool   `json:"table"`
	Stop  bool   `json:"stop"`
}

// mostID is the largest number that JavaScript holds exactly.
const mostID = 1<<53 - 1

// parseCommand decodes a message of the browser.
func parseCommand(message []byte) (*command, *url.URL, error) {
	c := &command{}
	if err := json.Unmarshal(message, c); err != nil {
		return nil, nil, errors.New("a message is no JSON object of a watch")
	}
	switch {
	case c.ID < 1 || c.ID > mostID:
		return nil, nil, errors.New("an id is not a number from 1 to 2^53-1")
	case c.Stop && (c.Path != "" || c.Table):
		return nil, nil, errors.New("a stop has a path")
	case c.Stop:
		return c, nil, nil
	case !strings.HasPrefix(c.Path, "/api/") && !strings.HasPrefix(c.Path, "/apis/"):
		return nil, nil, errors.New("a path does not begin with /api/ or /apis/")
	}
	to, err := url.ParseRequestURI(c.Path)
	if err != nil || to.Host != "" || to.Scheme != "" || strings.ContainsAny(c.Path, "#") {
		return nil, nil, errors.New("a path is none of a request")
	}
	query, err := url.ParseQuery(to.RawQuery)
	if err != nil {
		return nil, nil, errors.New("a query is invalid")
	}
	query.Set("watch", "true")
	if c.Table && !query.Has("includeObject") {
		query.Set("includeObject", string(metav1.IncludeMetadata))
	}
	to.RawQuery = query.Encode()
	return c, to, nil
}

// watch serves a WebSocket with many watches.
func (c *Console) watch(w http.ResponseWriter, r *http.Request, _ *place) {
	s := c.sessions.of(r)
	if s == nil {
		writeError(w, newStatus(http.StatusUnauthorized, "sign in first"))
		return
	}
	ctx, leave, ok := c.sockets.open(r.Context())
	if !ok {
		w.Header().Set("Retry-After", "1")
		writeError(w, newStatus(http.StatusServiceUnavailable, "too many connections of the console are open, or the server ends"))
		return
	}
	defer leave()
	up := websocket.Upgrader{
		CheckOrigin: func(*http.Request) bool { return true }, // it was checked
		Error: func(w http.ResponseWriter, _ *http.Request, code int, err error) {
			writeError(w, newStatus(code, err.Error()))
		},
	}
	conn, err := up.Upgrade(w, r, nil)
	if err != nil {
		return // Upgrade has answered
	}
	defer conn.Close()
	k := &connection{
		console: c, conn: conn, handshake: r, session: s, watches: map[int64]*stream{}, ready: make(chan struct{}, 1),
		life: s.Expires.Sub(c.now()),
	}
	k.run(ctx)
}

// connection is one WebSocket with its watches.
type connection struct {
	console   *Console
	conn      *websocket.Conn // the reader alone reads, the writer alone writes
	handshake *http.Request
	session   *session
	life      time.Duration // of the session
	running   sync.WaitGroup

	ready chan struct{} // holds a value while watches may have something to send

	mu      sync.Mutex
	watches map[int64]*stream
	order   []*stream // those of watches, in the order in which they have their turns
}

// run serves the connection until one of its ends leaves, or ctx ends.
func (k *connection) run(ctx context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	hurry := context.AfterFunc(ctx, func() { // a browser that takes nothing does not delay the end
		_ = k.conn.NetConn().SetWriteDeadline(time.Now().Add(time.Second))
	})
	defer hurry()
	k.running.Go(func() {
		err := k.write(ctx)
		k.close(err)
		cancel(err)
	})
	cancel(k.read(ctx))
	k.running.Wait()
	for _, s := range k.order { // no goroutine is left that changes it
		s.leave()
	}
}

// close sends the browser why the connection ends, and ends its reads.
func (k *connection) close(err error) {
	code := websocket.CloseNormalClosure
	var wrong *protocolError
	switch {
	case errors.Is(err, errLeaving):
		code = websocket.CloseGoingAway
	case errors.Is(err, errSignedOut):
		code = closeSignedOut
	case errors.As(err, &wrong):
		code = websocket.ClosePolicyViolation
	}
	text := ""
	if code != websocket.CloseNormalClosure {
		text = err.Error()
	}
	_ = k.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, text), time.Now().Add(time.Second))
	_ = k.conn.Close()
}

// protocolError is a mistake of the browser.
type protocolError struct{ text string }

func (e *protocolError) Error() string { return e.text }

// read reads the browser's messages until the connection ends.
func (k *connection) read(ctx context.Context) error {
	k.conn.SetReadLimit(commandBytes)
	alive := func(string) error { return k.conn.SetReadDeadline(time.Now().Add(silence)) }
	k.conn.SetPongHandler(alive)
	for {
		if err := alive(""); err != nil {
			return fmt.Errorf("read from browser: %w", err)
		}
		kind, message, err := k.conn.ReadMessage()
		if err != nil {
			return fmt.Errorf("read from browser: %w", err)
		}
		if kind != websocket.TextMessage {
			return &protocolError{"a message is not text"}
		}
		c, to, err := parseCommand(message)
		if err != nil {
			return &protocolError{err.Error()}
		}
		if c.Stop {
			k.stop(c.ID)
		} else if err := k.start(ctx, c, to); err != nil {
			return err
		}
	}
}

// start starts a watch.
func (k *connection) start(ctx context.Context, c *command, to *url.URL) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.watches[c.ID] != nil {
		return &protocolError{fmt.Sprintf("the id %d has a watch already", c.ID)}
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{id: c.ID, most: k.console.watchMax, all: &k.console.sockets.events, wake: k.wake, cancel: cancel, header: http.Header{}}
	running := 0
	for _, w := range k.order {
		if !w.isEnded() {
			running++
		}
	}
	k.watches[c.ID] = s
	k.order = append(k.order, s)
	if running >= mostWatches {
		cancel()
		if len(k.order) > 2*mostWatches {
			return &protocolError{"the browser starts watches faster than it reads"}
		}
		status := statusOf(http.StatusTooManyRequests, fmt.Sprintf("a connection has at most %d watches", mostWatches))
		s.end(&status)
		return nil
	}
	accept := "application/json"
	if c.Table {
		accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
	}
	r := k.session.as(k.handshake.WithContext(ctx), http.Header{"Accept": {accept}, "User-Agent": k.handshake.Header["User-Agent"]})
	r.Method, r.URL, r.RequestURI, r.Body, r.ContentLength = http.MethodGet, to, to.RequestURI(), http.NoBody, 0
	k.running.Go(func() {
		defer cancel()
		s.serve(k.console.api, r)
	})
	return nil
}

// stop ends a watch at the browser's wish.
func (k *connection) stop(id int64) {
	k.mu.Lock()
	s := k.watches[id]
	k.mu.Unlock()
	if s != nil {
		s.end(nil)
	}
}

// wake tells the writer that there is something to send.
func (k *connection) wake() {
	select {
	case k.ready <- struct{}{}:
	default:
	}
}

// write sends what watches have, until ctx ends. The error is why the connection ends.
func (k *connection) write(ctx context.Context) error {
	expired := time.NewTimer(k.life)
	defer expired.Stop()
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	pause := time.NewTimer(0) // until messages may be sent again
	defer pause.Stop()
	var ready <-chan struct{} // nil during a pause
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-expired.C:
			return errSignedOut
		case <-ping.C:
			if err := k.conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(sendTime)); err != nil {
				return fmt.Errorf("ping browser: %w", err)
			}
		case <-pause.C:
			ready = k.ready
		case <-ready:
			ready = nil
			if err := k.send(); err != nil {
				return err
			}
			pause.Reset(sendEvery)
		}
	}
}

// send sends all that the watches have.
func (k *connection) send() error {
	k.mu.Lock()
	all := append([]*stream(nil), k.order...)
	k.mu.Unlock()
	for _, s := range all {
		for more := true; more; {
			var message []byte
			var last bool
			message, more, last = s.take()
			if last { // its id is free before the browser knows
				k.forget(s)
			}
			if message == nil {
				continue
			}
			if err := k.conn.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
				return fmt.Errorf("send to browser: %w", err)
			}
			if err := k.conn.WriteMessage(websocket.TextMessage, message); err != nil {
				return fmt.Errorf("send to browser: %w", err)
			}
		}
	}
	return nil
}

// forget removes an ended watch.
func (k *connection) forget(s *stream) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.watches, s.id)
	for i, o := range k.order {
		if o == s {
			k.order = append(k.order[:i:i], k.order[i+1:]...)
			break
		}
	}
}
