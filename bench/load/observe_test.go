// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// frames are events of these types with objects of so many bytes, as API servers write them.
func frames(t *testing.T, size int, types ...string) []byte {
	t.Helper()
	var all []byte
	for _, what := range types {
		e := metav1.WatchEvent{Type: what, Object: runtime.RawExtension{Raw: bytes.Repeat([]byte("x"), size)}}
		b, err := e.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		all = append(binary.BigEndian.AppendUint32(all, uint32(len(b))), b...)
	}
	return all
}

func TestCountAdded(t *testing.T) {
	all := func(types ...string) []byte { return frames(t, 10, types...) }
	whole := all("ADDED", "ADDED")
	for _, c := range []struct {
		name   string
		stream []byte
		n      int
		rest   int    // bytes that are left
		failed string // empty: it is fine
	}{
		{name: "others do not count", stream: all("MODIFIED", "ADDED", "BOOKMARK", "DELETED", "ADDED"), n: 2},
		{name: "no more than asked for", stream: all("ADDED", "ADDED", "ADDED"), n: 2, rest: len(whole) / 2},
		{name: "larger than the buffer", stream: frames(t, 100_000, "MODIFIED", "ADDED", "ADDED"), n: 2},
		{name: "without an object", stream: frames(t, 0, "ADDED", "ADDED"), n: 2},
		{name: "ended too early", stream: all("ADDED"), n: 2, failed: "after 1 of 2 objects: EOF"},
		{name: "cut", stream: whole[:len(whole)-1], n: 2, failed: "EOF"},
		{name: "an error", stream: all("ADDED", "ERROR", "ADDED"), n: 2, failed: "error after 1 of 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := bytes.NewReader(c.stream)
			firsts := 0
			r := bufio.NewReaderSize(iotest.OneByteReader(in), 16)
			err := countAdded(r, c.n, func() error { firsts++; return nil })
			switch {
			case c.failed == "" && err != nil, c.failed != "" && (err == nil || !strings.Contains(err.Error(), c.failed)):
				t.Errorf("error %v, want %q", err, c.failed)
			}
			if firsts != 1 {
				t.Errorf("the first was told %d times", firsts)
			}
			if c.failed == "" && r.Buffered()+in.Len() != c.rest {
				t.Errorf("%d bytes are left, want %d", r.Buffered()+in.Len(), c.rest)
			}
		})
	}
	stop := errors.New("stop")
	if err := countAdded(bufio.NewReader(bytes.NewReader(whole)), 2, func() error { return stop }); !errors.Is(err, stop) {
		t.Errorf("error %v, want that of the first", err)
	}
}

// TestUntilAdded is the whole way, over TLS: events that come singly are counted, also the last ones that fill nothing, and an end is
// told when it comes while nobody waits for it.
func TestUntilAdded(t *testing.T) {
	const events = 500
	one := frames(t, 300, "ADDED")
	watch := func(media string, n int, hold bool) *Target {
		s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if got := r.Header.Get("Accept"); got != protobufNames {
				t.Errorf("Accept: %s", got)
			}
			w.Header().Set("Content-Type", media)
			for range n {
				_, _ = w.Write(one)
				_ = http.NewResponseController(w).Flush()
			}
			if hold {
				<-r.Context().Done()
			}
		}))
		t.Cleanup(s.Close)
		return &Target{Config: &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}}
	}
	for _, c := range []struct {
		name, media string
		n           int
		hold        bool   // the watch goes on
		failed      string // empty: it is fine
	}{
		{name: "as many as wanted", media: protobuf + ";stream=watch", n: events, hold: true},
		{name: "ends too early", media: protobuf + ";stream=watch", n: events - 1,
			failed: fmt.Sprintf("after %d of %d objects: EOF", events-1, events)},
		{name: "not in protobuf", media: "application/json", n: 1, failed: "status 200, application/json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			target := watch(c.media, c.n, c.hold)
			firsts := 0
			err := UntilAdded(t.Context(), target, target.Config.Host, events, func() error { firsts++; return nil })
			switch {
			case c.failed == "" && err != nil, c.failed != "" && (err == nil || !strings.Contains(err.Error(), c.failed)):
				t.Errorf("error %v, want %q", err, c.failed)
			}
			if c.media != "application/json" && firsts != 1 {
				t.Errorf("the first was told %d times", firsts)
			}
		})
	}
}
