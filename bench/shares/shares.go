// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package shares says on what parts of a server its CPU went, from a profile of it (pprof). It is pure.
//
// A sample belongs to the part of the first function of its stack that a rule names, from the function that ran to the one that began
// the goroutine. So a copy that the encoder of JSON makes is encoding, and memory that it allocates is garbage.
package shares

import (
	"fmt"
	"strings"

	"github.com/google/pprof/profile"
)

// Part is a part of the server.
type Part string

// The parts, in the order in which they are shown.
const (
	TLS           Part = "TLS"
	HTTP2         Part = "HTTP/2"
	Sockets       Part = "sockets" // system calls
	Compression   Part = "compression"
	Encoding      Part = "encoding" // of objects, in all formats, and their decoding
	Admission     Part = "admission"
	ManagedFields Part = "managed fields"
	Validation    Part = "defaults and validation"
	Store         Part = "store"      // with the watch cache, and its system calls
	Access        Part = "access"     // authentication, authorization, flow control
	Memory        Part = "memory"     // allocation and garbage collection
	Scheduling    Part = "scheduling" // of goroutines, and timers
	Other         Part = "other"
)

// Parts returns all parts in their order.
func Parts() []Part {
	return []Part{
		TLS, HTTP2, Sockets, Compression, Encoding, Admission, ManagedFields, Validation, Store, Access, Memory, Scheduling, Other,
	}
}

const own = "github.com/mortise-dev/mortise/"

// rule assigns functions to a part by the beginning of their names.
type rule struct {
	prefix string
	part   Part
}

// rules are tried in their order for each function.
var rules = []rule{
	{"runtime.gcBgMarkWorker", Memory}, {"runtime.mallocgc", Memory}, {"runtime.newobject", Memory}, {"runtime.makeslice", Memory},
	{"runtime.growslice", Memory}, {"runtime.gcAssist", Memory}, {"runtime.bgsweep", Memory}, {"runtime.bgscavenge", Memory},
	{"runtime.gcStart", Memory}, {"runtime.gcWriteBarrier", Memory}, {"runtime.wbBuf", Memory}, {"runtime.sysmon", Scheduling},
	{"runtime.schedule", Scheduling}, {"runtime.mcall", Scheduling}, {"runtime.findRunnable", Scheduling}, {"runtime.goready", Scheduling},
	{"runtime.ready", Scheduling}, {"runtime.newproc", Scheduling}, {"runtime.gopark", Scheduling}, {"runtime.mstart", Scheduling},
	{"runtime.(*timer", Scheduling}, {"runtime.selectgo", Scheduling}, {"time.", Scheduling}, {"runtime.goexit0", Scheduling},
	{"runtime.morestack", Scheduling}, {"runtime.newstack", Scheduling},

	{own + "store", Store}, {own + "internal/apiserver/watchcache", Store}, {own + "internal/apiserver/feed", Store},
	{"internal/poll.(*FD).Write", Sockets}, {"internal/poll.(*FD).Read", Sockets}, {"internal/poll.(*FD).Fsync", Store},
	{"internal/poll.(*FD).Pwrite", Store}, {"net.(*conn)", Sockets},

	{"crypto/tls", TLS}, {"crypto/", TLS}, {"net/http.(*http2", HTTP2}, {"net/http.http2", HTTP2}, {"net/http/internal/http2", HTTP2},
	{"vendor/golang.org/x/net/http2", HTTP2}, {"golang.org/x/net/http2", HTTP2}, {"bufio.", HTTP2},
	{own + "internal/apiserver/http2server", HTTP2},
	{"github.com/klauspost/compress", Compression}, {"compress/", Compression}, {own + "internal/apiserver/segments", Compression},

	{own + "internal/apiserver/managedfields", ManagedFields}, {"sigs.k8s.io/structured-merge-diff", ManagedFields},
	{"k8s.io/apimachinery/pkg/util/managedfields", ManagedFields},
	{own + "internal/apiserver/admit", Admission}, {own + "internal/builtin", Admission}, {"k8s.io/pod-security-admission", Admission},
	{"k8s.io/kubernetes/pkg/apis", Validation}, {"k8s.io/apimachinery/pkg/api/validat", Validation},
	{"k8s.io/apimachinery/pkg/util/validation", Validation}, {own + "internal/kinds", Validation},
	{"encoding/json", Encoding}, {"sigs.k8s.io/json", Encoding}, {"k8s.io/api/", Encoding}, {"github.com/fxamacker/cbor", Encoding},
	{"k8s.io/apimachinery/pkg/apis/meta/v1.(*", Encoding}, {"k8s.io/apimachinery/pkg/runtime", Encoding}, {"sigs.k8s.io/yaml", Encoding},
	{"go.yaml.in/yaml", Encoding}, {"gopkg.in/yaml", Encoding}, {own + "resource", Encoding}, {own + "internal/apiserver/merge", Encoding},

	{own + "internal/apiserver/overlay", Encoding}, {own + "internal/apiserver/typedjson", Encoding},

	{own + "internal/apiserver/authenticate", Access}, {own + "internal/apiserver/authorize", Access},
	{own + "internal/apiserver/flowcontrol", Access}, {own + "internal/apiserver.authenticate", Access},
}

// Of reads a profile of CPU and returns the share of each part, of 1.
func Of(raw []byte) (map[Part]float64, error) {
	p, err := profile.ParseData(raw)
	if err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	all, total := map[Part]float64{}, 0.0
	for _, s := range p.Sample {
		if len(s.Value) == 0 {
			return nil, fmt.Errorf("read profile: a sample has no value")
		}
		n := float64(s.Value[len(s.Value)-1])
		all[part(s)] += n
		total += n
	}
	if total == 0 {
		return nil, fmt.Errorf("read profile: it is empty")
	}
	for p := range all {
		all[p] /= total
	}
	return all, nil
}

func part(s *profile.Sample) Part {
	for _, at := range s.Location {
		for _, line := range at.Line {
			if line.Function == nil {
				continue
			}
			for _, r := range rules {
				if strings.HasPrefix(line.Function.Name, r.prefix) {
					return r.part
				}
			}
		}
	}
	return Other
}
