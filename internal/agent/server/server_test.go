// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/mortise-dev/mortise/internal/agent/stats"
)

type fixture struct {
	node   *fakeNode
	ca     *authority
	host   string
	config *rest.Config
	client *http.Client
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{node: newFakeNode(t), ca: newAuthority(t)}
	f.host = start(t, f.node, f.ca, Options{Host: func() (stats.Host,
		error) {
		return stats.Host{CPUNanoseconds: 5e9, MemoryWorkingSetBytes: 7}, nil
	}})
	f.config = f.ca.config(t, f.host, "apiserver", "system:masters")
	var err error
	if f.client, err = rest.HTTPClientFor(f.config); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) get(t *testing.T, path string) (int, string) {
	t.Helper()
	r, err := f.client.Get(f.host + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func TestWhoMayCome(t *testing.T) {
	f := newFixture(t)
	stranger := newAuthority(t).config(t, f.host, "admin", "system:masters")
	stranger.CAData = f.config.CAData
	none := rest.CopyConfig(f.config)
	none.CertData, none.KeyData = nil, nil
	for _, c := range []struct {
		name   string
		config *rest.Config
		want   int
	}{
		{"administrator", f.config, 200},
		{"API server", f.ca.config(t, f.host, "kube-apiserver-kubelet-client", ""), 200},
		{"another user", f.ca.config(t, f.host, "jane", "developers"), 403},
		{"other authority", stranger, 401},
		{"no certificate", none, 401},
	} {
		client, err := rest.HTTPClientFor(c.config)
		if err != nil {
			t.Fatal(err)
		}
		r, err := client.Get(f.host + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != c.want {
			t.Errorf("%s: %d, want %d", c.name, r.StatusCode, c.want)
		}
	}
}

func TestPods(t *testing.T) {
	f := newFixture(t)
	for path, want := range map[string]int{"/pods": 2, "/runningpods/": 1} {
		var list corev1.PodList
		_, body := f.get(t, path)
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Fatal(err)
		}
		if list.Kind != "PodList" || len(list.Items) != 1 || len(list.Items[0].Spec.Containers) != want {
			t.Errorf("%s: %s", path, body)
		}
	}
}

func TestLogs(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct {
		path string
		code int
		want string
	}{
		{"default/p/c", 200, "to stdout\nto stderr\n"},
		{"default/p/c?stream=Stdout", 200, "to stdout\n"},
		{"default/p/c?stream=Stderr", 200, "to stderr\n"},
		{"default/p/c?stream=Other", 400, "invalid stream type \"Other\"\n"},
		{"default/p/waiting", 400, "container \"waiting\" in pod \"p\" is waiting to start: ContainerCreating\n"},
		{"default/nosuch/c", 404, "pod \"nosuch\" does not exist\n"},
		{"default/p/nosuch", 404, "container \"nosuch\" not found in pod \"p\"\n"},
		{"default/p/c?tailLines=-1", 422, "{\"message\": \"Invalid request.\"}\n"},
		{"default/p/c?sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z", 422, "{\"message\": \"Invalid request.\"}\n"},
	} {
		code, body := f.get(t, "/containerLogs/"+c.path)
		if code != c.code || body != c.want {
			t.Errorf("%s: %d %q, want %d %q", c.path, code, body, c.code, c.want)
		}
	}
}

func TestLogOptions(t *testing.T) {
	q, err := url.ParseQuery("follow=true&previous=false&timestamps=1&tailLines=3&limitBytes=4&sinceSeconds=5")
	if err != nil {
		t.Fatal(err)
	}
	got, err := logOptions(q)
	if err != nil {
		t.Fatal(err)
	}
	n := func(i int64) *int64 { return &i }
	want := &corev1.PodLogOptions{Follow: true, Timestamps: true, TailLines: n(3), LimitBytes: n(4), SinceSeconds: n(5)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"tailLines=x", "sinceTime=yesterday"} {
		q, _ := url.ParseQuery(bad)
		if _, err := logOptions(q); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}

func FuzzLogOptions(f *testing.F) {
	f.Add("tailLines=3&sinceTime=2026-01-01T00:00:00Z&stream=All&tail=all")
	f.Fuzz(func(t *testing.T, text string) {
		q, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		if o, err := logOptions(q); (o == nil) == (err == nil) {
			t.Error("neither options nor an error, or both")
		}
	})
}

func TestFollow(t *testing.T) {
	f := newFixture(t)
	r, err := f.client.Get(f.host + "/containerLogs/default/p/c?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	lines := bufio.NewScanner(r.Body)
	var got []string
	for i := range 4 {
		if i >= 2 {
			f.node.follow <- fmt.Sprintf("line %d\n", i)
		}
		if !lines.Scan() {
			t.Fatal("log ended")
		}
		got = append(got, lines.Text())
	}
	if diff := cmp.Diff([]string{"to stdout", "to stderr", "line 2", "line 3"}, got); diff != "" {
		t.Error(diff)
	}
}

// executors are one for each protocol.
func executors(t *testing.T, f *fixture, path string) map[string]remotecommand.Executor {
	t.Helper()
	u, err := url.Parse(f.host + path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := remotecommand.NewSPDYExecutor(f.config, "POST", u)
	if err != nil {
		t.Fatal(err)
	}
	v5, err := remotecommand.NewWebSocketExecutor(f.config, "GET", u.String())
	if err != nil {
		t.Fatal(err)
	}
	v4, err := remotecommand.NewWebSocketExecutorForProtocols(f.config, "GET", u.String(), "v4.channel.k8s.io")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]remotecommand.Executor{"spdy": s, "v5": v5, "v4": v4}
}

type oneSize struct{ sent bool }

func (o *oneSize) Next() *remotecommand.TerminalSize {
	if o.sent {
		return nil
	}
	o.sent = true
	return &remotecommand.TerminalSize{Width: 80, Height: 25}
}

func TestExec(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for name, x := range executors(t, f, "/exec/default/p/c?command=echo&command=it&input=1&output=1&error=1") {
		if name == "v4" { // it cannot say that the input has ended
			continue
		}
		var out, errs bytes.Buffer
		if err := x.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out,
			Stderr: &errs}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if out.String() != "echo it: hello" || errs.String() != "to stderr" {
			t.Errorf("%s: stdout %q stderr %q", name, &out, &errs)
		}
	}
	for name, x := range executors(t, f, "/exec/default/p/c?command=x&input=1&output=1&tty=1") {
		if name == "v4" {
			continue
		}
		var out bytes.Buffer
		if err := x.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out, Tty: true,
			TerminalSizeQueue: &oneSize{}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if out.String() != "80x25 x: hello" {
			t.Errorf("%s: terminal %q", name, &out)
		}
	}
	for name, x := range executors(t, f, "/exec/default/p/c?command=exit&output=1") {
		var out bytes.Buffer
		err := x.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out})
		if e, ok := err.(exec.CodeExitError); !ok || e.Code != 7 {
			t.Errorf("%s: error %v, want exit code 7", name, err)
		}
	}
	for path, want := range map[string]string{
		"/exec/default/nosuch/c?command=x&output=1":  "pod does not exist",
		"/exec/default/p/waiting?command=x&output=1": "container is not running",
		"/exec/default/p/c?command=x":                "you must specify at least 1 of stdin, stdout, stderr",
	} {
		if code, body := f.get(t, path); code < 400 || strings.TrimSpace(body) != want {
			t.Errorf("%s: %d %q, want %q", path, code, body, want)
		}
	}
}

func TestAttach(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for name, x := range executors(t, f, "/attach/default/p/u1/c?input=1&output=1") {
		if name == "v4" {
			continue
		}
		var out bytes.Buffer
		if err := x.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if out.String() != "hello" {
			t.Errorf("%s: %q", name, &out)
		}
	}
}

func TestPortForward(t *testing.T) {
	f := newFixture(t)
	u, err := url.Parse(f.host + "/portForward/default/p")
	if err != nil {
		t.Fatal(err)
	}
	rt, upgrader, err := spdy.RoundTripperFor(f.config)
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, f.config)
	if err != nil {
		t.Fatal(err)
	}
	for name, dialer := range map[string]httpstream.Dialer{
		"spdy":      spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: rt}, "POST", u),
		"websocket": tunnel,
	} {
		stop, ready, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		fw, err := portforward.NewOnAddressesForStreaming(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		go func() { done <- fw.ForwardPorts() }()
		select {
		case <-ready:
		case err := <-done:
			t.Fatalf("%s: %v", name, err)
		}
		ports, err := fw.GetPorts()
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "hello"); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c)
		if err != nil || string(got) != "8080 says hello" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		c.Close()
		close(stop)
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRun(t *testing.T) {
	f := newFixture(t)
	r, err := f.client.Post(f.host+"/run/default/p/c?cmd=ls+-l", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if b, err := io.ReadAll(r.Body); err != nil || string(b) != "ls+-l" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestStats(t *testing.T) {
	f := newFixture(t)
	_, body := f.get(t, "/stats/summary")
	var s statsv1alpha1.Summary
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatal(err)
	}
	if s.Node.NodeName != "n1" || *s.Node.CPU.UsageCoreNanoSeconds != 5e9 || len(s.Pods) != 1 || len(s.Pods[0].Containers) != 2 ||
		*s.Pods[0].CPU.UsageCoreNanoSeconds != 3e9 || *s.Pods[0].Memory.WorkingSetBytes != 22 || s.Pods[0].StartTime.Unix() != 50 {
		t.Errorf("summary %s", body)
	}
	_, body = f.get(t, "/metrics/resource")
	for _, want := range []string{
		`container_cpu_usage_seconds_total{container="c",namespace="default",pod="p"} 2 100000`,
		`pod_memory_working_set_bytes{namespace="default",pod="p"} 22 100000`,
		`node_cpu_usage_seconds_total 5`, `resource_scrape_error 0`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in\n%s", want, body)
		}
	}
	if _, body := f.get(t, "/metrics"); !strings.Contains(body, "go_goroutines") {
		t.Errorf("metrics: %s", body)
	}
}

