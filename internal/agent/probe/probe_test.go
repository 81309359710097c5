// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/cri"
)

func TestHTTP(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ok":
			if r.Header.Get("User-Agent") != "kube-probe/1.37" || r.Host != "named" {
				w.WriteHeader(http.StatusBadRequest)
			}
		case "/bad":
			w.WriteHeader(http.StatusInternalServerError)
		case "/near":
			http.Redirect(w, r, "/ok", http.StatusFound)
		case "/far":
			http.Redirect(w, r, "http://elsewhere.example/", http.StatusFound)
		}
	}))
	defer server.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	container := &corev1.Container{Name: "c", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(port)}}}
	p := &Prober{}
	for path, want := range map[string]Result{"/ok": Success, "/bad": Failure, "/far": Warning} {
		get := &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("web"), HTTPHeaders: []corev1.HTTPHeader{{Name: "Host", Value: "named"}}}
		got, text, err := p.Attempt(t.Context(), &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: get}}, container, "id", "127.0.0.1")
		if got != want || err != nil {
			t.Errorf("%s: %s %q %v, want %s", path, got, text, err, want)
		}
		if path == "/bad" && text != "HTTP probe failed with statuscode: 500" {
			t.Errorf("text %q", text)
		}
	}
	server.Close()
	for _, h := range []corev1.ProbeHandler{{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(int32(port))}},
		{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(int32(port))}}} {
		got, text, err := p.Attempt(t.Context(), &corev1.Probe{ProbeHandler: h}, container, "id", "127.0.0.1")
		if got != Failure || !strings.Contains(text, "connection refused") || err != nil {
			t.Errorf("closed port: %s %q %v", got, text, err)
		}
	}
	if _, _, err := p.Attempt(t.Context(),
		&corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("none")}}}, container, "id",
		""); err == nil {
		t.Error("a port that has no name was found")
	}
}

func TestTCPAndGRPC(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	state := grpchealth.NewServer()
	state.SetServingStatus("sick", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(server, state)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	defer func() { server.Stop(); <-done }()
	port := int32(listener.Addr().(*net.TCPAddr).Port)
	p := &Prober{}
	for name, c := range map[string]struct {
		handler corev1.ProbeHandler
		want    Result
	}{
		"tcp":  {corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}, Success},
		"well": {corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port}}, Success},
		"sick": {corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port, Service: new("sick")}}, Failure},
	} {
		if got, text, err := p.Attempt(t.Context(), &corev1.Probe{ProbeHandler: c.handler, TimeoutSeconds: 5}, &corev1.Container{}, "id",
			"127.0.0.1"); got != c.want || err != nil {
			t.Errorf("%s: %s %q %v, want %s", name, got, text, err, c.want)
		}
	}
}

func TestExec(t *testing.T) {
	for _, c := range []struct {
		code int32
		err  error
		want Result
	}{{0, nil, Success}, {1, nil, Failure}, {0, cri.ErrTimeout, Failure}, {0, errors.New("broken"), Unknown}} {
		p := &Prober{Exec: func(context.Context, string, []string, time.Duration) ([]byte, int32, error) {
			return nil, c.code, c.err
		}}
		if got, _, _ := p.Attempt(t.Context(), &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}},
			&corev1.Container{}, "id", ""); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// TestThresholds follows one container through its life, second by second.
func TestThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		at := func() int { return int(time.Since(start) / time.Second) }
		// What the commands say, by the second: startup from the 4th on, liveness until the
		// 20th, readiness in the 10th to the 15th.
		exec := func(_ context.Context, _ string, command []string, _ time.Duration) ([]byte, int32, error) {
			ok := map[string]bool{"startup": at() >= 4, "live": at() < 20, "ready": at() >= 10 && at() < 15}[command[0]]
			if ok {
				return nil, 0, nil
			}
			return nil, 1, nil
		}
		probe := func(word string, success, failure int32) *corev1.Probe {
			return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{word}}}, PeriodSeconds: 1,
				SuccessThreshold: success, FailureThreshold: failure}
		}
		container := &corev1.Container{Name: "c", StartupProbe: probe("startup", 1, 30), LivenessProbe: probe("live", 1, 3),
			ReadinessProbe: probe("ready", 2, 2)}
		var changes []string
		m := &Manager{Prober: &Prober{Exec: exec}, Clock: clock.RealClock{}, Report: func(Instance, string, Result, string, error) {}}
		m.Changed = func(uid types.UID) {
			changes = append(changes, strings.Join([]string{
				strconv.Itoa(at()), strconv.FormatBool(m.Started(container, "id")), strconv.FormatBool(m.Ready(container, "id")), m.Failed(uid)["id"],
			}, " "))
		}
		pod := &corev1.Pod{}
		pod.UID = "u"
		ctx, cancel := context.WithCancel(t.Context())
		m.Ensure(ctx, Instance{Pod: pod, Container: container, ID: "id", Started: start})
		m.Ensure(ctx, Instance{Pod: pod, Container: container, ID: "id", Started: start})
		if m.Started(container, "id") || m.Ready(container, "id") {
			t.Error("started or ready before any probe")
		}
		timer := time.NewTimer(30*time.Second + time.Millisecond)
		<-timer.C
		synctest.Wait()
		want := []string{"4 true false ", "11 true true ", "16 true false ", "22 true false liveness"}
		if strings.Join(changes, "|") != strings.Join(want, "|") {
			t.Errorf("changes %q, want %q", changes, want)
		}
		m.Keep("u", nil)
		cancel()
		m.Wait()
	})
}
