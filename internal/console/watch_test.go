// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// told is a message of the server.
type told struct {
	ID     int64             `json:"id"`
	Events []json.RawMessage `json:"events"`
	End    json.RawMessage   `json:"end"`
}

// dial opens a WebSocket as the page does.
func (f *fixture) dial(path, cookie string, header ...string) (*websocket.Conn, *http.Response, error) {
	f.t.Helper()
	h := http.Header{"Cookie": {cookie}, "Origin": {f.server.URL}}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	d := websocket.Dialer{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, NetDialContext: (&net.Dialer{}).DialContext}
	conn, resp, err := d.DialContext(f.t.Context(), "wss://"+f.host()+path, h)
	if err == nil {
		f.t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			f.t.Fatal(err)
		}
	}
	return conn, resp, err
}

// open opens the connection for watches.
func (f *fixture) open() *websocket.Conn {
	f.t.Helper()
	conn, _, err := f.dial("/console/api/watch", f.login(`{"token":"token-alice"}`))
	if err != nil {
		f.t.Fatal(err)
	}
	return conn
}

func (f *fixture) say(conn *websocket.Conn, message string) {
	f.t.Helper()
	if err := conn.WriteMessage(websocket.TextMessage, []byte(message)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) hear(conn *websocket.Conn) told {
	f.t.Helper()
	_, message, err := conn.ReadMessage()
	if err != nil {
		f.t.Fatal(err)
	}
	var m told
	if err := json.Unmarshal(message, &m); err != nil {
		f.t.Fatalf("%s: %v", message, err)
	}
	return m
}

// hearEnd reads until a watch ends, and returns the events before.
func (f *fixture) hearEnd(conn *websocket.Conn, id int64) (events int, end *metav1.Status) {
	f.t.Helper()
	for {
		m := f.hear(conn)
		if m.ID != id {
			continue
		}
		events += len(m.Events)
		if m.End != nil {
			if err := json.Unmarshal(m.End, &end); err != nil {
				f.t.Fatal(err)
			}
			return events, end
		}
	}
}

// tell writes a part of the response to a watch.
func (q *watchRequest) tell(t *testing.T, text string) {
	t.Helper()
	if _, err := q.w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

func event(n int) string { return fmt.Sprintf(`{"type":"ADDED","object":{"n":%d}}`, n) }

func TestWatchesShareAConnection(t *testing.T) {
	f := newFixture(t)
	conn := f.open()
	f.say(conn, `{"id":1,"path":"/api/v1/pods?resourceVersion=5","table":true}`)
	pods := <-f.watches
	if got, want := pods.URL.String(), "/api/v1/pods?includeObject=Metadata&resourceVersion=5&watch=true"; got != want {
		t.Errorf("the API is asked for %s, want %s", got, want)
	}
	if got := pods.Header.Get("Accept"); got != "application/json;as=Table;v=v1;g=meta.k8s.io" {
		t.Errorf("the API is asked for %s", got)
	}
	if pods.Header.Get("Authorization") != "Bearer token-alice" || pods.Header.Get("Cookie") != "" {
		t.Errorf("headers are %v", pods.Header)
	}
	f.say(conn, `{"id":2,"path":"/apis/apps/v1/deployments"}`)
	deployments := <-f.watches
	pods.tell(t, event(1)+"\n"+event(2)+"\n")
	if m := f.hear(conn); m.ID != 1 || len(m.Events) == 0 || string(m.Events[0]) != event(1) {
		t.Errorf("got %+v, want the events of the first watch", m)
	}
	deployments.tell(t, event(3)[:10])
	deployments.tell(t, event(3)[10:]+"\n")
	for {
		m := f.hear(conn)
		if m.ID == 1 {
			continue // the second event
		}
		if m.ID != 2 || len(m.Events) != 1 || string(m.Events[0]) != event(3) {
			t.Errorf("got %+v, want the event of the second watch", m)
		}
		break
	}
	f.say(conn, `{"id":1,"stop":true}`)
	if _, end := f.hearEnd(conn, 1); end != nil {
		t.Errorf("after a stop the watch ends with %v", end)
	}
	<-pods.Context().Done()
	close(deployments.done)
	if _, end := f.hearEnd(conn, 2); end != nil {
		t.Errorf("a watch that the server ended ends with %v", end)
	}
	f.say(conn, `{"id":1,"path":"/api/v1/nodes"}`) // the id is free
	<-f.watches
}

func TestRefusedWatch(t *testing.T) {
	f := newFixture(t)
	conn := f.open()
	f.say(conn, `{"id":7,"path":"/api/v1/secrets"}`)
	q := <-f.watches
	writeError(q.w, forbidden("secrets is forbidden"))
	close(q.done)
	if _, end := f.hearEnd(conn, 7); end == nil || end.Code != http.StatusForbidden || end.Message != "secrets is forbidden" {
		t.Errorf("the watch ends with %+v", end)
	}
	f.say(conn, `{"id":8,"path":"/api/v1/secrets"}`)
	q = <-f.watches
	http.Error(q.w, "404 page not found", http.StatusNotFound)
	close(q.done)
	if _, end := f.hearEnd(conn, 8); end == nil || end.Code != http.StatusNotFound || !strings.Contains(end.Message, "404 page not found") {
		t.Errorf("the watch ends with %+v", end)
	}
}

// TestSlowBrowser writes more than a watch may hold while nothing is read.
func TestSlowBrowser(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.WatchBytes = 64 << 10 })
	conn := f.open()
	f.say(conn, `{"id":1,"path":"/api/v1/pods"}`)
	q := <-f.watches
	large := `{"type":"ADDED","object":{"x":"` + strings.Repeat("x", 16<<10) + `"}}` + "\n"
	written := 0
	for ; written < 10_000; written++ { // the buffers of the connection hold some megabytes
		if _, err := q.w.Write([]byte(large)); err != nil {
			break
		}
	}
	if written == 10_000 {
		t.Fatal("160 MB were written to a browser that reads nothing")
	}
	<-q.Context().Done() // the API's watch ends
	_, end := f.hearEnd(conn, 1)
	if end == nil || end.Code != http.StatusGone {
		t.Errorf("the watch ends with %+v, want code 410", end)
	}
	f.say(conn, `{"id":1,"path":"/api/v1/pods"}`)
	again := <-f.watches
	again.tell(t, event(1)+"\n")
	if m := f.hear(conn); m.ID != 1 || len(m.Events) != 1 {
		t.Errorf("another watch gets %+v", m)
	}
	f.console.sockets.end()
	if used := f.console.sockets.events.used.Load(); used != 0 {
		t.Errorf("%d bytes are in use after the end of all connections", used)
	}
}

