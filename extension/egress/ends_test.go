// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"github.com/go-logr/logr/funcr"
	"golang.org/x/net/websocket"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// TestEndsAreNoErrors closes WebSockets from both sides below a bounded upgrade, as each exec ends: none of it is logged as an error.
// Other failures still are.
func TestEndsAreNoErrors(t *testing.T) {
	logged := make(chan string, 16)
	logger := funcr.New(func(_, args string) { logged <- args }, funcr.Options{Verbosity: endVerbosity})
	handlers := map[string]func(w http.ResponseWriter, r *http.Request){
		"upgrade": func(w http.ResponseWriter, r *http.Request) {
			ctx, w, stop := BoundUpgrade(r.Context(), w)
			defer stop()
			stream(w, r.WithContext(ctx))
		},
		"translation": func(w http.ResponseWriter, r *http.Request) {
			BoundTranslation(&url.URL{}, &http.Transport{}, func(*url.URL, http.RoundTripper) http.Handler {
				return http.HandlerFunc(stream)
			}).ServeHTTP(w, r)
		},
	}
	for name, handler := range handlers {
		for end, want := range map[string]string{
			"server": `"level"=4 "msg"="Error on socket receive"`,
			"reset":  `"level"=4 "msg"="Error on socket receive"`, "wrong frame": `"msg"="Single channel byte`,
		} {
			t.Run(name+" "+end, func(t *testing.T) {
				srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					handler(w, r.WithContext(klog.NewContext(r.Context(), logger)))
				}))
				defer srv.Close()
				config, err := websocket.NewConfig(strings.Replace(srv.URL, "http", "ws", 1)+"?end="+url.QueryEscape(end), "http://localhost")
				if err != nil {
					t.Fatal(err)
				}
				config.Protocol = []string{"v5.channel.k8s.io"}
				c, err := net.Dial("tcp", srv.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				ws, err := websocket.NewClient(config, c)
				if err != nil {
					t.Fatal(err)
				}
				switch end {
				case "reset":
					err = errors.Join(c.(*net.TCPConn).SetLinger(0), c.Close())
				case "wrong frame": // a signal to close a stream, without saying which
					err = websocket.Message.Send(ws, []byte{255})
				}
				if err != nil {
					t.Fatal(err)
				}
				if got := <-logged; !strings.HasPrefix(got, want) {
					t.Errorf("logged %s, want %s", got, want)
				}
			})
		}
	}
	for err, want := range map[error]bool{
		fmt.Errorf("read: %w", syscall.ECONNRESET): true, io.ErrUnexpectedEOF: true, io.ErrClosedPipe: true,
		errors.New("no certificate"): false, context.DeadlineExceeded: false,
	} {
		if got := ended(err); got != want {
			t.Errorf("%v is an end: %t", err, got)
		}
	}
}

// stream is a handler of kube-apiserver's kind.
func stream(w http.ResponseWriter, r *http.Request) {
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
		"v5.channel.k8s.io": {Binary: true, Channels: []wsstream.ChannelType{wsstream.ReadChannel}}})
	_, channels, err := conn.Open(w, r)
	if err != nil {
		return
	}
	if r.URL.Query().Get("end") != "server" {
		_, _ = io.Copy(io.Discard, channels[0])
	}
	conn.Close()
}
