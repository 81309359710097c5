// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"crypto/tls"
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

	"github.com/mortise-dev/mortise/bench/report"
)

// Target is an API server to measure.
type Target struct {
	Config *rest.Config
	Pids   []int
	serial int // of the namespaces made in it
}

// Connect makes a target of a server that runs already.
func Connect(kubeconfig string, more []int) (*Target, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.Host = strings.TrimSuffix(config.Host, "/")
	u, err := url.Parse(config.Host)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	t := &Target{Config: config, Pids: more}
	if port, err := strconv.Atoi(u.Port()); err == nil && slices.Contains([]string{"127.0.0.1", "localhost", "::1"}, u.Hostname()) {
		if pid := listener(port); pid != 0 && !slices.Contains(t.Pids, pid) {
			t.Pids = append([]int{pid}, t.Pids...)
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

// Cpu is the processor time that the server has used; 0 if it runs elsewhere.
func (t *Target) Cpu() (time.Duration, error) {
	var ticks int64
	for _, pid := range t.Pids {
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

// Memory is the server's resident memory, and the part of it that is its own and not mapped from the binary, in bytes.
func (t *Target) Memory() (resident, anonymous int64, err error) {
	for _, pid := range t.Pids {
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
func Rollup(pid int, name string) (int64, error) { return kilobytes(pid, "smaps_rollup", name) }

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

// Peak is the most that the server had resident while something was done, and what it had before, in MB.
func (t *Target) Peak(do func() error) (before, most float64, err error) {
	resident, _, err := t.Memory()
	if err != nil {
		return 0, 0, err
	}
	for _, pid := range t.Pids { // begins the count of the most anew; proc(5)
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
			return 0, 0, fmt.Errorf("reset peak: %w", err)
		}
	}
	if err := do(); err != nil {
		return 0, 0, err
	}
	for _, pid := range t.Pids {
		n, err := status(pid, "VmHWM")
		if err != nil {
			return 0, 0, err
		}
		most += float64(n) / (1 << 20)
	}
	return float64(resident) / (1 << 20), most, nil
}

// Held is what a server holds, in KB: objects that live, stacks of goroutines, and what it has resident of its own.
type Held struct{ Live, Stacks, Resident float64 }

// Collected is what lives in the server's heap after it has collected its garbage, which it does before it makes a profile
// of its heap, and what it has from the system after a while in which it could give the rest back.
func (t *Target) Collected(ctx context.Context) (Held, error) {
	client, err := t.Client(1)
	if err != nil {
		return Held{}, err
	}
	defer client.CloseIdleConnections()
	for range 2 { // what the first finds dead, the second gives back
		if err := Expect(ctx, client, http.StatusOK, "GET", t.Config.Host+"/debug/pprof/heap?gc=1", "", ""); err != nil {
			return Held{}, fmt.Errorf("collect garbage: %w", err)
		}
	}
	_, metrics, err := Say(ctx, client, "GET", t.Config.Host+"/metrics", "", "")
	if err != nil {
		return Held{}, err
	}
	live, err := metric(metrics, "go_memstats_heap_alloc_bytes")
	if err != nil {
		return Held{}, err
	}
	stacks, err := metric(metrics, "go_memstats_stack_inuse_bytes")
	if err != nil {
		return Held{}, err
	}
	// a watch that the server itself ends
	if err := Expect(ctx, client, http.StatusOK, "GET", t.Config.Host+"/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=4", "",
		""); err != nil {
		return Held{}, err
	}
	_, anonymous, err := t.Memory()
	return Held{Live: live / 1024, Stacks: stacks / 1024, Resident: float64(anonymous) / 1024}, err
}

// metric is the value of a metric without labels.
func metric(metrics []byte, name string) (float64, error) {
	_, rest, _ := strings.Cut(string(metrics), "\n"+name+" ")
	line, _, _ := strings.Cut(rest, "\n")
	v, err := strconv.ParseFloat(line, 64)
	if err != nil {
		return 0, fmt.Errorf("read metric %s: %w", name, err)
	}
	return v, nil
}

// Profile is a profile of the server's CPU (pprof) over some seconds.
func (t *Target) Profile(ctx context.Context, seconds int) ([]byte, error) {
	client, err := t.Client(1)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	status, raw, err := Say(ctx, client, "GET", fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", t.Config.Host, seconds), "", "")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("profile server: status %d: %.300s", status, raw)
	}
	return raw, err
}

// Per is what each of n took, since before.
func (h Held) Per(before Held, n int, limit report.Bound) []report.Value {
	return []report.Value{
		{Name: "live", Unit: "KB", Number: (h.Live - before.Live) / float64(n), Bound: limit},
		{Name: "resident", Unit: "KB", Number: (h.Resident - before.Resident) / float64(n)},
	}
}

// Client is an HTTP/1.1 client with a connection for each of n loops: the cheapest there is, so that the server is what
// is measured.
func (t *Target) Client(n int) (*http.Client, error) {
	return t.over(&http.Transport{
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
		MaxIdleConnsPerHost: n, MaxConnsPerHost: n, DisableCompression: true, ReadBufferSize: 32 << 10,
	})
}

// Streams is an HTTP/2 client, whose watches share connections.
func (t *Target) Streams() (*http.Client, error) {
	return t.over(&http.Transport{ForceAttemptHTTP2: true, DisableCompression: true})
}

func (t *Target) over(transport *http.Transport) (*http.Client, error) {
	config, err := rest.TLSConfigFor(t.Config)
	if err != nil {
		return nil, err
	}
	transport.TLSClientConfig = config
	wrapped, err := rest.HTTPWrappersForConfig(t.Config, transport)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: wrapped}, nil
}

// Namespace makes a namespace that pods can be made in, and returns its name.
func (t *Target) Namespace(ctx context.Context) (string, error) {
	client, err := t.Client(1)
	if err != nil {
		return "", err
	}
	defer client.CloseIdleConnections()
	t.serial++
	name := fmt.Sprintf("bench-%d-%d", os.Getpid(), t.serial)
	if err := Expect(ctx, client, http.StatusCreated, "POST", t.Config.Host+"/api/v1/namespaces", "application/json",
		fmt.Sprintf(`{"metadata":{"name":%q}}`, name)); err != nil {
		return "", err
	}
	code, answer, err := Say(ctx, client, "POST", t.Config.Host+"/api/v1/namespaces/"+name+"/serviceaccounts", "application/json",
		`{"metadata":{"name":"default"}}`)
	if err != nil {
		return "", err
	}
	if code != http.StatusCreated && code != http.StatusConflict { // a controller may have been faster
		return "", fmt.Errorf("create service account: status %d: %.300s", code, answer)
	}
	return name, nil
}
