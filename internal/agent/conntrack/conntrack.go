// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package conntrack writes the kernel's settings of connection tracking (nf_conntrack): the maximum number of connections, and the timeouts
// of idle ones. [Settings] has the values; [Apply] writes them, all or none.
//
// The files belong to the network namespace of the process. The number of connections belongs to the machine: it cannot be
// written in other namespaces than the first one.
package conntrack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/cpuset"

	"github.com/mortise-dev/mortise/internal/agent/netfilter"
)

// Settings are the values to write; zero leaves a setting unchanged.
type Settings struct {
	Max                                                    int // connections
	TCPEstablished, TCPCloseWait, UDPUnreplied, UDPAssured time.Duration
	TCPBeLiberal                                           bool // packets outside of a connection's window are valid
}

const (
	sysctls  = "proc/sys/net/netfilter"
	hashsize = "sys/module/nf_conntrack/parameters/hashsize"
)

// setting is a file and its number.
type setting struct {
	path  string
	value int
	least bool // a higher number is fine
}

func (s Settings) settings() []setting {
	var out []setting
	add := func(name string, value int) {
		if value > 0 {
			out = append(out, setting{path: filepath.Join(sysctls, name), value: value})
		}
	}
	add("nf_conntrack_max", s.Max)
	if size := s.Max / 4; size > 0 { // of the hash table, with chains of four entries
		out = append(out, setting{path: hashsize, value: size, least: true})
	}
	for _, t := range []struct {
		name string
		time time.Duration
	}{
		{"tcp_timeout_established", s.TCPEstablished}, {"tcp_timeout_close_wait", s.TCPCloseWait}, {"udp_timeout", s.UDPUnreplied},
		{"udp_timeout_stream", s.UDPAssured},
	} {
		// Less than a second would become zero.
		add("nf_conntrack_"+t.name, int((t.time+time.Second-1)/time.Second))
	}
	if s.TCPBeLiberal {
		add("nf_conntrack_tcp_be_liberal", 1)
	}
	return out
}

// Write writes the settings below root, which is / except in tests. If it cannot write one, it restores those before.
func (s Settings) Write(root string) error {
	type former struct {
		path string
		text []byte
	}
	var before []former
	for _, n := range s.settings() {
		path := filepath.Join(root, n.path)
		old, err := os.ReadFile(path)
		if err == nil {
			have, broken := strconv.Atoi(strings.TrimSpace(string(old)))
			if broken == nil && (have == n.value || n.least && have > n.value) {
				continue
			}
			err = put(path, []byte(strconv.Itoa(n.value)))
		}
		if err == nil {
			before = append(before, former{path, old})
			continue
		}
		errs := []error{fmt.Errorf("set %s to %d: %w", n.path, n.value, err)}
		for i := len(before) - 1; i >= 0; i-- {
			if err := put(before[i].path, before[i].text); err != nil {
				errs = append(errs, fmt.Errorf("restore %s: %w", before[i].path, err))
			}
		}
		return errors.Join(errs...)
	}
	return nil
}

// Apply writes the settings of the machine. It loads the kernel module if necessary.
func Apply(ctx context.Context, s Settings) error {
	if s == (Settings{}) {
		return nil
	}
	return netfilter.WithModule(ctx, "nf_conntrack", func() error { return s.Write("/") })
}

// Processors returns the number of CPUs of the machine, including those that this process may not use.
func Processors() int {
	if n, err := cpuset.NumCPU(); err == nil && n > 0 {
		return n
	}
	return runtime.NumCPU()
}

// put writes into an existing file.
func put(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}
