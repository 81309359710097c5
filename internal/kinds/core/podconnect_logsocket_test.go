// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/websocket"
)

// readLog asks for a log over WebSocket, as upstream's conformance test does.
func readLog(t *testing.T, url string, protocols ...string) (*websocket.Conn, error) {
	t.Helper()
	config, err := websocket.NewConfig(strings.Replace(url, "http://", "ws://", 1), "http://localhost")
	if err != nil {
		t.Fatal(err)
	}
	config.Protocol = protocols
	ws, err := websocket.DialConfig(config)
	if err == nil {
		t.Cleanup(func() { ws.Close() })
	}
	return ws, err
}

// TestLogOverWebSocket reads a log in each of kube-apiserver's subprotocols.
func TestLogOverWebSocket(t *testing.T) {
	_, host := serveConnect(t)
	for name, c := range map[string]struct {
		protocols []string
		chosen    string
	}{
		"none":   {},
		"binary": {[]string{"binary.k8s.io"}, "binary.k8s.io"},
		"base64": {[]string{"base64.binary.k8s.io"}, "base64.binary.k8s.io"},
		"many":   {[]string{"v9.binary.k8s.io", "base64.binary.k8s.io", "binary.k8s.io"}, "base64.binary.k8s.io"},
	} {
		t.Run(name, func(t *testing.T) {
			ws, err := readLog(t, host+"/pods/one/log?tailLines=3", c.protocols...)
			if err != nil {
				t.Fatal(err)
			}
			if chosen := strings.Join(ws.Config().Protocol, ","); chosen != c.chosen {
				t.Errorf("the subprotocol is %q, want %q", chosen, c.chosen)
			}
			text := "c tailLines=3\n"
			if c.chosen == "base64.binary.k8s.io" {
				text = base64.StdEncoding.EncodeToString([]byte(text))
			}
			for i, want := range []string{"", text} {
				got, kind, err := frame(ws)
				if err != nil {
					t.Fatal(err)
				}
				if got != want {
					t.Errorf("message %d is %q, want %q", i, got, want)
				}
				if binary := kind == websocket.BinaryFrame; binary == (c.chosen == "base64.binary.k8s.io") {
					t.Errorf("message %d is binary: %t", i, binary)
				}
			}
			if _, _, err := frame(ws); err != io.EOF {
				t.Errorf("after the log: %v", err)
			}
		})
	}
}

// frame reads one message, which may be empty.
func frame(ws *websocket.Conn) (text string, kind byte, err error) {
	raw := websocket.Codec{Unmarshal: func(data []byte, payload byte, v any) error {
		*v.(*string), kind = string(data), payload
		return nil
	}}
	err = raw.Receive(ws, &text)
	return text, kind, err
}

// TestLogOverWebSocketIsRefused: what is wrong is answered before the upgrade, and a subprotocol that nobody knows in its handshake.
func TestLogOverWebSocketIsRefused(t *testing.T) {
	_, host := serveConnect(t)
	if _, err := readLog(t, host+"/pods/one/log", "v4.channel.k8s.io"); err == nil {
		t.Error("an unknown subprotocol is taken")
	}
	for path, want := range map[string]string{
		"pods/two/log?container=waiting": `400 BadRequest: container "waiting" in pod "two" is waiting to start: ContainerCreating`,
		"pods/nosuch/log":                `404 NotFound: pods "nosuch" not found`,
		"pods/homeless/log":              "204 ",
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, host+"/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{
			"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
			"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="},
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Status[:4] + statusOr(body); got != want {
			t.Errorf("%s:\n got %s\nwant %s", path, got, want)
		}
	}
}

// TestLogReaderLeaves: the agent hears that a follower of a log over WebSocket has left, whatever that has said before.
func TestLogReaderLeaves(t *testing.T) {
	_, host := serveConnect(t)
	ws, err := readLog(t, host+"/pods/one/log?follow=true&timestamps=true")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, _, err := frame(ws); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(ws, strings.Repeat("x", 2*maxFromLogReader)); err != nil {
		t.Fatal(err)
	}
	ws.Close()
	<-left
}
