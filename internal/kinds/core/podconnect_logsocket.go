// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"golang.org/x/net/websocket"
)

// The subprotocols of a log over WebSocket; a client without one gets binary messages.
const (
	logBinary = "binary.k8s.io"
	logBase64 = "base64.binary.k8s.io"
)

// maxFromLogReader bounds a message from the client, which has no reason to send any.
const maxFromLogReader = 4 << 10

// logOverWebSocket upgrades the client's connection and sends the log in messages, after an empty one. It calls left when the
// client closes the connection.
func logOverWebSocket(w http.ResponseWriter, r *http.Request, log io.Reader, left func()) {
	if _, can := w.(http.Hijacker); !can {
		w = hijacker{w, http.NewResponseController(w)}
	}
	websocket.Server{
		Handshake: func(c *websocket.Config, _ *http.Request) error {
			if len(c.Protocol) == 0 {
				return nil
			}
			i := slices.IndexFunc(c.Protocol, func(p string) bool { return p == logBinary || p == logBase64 })
			if i < 0 {
				return fmt.Errorf("requested protocol(s) are not supported: %v", c.Protocol)
			}
			c.Protocol = c.Protocol[i : i+1]
			return nil
		},
		Handler: func(ws *websocket.Conn) {
			ws.MaxPayloadBytes = maxFromLogReader
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				defer left()
				for {
					var ignored []byte
					if err := websocket.Message.Receive(ws, &ignored); err != nil && !errors.Is(err, websocket.ErrFrameTooLarge) {
						return
					}
				}
			}()
			copyLog(ws, log)
			_ = ws.Close() // the log has ended, or the client has left
			<-gone
		},
	}.ServeHTTP(w, r)
}

// copyLog sends each piece of the log as it comes, until the log or the connection ends.
func copyLog(ws *websocket.Conn, log io.Reader) {
	send := func(piece []byte) error { return websocket.Message.Send(ws, piece) }
	if protocols := ws.Config().Protocol; len(protocols) > 0 && protocols[0] == logBase64 {
		send = func(piece []byte) error { return websocket.Message.Send(ws, base64.StdEncoding.EncodeToString(piece)) }
	}
	if send([]byte{}) != nil {
		return
	}
	piece := make([]byte, 2048)
	for {
		n, err := log.Read(piece)
		if n > 0 && send(piece[:n]) != nil || err != nil {
			return
		}
	}
}
