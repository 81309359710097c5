// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// target is an API server to measure.
type target struct {
	config *rest.Config
	pids   []int
	serial int // of the namespaces made in it
}

// connect makes a target of a server that runs already.
func connect(kubeconfig string, more []int) (*target, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.Host = strings.TrimSuffix(config.Host, "/")
	u, err := url.Parse(config.Host)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	t := &target{config: config, pids: more}
	if port, err := strconv.Atoi(u.Port()); err == nil && slices.Contains([]string{"127.0.0.1", "localhost", "::1"}, u.Hostname()) {
		if pid := listener(port); pid != 0 && !slices.Contains(t.pids, pid) {
			t.pids = append([]int{pid}, t.pids...)
		}
	}
	return t, nil
}

// listener is the process that listens on a port of this machine; 0 if none was found.
func listener(port int) int {
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for l := range strings.SplitSeq(string(b), "\n") {
			f := strings.Fields(l)
			if len(f) > 9 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				inodes["socket:["+f[9]+"]"] = true
			}
		}
	}
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && inodes[to] {
			pid, _ := strconv.Atoi(strings.Split(fd, "/")[2])
			return pid
		}
	}
	return 0
}

// cpu is the processor time that the server has used; 0 if it runs elsewhere.
func (t *target) cpu() (time.Duration, error) {
	var ticks int64
	for _, pid := range t.pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 13 {
			return 0, fmt.Errorf("read /proc/PID/stat: %d fields", len(fields))
		}
		for _, f := range fields[11:13] { // utime and stime, in hundredths of a second
			n, err := strconv.ParseInt(f, 10, 64)
			if err != nil {
				return 0, err
			}
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// memory is the server's resident memory, and the part of it that is its own and not mapped from the binary, in bytes.
func (t *target) memory() (resident, anonymous int64, err error) {
	for _, pid := range t.pids {
		r, err := status(pid, "VmRSS")
		if err != nil {
			return 0, 0, err
		}
		a, err := status(pid, "RssAnon")
		if err != nil {
			return 0, 0, err
		}
		resident, anonymous = resident+r, anonymous+a
	}
	return resident, anonymous, nil
}

// status is a line of /proc/PID/status, in bytes, and rollup one of the sum of its mappings.
func status(pid int, name string) (int64, error) { return kilobytes(pid, "status", name) }
func rollup(pid int, name string) (int64, error) { return kilobytes(pid, "smaps_rollup", name) }

func kilobytes(pid int, file, name string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "\n"+name+":")
	line, _, _ := strings.Cut(rest, "\n")
	kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(line, " kB")), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s of process %d: %w", name, pid, err)
	}
	return kb << 10, nil
}

// peak is the most that the server had resident while something was done, and what it had before, in MB.
func (t *target) peak(do func() error) (before, most float64, err error) {
	resident, _, err := t.memory()
	if err != nil {
		return 0, 0, err
	}
	for _, pid := range t.pids { // begins the count of the most anew; proc(5)
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
			return 0, 0, fmt.Errorf("reset peak: %w", err)
		}
	}
	if err := do(); err != nil {
		return 0, 0, err
	}
	for _, pid := range t.pids {
		n, err := status(pid, "VmHWM")
		if err != nil {
			return 0, 0, err
		}
		most += float64(n) / (1 << 20)
	}
	return float64(resident) / (1 << 20), most, nil
}

// held is what a server holds, in KB.
type held struct{ live, resident float64 }

// collected is what lives in the server's heap after it has collected its garbage, which it does before it makes a profile
// of its heap, and what it has from the system after a while in which it could give the rest back.
func (t *target) collected(ctx context.Context) (held, error) {
	client, err := t.client(1)
	if err != nil {
		return held{}, err
	}
	defer client.CloseIdleConnections()
	for range 2 { // what the first finds dead, the second gives back
		if err := expect(ctx, client, http.StatusOK, "GET", t.config.Host+"/debug/pprof/heap?gc=1", "", ""); err != nil {
			return held{}, fmt.Errorf("collect garbage: %w", err)
		}
	}
	_, metrics, err := say(ctx, client, "GET", t.config.Host+"/metrics", "", "")
	if err != nil {
		return held{}, err
	}
	_, rest, _ := strings.Cut(string(metrics), "\ngo_memstats_heap_alloc_bytes ")
	line, _, _ := strings.Cut(rest, "\n")
	live, err := strconv.ParseFloat(line, 64)
	if err != nil {
		return held{}, fmt.Errorf("read heap's size: %w", err)
	}
	// a watch that the server itself ends
	if err := expect(ctx, client, http.StatusOK, "GET", t.config.Host+"/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=4", "", ""); err != nil {
		return held{}, err
	}
	_, anonymous, err := t.memory()
	return held{live: live / 1024, resident: float64(anonymous) / 1024}, err
}