func TestHost(t *testing.T) {
	booted, used := readStat([]byte("cpu  1 2 3 400 500 6 7 8 9 10\ncpu0 1 1 1 1 1 1 1 1 1 1\nbtime 1000\n"))
	if booted.Unix() != 1000 || used != 27*10_000_000 {
		t.Errorf("booted %v, used %d", booted, used)
	}
	u := readMeminfo([]byte("MemTotal: 100 kB\nMemFree: 40 kB\nMemAvailable: 60 kB\n"))
	if u.MemoryBytes != 60<<10 || u.MemoryWorkingSetBytes != 40<<10 || u.MemoryAvailableBytes != 60<<10 {
		t.Errorf("memory %+v", u)
	}
}

func FuzzHost(f *testing.F) {
	f.Add([]byte("cpu  1 2 3 400 500 6 7 8 9 10\nbtime 1000\nMemTotal: 100 kB\nMemFree: 40 kB\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		readStat(b)
		if u := readMeminfo(b); u.MemoryBytes > 0 && !bytes.Contains(b, []byte("MemTotal")) {
			t.Error("memory out of nothing")
		}
	})
}

func TestServeEndsStreams(t *testing.T) {
	var s streams
	here, there := net.Pipe()
	s.add(here)
	s.closeAll()
	if _, err := there.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a taken-over connection is open: %v", err)
	}
}
