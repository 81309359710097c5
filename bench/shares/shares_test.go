// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package shares

import (
	"bytes"
	"testing"

	"github.com/google/pprof/profile"
)

// encoded is a profile with a sample of each stack, from the function that ran to the first one, and the value.
func encoded(t *testing.T, values []int64, stacks ...[]string) []byte {
	t.Helper()
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}}}
	for i, stack := range stacks {
		s := &profile.Sample{Value: []int64{1, values[i]}}
		for _, name := range stack {
			f := &profile.Function{ID: uint64(len(p.Function) + 1), Name: name}
			at := &profile.Location{ID: f.ID, Line: []profile.Line{{Function: f}}}
			p.Function, p.Location, s.Location = append(p.Function, f), append(p.Location, at), append(s.Location, at)
		}
		p.Sample = append(p.Sample, s)
	}
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestOf(t *testing.T) {
	got, err := Of(encoded(t, []int64{10, 20, 30, 40},
		[]string{"runtime.memmove", "encoding/json.Marshal", own + "internal/apiserver/verbs.create"},
		[]string{"internal/runtime/syscall.Syscall6", "internal/poll.(*FD).Write", "crypto/tls.(*Conn).Write"},
		[]string{"runtime.memclrNoHeapPointers", "runtime.mallocgc", "encoding/json.Marshal"},
		[]string{"syscall.Syscall", "main.main"},
	))
	if err != nil {
		t.Fatal(err)
	}
	want := map[Part]float64{Encoding: 0.1, Sockets: 0.2, Memory: 0.3, Other: 0.4}
	if len(got) != len(want) {
		t.Errorf("parts %v, want %v", got, want)
	}
	for p, share := range want {
		if got[p] != share {
			t.Errorf("share of %s is %v, want %v", p, got[p], share)
		}
	}
	for name, raw := range map[string][]byte{"no profile": []byte("x"), "empty": encoded(t, nil)} {
		if _, err := Of(raw); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
