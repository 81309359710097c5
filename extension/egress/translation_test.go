// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package egress_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mortise-dev/mortise/extension/egress"
)

// translate has a handler that takes its client over before it dials ask a backend, and returns how many bytes the handler read of it to
// the end, and how long that took.
func translate(t *testing.T, backend func(net.Conn)) (read int64, took time.Duration, err error) {
	t.Helper()
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	pair := certificate.TLS.Certificates
	certificate.Close()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		over := make(chan struct{})
		transport := &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			DialContext: egress.Bounded(func(context.Context, string, string) (net.Conn, error) {
				c, server := net.Pipe()
				go func() {
					defer close(over)
					backend(tls.Server(server, &tls.Config{Certificates: pair}))
					_ = server.Close()
				}()
				return c, nil
			}),
		}
		ours, client := net.Pipe()
		defer client.Close()
		handler := egress.BoundTranslation(&url.URL{Scheme: "https", Host: "agent:10250"}, transport,
			func(u *url.URL, transport http.RoundTripper) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if _, _, err = http.NewResponseController(w).Hijack(); err != nil {
						return
					}
					var c net.Conn
					if c, err = transport.(*http.Transport).DialContext(r.Context(), "tcp", u.Host); err != nil {
						return
					}
					defer c.Close()
					if _, err = fmt.Fprintf(c, "POST /exec HTTP/1.1\r\nHost: %s\r\n\r\n", u.Host); err == nil {
						read, err = io.Copy(io.Discard, c)
					}
				})
			})
		handler.ServeHTTP(&hijackable{httptest.NewRecorder(), ours}, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/exec", nil))
		took = time.Since(began)
		<-over
	})
	return read, took, err
}

// answer is the beginning of a backend's answer.
const answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"

// A backend that does not answer is given up after a minute also where the client's connection was taken over before: in the TLS
// handshake, before the answer, within its header, or within the text of a refusal.
func TestStalledTranslationsEnd(t *testing.T) {
	for name, backend := range map[string]func(net.Conn){
		"in the handshake": func(net.Conn) { time.Sleep(time.Hour) },
		"silent":           func(c net.Conn) { request(c); time.Sleep(time.Hour) },
		"in the header":    func(c net.Conn) { request(c); _, _ = io.WriteString(c, answer); time.Sleep(time.Hour) },
		"in a refusal": func(c net.Conn) {
			request(c)
			_, _ = io.WriteString(c, "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 100\r\n\r\na")
			time.Sleep(time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, took, err := translate(t, backend); err == nil || took != time.Minute {
				t.Errorf("ended with %v after %v", err, took)
			}
		})
	}
}

// Neither a header nor the text of a refusal is read without end.
func TestAnswersToTranslationsAreBounded(t *testing.T) {
	for name, begin := range map[string]string{"header": answer + "X: ", "refusal": "HTTP/1.1 500 Internal Server Error\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			read, _, err := translate(t, func(c net.Conn) {
				request(c)
				_, err := io.WriteString(c, begin)
				for sent := 0; err == nil && sent < 64<<20; sent += 4000 {
					_, err = io.WriteString(c, strings.Repeat("a", 4000))
				}
			})
			if err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes") || read > 1<<20 {
				t.Errorf("%v after %d bytes", err, read)
			}
		})
	}
}

// A backend that has upgraded the connection may be silent for as long as it wants, and send as much as it wants. Its header may come
// in any pieces.
func TestTranslatedConnectionsAreNotBounded(t *testing.T) {
	const most = 3 << 20
	for name, pieces := range map[string][]string{
		"whole":     {answer + "\r\n"},
		"in pieces": {answer[:11], answer[11:] + "\r", "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			read, _, err := translate(t, func(c net.Conn) {
				request(c)
				for _, p := range pieces {
					_, _ = io.WriteString(c, p)
				}
				time.Sleep(time.Hour)
				_, _ = c.Write(make([]byte, most))
				_ = c.Close()
			})
			if want := int64(len(answer) + 2 + most); read != want || err != nil {
				t.Errorf("%d bytes, %v; want %d", read, err, want)
			}
		})
	}
}