func TestBoundsOfWatches(t *testing.T) {
	f := newFixture(t)
	conn := f.open()
	for id := 1; id <= mostWatches; id++ {
		f.say(conn, fmt.Sprintf(`{"id":%d,"path":"/api/v1/pods"}`, id))
		<-f.watches
	}
	f.say(conn, `{"id":100,"path":"/api/v1/pods"}`)
	if _, end := f.hearEnd(conn, 100); end == nil || end.Code != http.StatusTooManyRequests {
		t.Errorf("one watch too many ends with %+v", end)
	}
	f.say(conn, `{"id":1,"stop":true}`)
	f.hearEnd(conn, 1)
	f.say(conn, `{"id":100,"path":"/api/v1/pods"}`)
	<-f.watches
}

func TestWrongMessages(t *testing.T) {
	f := newFixture(t)
	for _, message := range []string{
		`nonsense`, `[]`, `{}`, `{"id":0,"path":"/api/v1/pods"}`, `{"id":-1,"stop":true}`, `{"id":9007199254740992,"stop":true}`,
		`{"id":1}`, `{"id":1,"path":"/metrics"}`, `{"id":1,"path":"api/v1/pods"}`, `{"id":1,"path":"https://evil.example/api/v1/pods"}`,
		`{"id":1,"path":"//evil.example/api/"}`, `{"id":1,"path":"/api/v1/pods?a=%zz"}`, `{"id":1,"path":"/api/v1/pods","stop":true}`,
		`{"id":1,"path":"/api/v1/pods` + strings.Repeat("x", commandBytes) + `"}`,
	} {
		conn := f.open()
		f.say(conn, message)
		_, _, err := conn.ReadMessage()
		if !websocket.IsCloseError(err, websocket.ClosePolicyViolation, websocket.CloseMessageTooBig) {
			t.Errorf("%.80s: the connection ends with %v", message, err)
		}
	}
	conn := f.open()
	f.say(conn, `{"id":1,"path":"/api/v1/pods"}`)
	<-f.watches
	f.say(conn, `{"id":1,"path":"/api/v1/pods"}`)
	if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.ClosePolicyViolation) {
		t.Errorf("after the same id again the connection ends with %v", err)
	}
}

func TestConnectionsEnd(t *testing.T) {
	f := newFixture(t)
	conn := f.open()
	f.say(conn, `{"id":1,"path":"/api/v1/pods"}`)
	q := <-f.watches
	f.console.sockets.end()
	<-q.Context().Done()
	for {
		_, _, err := conn.ReadMessage()
		if err == nil {
			continue // the end of the watch
		}
		if !websocket.IsCloseError(err, websocket.CloseGoingAway) {
			t.Errorf("when the server ends the connection ends with %v", err)
		}
		break
	}
	_, resp, err := f.dial("/console/api/watch", f.login(`{"token":"token-alice"}`))
	if err == nil || resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("after the end a connection is opened: %v", err)
	}
}

// TestSessionEndsConnection lets the session of an open connection end.
func TestSessionEndsConnection(t *testing.T) {
	f := newFixture(t)
	var conn *websocket.Conn
	for left := 100 * time.Millisecond; conn == nil; left *= 4 { // a slow machine needs longer to open the connection
		cookie := f.login(`{"token":"token-alice"}`)
		f.pass(sessionLife - left)
		var err error
		if conn, _, err = f.dial("/console/api/watch", cookie); err != nil && left > 10*time.Second {
			t.Fatal(err)
		}
	}
	if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, closeSignedOut) {
		t.Errorf("with the session the connection ends with %v", err)
	}
}

func TestOtherSitesOpenNoSocket(t *testing.T) {
	f := newFixture(t)
	cookie := f.login(`{"token":"token-alice"}`)
	for _, path := range []string{"/console/api/watch", "/console/cluster/api/v1/namespaces/a/pods/b/exec?command=sh"} {
		for what, header := range map[string][]string{
			"another origin":                   {"Origin", "https://evil.example"},
			"a null origin":                    {"Origin", "null"},
			"another site":                     {"Sec-Fetch-Site", "cross-site"},
			"another port":                     {"Sec-Fetch-Site", "same-site", "Origin", "https://127.0.0.1:1"},
			"an origin that is not told":       {"Origin", ""},
			"a host that was bound again":      {"Host", "evil.example", "Origin", "https://evil.example"},
			"a typed URL, which has no origin": {"Sec-Fetch-Site", "none"},
		} {
			_, resp, err := f.dial(path, cookie, header...)
			if err == nil || resp == nil || resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusMisdirectedRequest {
				t.Errorf("%s opens %s: %v", what, path, err)
			}
		}
		_, resp, err := f.dial(path, "")
		if err == nil || resp == nil || resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("without a session %s answers %v %v", path, resp, err)
		}
	}
}
