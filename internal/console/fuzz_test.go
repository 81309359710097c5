// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
)

// FuzzCookie decodes cookies. None is a session that the key did not seal, and a decoded session has one kind of credentials.
func FuzzCookie(f *testing.F) {
	c, err := New(Options{API: http.NotFoundHandler(), Authenticator: &fixture{}, Key: Key{1}})
	if err != nil {
		f.Fatal(err)
	}
	sealed := c.sessions.sealer.seal(forSession, []byte(`{"token":"t","expires":"2100-01-01T00:00:00Z"}`))
	f.Add("1."+sealed, "")
	f.Add("2."+sealed[:20], sealed[20:])
	f.Add("1."+c.sessions.sealer.seal(forSignIn, []byte(`{"token":"t","expires":"2100-01-01T00:00:00Z"}`)), "")
	f.Add("", "")
	f.Add("9.", "x")
	f.Fuzz(func(t *testing.T, first, second string) {
		r := &http.Request{Header: http.Header{"Cookie": {c.sessions.cookieOf(0) + "=" + first, c.sessions.cookieOf(1) + "=" + second}}}
		s := c.sessions.of(r)
		if s == nil {
			return
		}
		number, text, _ := strings.Cut(first, ".")
		if number == "2" {
			text += second
		}
		if text != sealed || s.Token != "t" {
			t.Errorf("%q, %q is the session %+v", first, second, s)
		}
	})
}

// FuzzSession decodes the contents of sealed cookies, as if the key were known.
func FuzzSession(f *testing.F) {
	f.Add([]byte(`{"token":"t","expires":"2100-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"user":{"username":"a","groups":["b"],"extra":{"c":["d"]}},"expires":"2100-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"user":{},"expires":"2100-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"token":"t","user":{"username":"a"},"expires":"2100-01-01T00:00:00Z"}`))
	now := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, content []byte) {
		s, ok := decodeSession(content, now)
		if ok && ((s.Token == "") == (s.User == nil) || s.User != nil && s.User.info().GetName() == "" || !s.Expires.After(now)) {
			t.Errorf("%s is the session %+v", content, s)
		}
	})
}

// FuzzCommand decodes messages of the browser. A watch is one of a path of the API.
func FuzzCommand(f *testing.F) {
	f.Add([]byte(`{"id":1,"path":"/api/v1/pods?resourceVersion=5","table":true}`))
	f.Add([]byte(`{"id":2,"path":"/apis/apps/v1/deployments?labelSelector=a%3Db"}`))
	f.Add([]byte(`{"id":1,"stop":true}`))
	f.Add([]byte(`{"id":1,"path":"/api/../metrics"}`))
	f.Add([]byte(`{"id":1e3,"path":"//x/api/"}`))
	f.Fuzz(func(t *testing.T, message []byte) {
		c, to, err := parseCommand(message)
		if err != nil || c.Stop {
			return
		}
		if c.ID < 1 || c.ID > mostID || to.Host != "" || to.Scheme != "" || to.Query().Get("watch") != "true" ||
			!strings.HasPrefix(to.RequestURI(), "/api/") && !strings.HasPrefix(to.RequestURI(), "/apis/") {
			t.Errorf("%s asks for %s", message, to)
		}
	})
}

// FuzzEvents writes a response in two parts. What the browser gets is JSON.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("{\"type\":\"ADDED\",\"object\":{}}\n"), 5)
	f.Add([]byte("{\n\"type\": \"ADDED\"\n}\n{}\n"), 3)
	f.Add([]byte("\n\n]\n"), 1)
	f.Fuzz(func(t *testing.T, body []byte, cut int) {
		s := &stream{id: 1, most: 1 << 20, all: &budget{most: 1 << 20}, wake: func() {}, cancel: func() {}, header: http.Header{}}
		cut = min(max(cut, 0), len(body))
		for _, part := range [][]byte{body[:cut], body[cut:]} {
			if _, err := s.Write(part); err != nil {
				t.Fatal(err)
			}
		}
		s.end(nil)
		for {
			message, more, _ := s.take()
			if message != nil && !json.Valid(message) {
				t.Fatalf("%q gives the message %q", body, message)
			}
			if !more {
				if used := s.all.used.Load(); used != 0 {
					t.Fatalf("%d bytes are in use after all events were taken", used)
				}
				return
			}
		}
	})
}

// FuzzPrefix checks what a prefix may be: it stands in HTML, in cookies and in redirects.
func FuzzPrefix(f *testing.F) {
	for _, s := range []string{"", "/a", "/a/b-c", "//a", "/..", `/"`, "/a;b", "/a\nb"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if validPrefix(s) && (strings.ContainsAny(s, "\"'<>&;\\ \r\n%") || strings.HasPrefix(s, "//") || strings.Contains(s, "/../")) {
			t.Errorf("%q is accepted", s)
		}
	})
}
