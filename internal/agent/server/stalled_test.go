// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// elsewhere is a node whose runtime streams at another address.
type elsewhere struct {
	*fakeNode
	at string
}

func (n elsewhere) location() (*url.URL, error) { return url.Parse("http://" + n.at + "/stream") }

func (n elsewhere) Exec(context.Context, podspec.Target, []string, podspec.Streams) (*url.URL, error) {
	return n.location()
}

func (n elsewhere) Attach(context.Context, podspec.Target, podspec.Streams) (*url.URL, error) {
	return n.location()
}

func (n elsewhere) PortForward(context.Context, podspec.Target, []int32) (*url.URL, error) {
	return n.location()
}

// stream asks a node for a stream, whose runtime does as it is told with each connection. It returns the client's end.
func stream(t *testing.T, upgrade, path string, runtime func(net.Conn)) net.Conn {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					runtime(c)
				}
			}()
		}
	}()
	ca := newAuthority(t)
	host := start(t, elsewhere{newFakeNode(t), listener.Addr().String()}, ca, Options{ClientCAs: ca.pool()})
	u, err := url.Parse(host)
	if err != nil {
		t.Fatal(err)
	}
	config, err := rest.TLSConfigFor(ca.config(t, host, "admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.Dial("tcp", u.Host, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n%s\r\n", path, upgrade); err != nil {
		t.Fatal(err)
	}
	return c
}

// upgrades are the ways in which clients ask for a stream.
func upgrades() map[string][2]string {
	socket := "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Protocol: "
	return map[string][2]string{
		"exec, SPDY":              {"Upgrade: SPDY/3.1\r\n", "/exec/default/p/c?command=x&output=1"},
		"exec, WebSocket v4":      {socket + "v4.channel.k8s.io\r\n", "/exec/default/p/c?command=x&output=1"},
		"exec, WebSocket v5":      {socket + "v5.channel.k8s.io\r\n", "/exec/default/p/c?command=x&output=1"},
		"attach, WebSocket v5":    {socket + "v5.channel.k8s.io\r\n", "/attach/default/p/c?output=1"},
		"port-forward, SPDY":      {"Upgrade: SPDY/3.1\r\n", "/portForward/default/p"},
		"port-forward, WebSocket": {socket + "SPDY/3.1+portforward.k8s.io\r\n", "/portForward/default/p"},
	}
}

// TestRuntimeAnswersWithoutEnd: a runtime that answers a stream with a header that does not end, or refuses it in words without end, is
// left after a bounded number of bytes.
func TestRuntimeAnswersWithoutEnd(t *testing.T) {
	for name, u := range upgrades() {
		for kind, begin := range map[string]string{
			"header":  "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX: ",
			"refusal": "HTTP/1.1 500 Internal Server Error\r\n\r\n",
		} {
			if kind == "refusal" && !strings.Contains(name, "v5") {
				continue // it is passed on as it comes, which keeps nothing
			}
			t.Run(name+", "+kind, func(t *testing.T) {
				const most = 64 << 20
				sent := make(chan int, 1)
				stream(t, u[0], u[1], func(c net.Conn) {
					_, err := io.WriteString(c, begin)
					n := 0
					for piece := strings.Repeat("a", 64<<10); err == nil && n < most; n += len(piece) {
						_, err = io.WriteString(c, piece)
					}
					sent <- n
				})
				if n := <-sent; n >= most {
					t.Errorf("%d bytes were read", n)
				}
			})
		}
	}
}

// TestStreamEndsWithItsClient: the agent does not wait for a runtime that stalls when the client has left. The translator of WebSocket v5
// does not notice that, and ends by the time that package egress bounds.
func TestStreamEndsWithItsClient(t *testing.T) {
	for name, u := range upgrades() {
		if strings.Contains(name, "v5") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			came, left := make(chan struct{}), make(chan error, 1)
			c := stream(t, u[0], u[1], func(c net.Conn) {
				close(came)
				_, err := io.Copy(io.Discard, c)
				left <- err
			})
			<-came
			_ = c.Close()
			if err := <-left; err != nil {
				t.Errorf("the agent has left with %v", err)
			}
		})
	}
}