// per is what each of n took, since before.
func (h held) per(before held, n int, limit bound) []value {
	return []value{
		{name: "live", unit: "KB", number: (h.live - before.live) / float64(n), bound: limit},
		{name: "resident", unit: "KB", number: (h.resident - before.resident) / float64(n)},
	}
}

// client is an HTTP/1.1 client with a connection for each of n loops: the cheapest there is, so that the server is what
// is measured.
func (t *target) client(n int) (*http.Client, error) {
	return t.over(&http.Transport{
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
		MaxIdleConnsPerHost: n, MaxConnsPerHost: n, DisableCompression: true, ReadBufferSize: 32 << 10,
	})
}

// streams is an HTTP/2 client, whose watches share connections.
func (t *target) streams() (*http.Client, error) {
	return t.over(&http.Transport{ForceAttemptHTTP2: true, DisableCompression: true})
}

func (t *target) over(transport *http.Transport) (*http.Client, error) {
	config, err := rest.TLSConfigFor(t.config)
	if err != nil {
		return nil, err
	}
	transport.TLSClientConfig = config
	wrapped, err := rest.HTTPWrappersForConfig(t.config, transport)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: wrapped}, nil
}

// namespace makes a namespace that pods can be made in, and returns its name.
func (t *target) namespace(ctx context.Context) (string, error) {
	client, err := t.client(1)
	if err != nil {
		return "", err
	}
	defer client.CloseIdleConnections()
	t.serial++
	name := fmt.Sprintf("bench-%d-%d", os.Getpid(), t.serial)
	if err := expect(ctx, client, http.StatusCreated, "POST", t.config.Host+"/api/v1/namespaces", "application/json", fmt.Sprintf(`{"metadata":{"name":%q}}`, name)); err != nil {
		return "", err
	}
	code, answer, err := say(ctx, client, "POST", t.config.Host+"/api/v1/namespaces/"+name+"/serviceaccounts", "application/json", `{"metadata":{"name":"default"}}`)
	if err != nil {
		return "", err
	}
	if code != http.StatusCreated && code != http.StatusConflict { // a controller may have been faster
		return "", fmt.Errorf("create service account: status %d: %.300s", code, answer)
	}
	return name, nil
}

// bench is a run of the rows: the servers that several of them share.
type bench struct {
	*options
	shared *server // bare, started by the first row that needs it
	peerTo *target
}

func (b *bench) end() error {
	if b.shared == nil {
		return nil
	}
	return b.shared.stop()
}

// measure does one row, on the peer too if there is one and the row is for any server.
func (b *bench) measure(ctx context.Context, r *row, out *report) (err error) {
	if r.serve == nil {
		return r.start(ctx, b, func(what string, values ...value) { out.add(what, values, nil) })
	}
	mine := &lines{}
	t, stop, err := b.target(ctx, r)
	if err != nil {
		return err
	}
	err = r.serve(ctx, b, t, mine.add)
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	peer := &lines{}
	if b.peer != "" {
		if b.peerTo == nil {
			if b.peerTo, err = connect(b.peer, b.pids); err != nil {
				return err
			}
		}
		if err := r.serve(ctx, b, b.peerTo, peer.add); err != nil {
			peer.lines = []line{{mine: []value{{text: "not measured: " + err.Error()}}}}
			fmt.Fprintf(os.Stderr, "bench: %s on the peer: %v\n", r.name, err)
		}
	}
	for i, l := range mine.lines {
		var other []value
		if i < len(peer.lines) {
			other = peer.lines[i].mine
		}
		out.add(l.what, l.mine, other)
	}
	return nil
}

// lines gathers what a row measured.
type lines struct{ lines []line }

func (l *lines) add(what string, values ...value) {
	l.lines = append(l.lines, line{what: what, mine: values})
}

// target is the server that a row is put to, and what is to be called after it.
func (b *bench) target(ctx context.Context, r *row) (*target, func() error, error) {
	nothing := func() error { return nil }
	if b.kubeconfig != "" {
		if b.peerTo == nil {
			t, err := connect(b.kubeconfig, b.pids)
			if err != nil {
				return nil, nil, err
			}
			b.peerTo = t
		}
		return b.peerTo, nothing, nil
	}
	if len(r.args) > 0 {
		s, err := start(ctx, b.binary, r.args...)
		if err != nil {
			return nil, nil, err
		}
		return &s.target, s.stop, nil
	}
	if b.shared == nil {
		s, err := start(ctx, b.binary, bare...)
		if err != nil {
			return nil, nil, err
		}
		b.shared = s
	}
	return &b.shared.target, nothing, nil
}
