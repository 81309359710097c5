// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"crypto/tls"
	"net/http"
	"testing"

	"github.com/gorilla/websocket"
)

// TestExecOverWebSocket opens a terminal in a container: the API takes the connection over, and both ends exchange bytes.
func TestExecOverWebSocket(t *testing.T) {
	asked := make(chan *http.Request, 1)
	f := newFixture(t, func(o *Options) {
		o.API = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked <- r
			up := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}, CheckOrigin: func(*http.Request) bool { return true }}
			conn, err := up.Upgrade(w, r, nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			for {
				kind, message, err := conn.ReadMessage()
				if err != nil {
					return
				}
				message[0] = 1 // from standard input to standard output
				if err := conn.WriteMessage(kind, message); err != nil {
					return
				}
			}
		})
	})
	d := websocket.Dialer{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, Subprotocols: []string{"v5.channel.k8s.io"}}
	conn, _, err := d.DialContext(t.Context(), "wss://"+f.host()+"/console/cluster/api/v1/namespaces/a/pods/b/exec?command=sh&stdin=true",
		http.Header{"Cookie": {f.login(`{"token":"token-alice"}`)}, "Origin": {f.server.URL}, "Sec-Fetch-Site": {"same-origin"},
			"Sec-Fetch-Dest": {"websocket"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := <-asked
	if r.RequestURI != "/api/v1/namespaces/a/pods/b/exec?command=sh&stdin=true" || r.Header.Get("Authorization") != "Bearer token-alice" ||
		r.Header.Get("Cookie") != "" {
		t.Errorf("the API is asked for %s with %v", r.RequestURI, r.Header)
	}
	if conn.Subprotocol() != "v5.channel.k8s.io" {
		t.Errorf("the protocol is %q", conn.Subprotocol())
	}
	if err := conn.WriteMessage(websocket.BinaryMessage, []byte("\x00ls\n")); err != nil {
		t.Fatal(err)
	}
	if _, got, err := conn.ReadMessage(); err != nil || string(got) != "\x01ls\n" {
		t.Errorf("got %q, %v", got, err)
	}
}
