// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"testing"
)

// pipeWriter is a response that is read while it is written.
type pipeWriter struct{ *io.PipeWriter }

func (pipeWriter) Header() http.Header { return http.Header{} }
func (pipeWriter) WriteHeader(int)     {}

// TestZippedEventsArriveAtOnce reads compressed events as Go's HTTP client does, and wants each before the next is
// written: the bookmark that ends a watch's initial state may be the last event for hours.
func TestZippedEventsArriveAtOnce(t *testing.T) {
	for name, size := range map[string]int{"small, stored": 100, "large, deflated": 2 * zipEventsFrom} {
		t.Run(name, func(t *testing.T) {
			r, w := io.Pipe()
			defer r.Close()
			asked := make(chan []byte, 1) // a pipe takes the end of a member only when it is read
			go func() {
				s := &eventStream{out: pipeWriter{w}, zips: true}
				for b := range asked {
					if err := s.write(b); err != nil {
						w.CloseWithError(err)
						return
					}
				}
				w.Close()
			}()
			var z *gzip.Reader
			for i := range 3 {
				want := bytes.Repeat([]byte{byte('a' + i)}, size)
				asked <- want
				if z == nil {
					var err error
					if z, err = gzip.NewReader(r); err != nil {
						t.Fatal(err)
					}
				}
				got := make([]byte, size)
				if _, err := io.ReadFull(z, got); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("event %d: %q, %v", i, got[:min(len(got), 20)], err)
				}
			}
			close(asked)
			if rest, err := io.ReadAll(z); err != nil || len(rest) != 0 {
				t.Errorf("after the last event: %q, %v", rest, err)
			}
		})
	}
}
