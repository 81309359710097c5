// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containerhooks

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/record"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	utilexec "k8s.io/utils/exec"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// fixture is a runtime and the node's addresses around a runner.
type fixture struct {
	internalapi.RuntimeService
	*Runner

	ran    []string
	output string
	fails  error
	blocks bool   // commands run until they are abandoned
	ip     string // of the pod's sandbox
	events *record.FakeRecorder
}

func newFixture() *fixture {
	f := &fixture{events: record.NewFakeRecorder(10)}
	f.Runner = New(Config{Runtime: &cri.Client{Runtime: f}, Addresses: f, Events: f.events, Clock: clock.RealClock{}})
	return f
}

func (f *fixture) Texts() []string { return []string{"192.0.2.1"} }

func (f *fixture) ExecSync(ctx context.Context, id string, command []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	f.ran = append(f.ran, id+" "+strings.Join(command, " ")+" "+timeout.String())
	if f.blocks {
		<-ctx.Done()
		return nil, nil, ctx.Err()
	}
	return []byte(f.output), nil, f.fails
}

func (f *fixture) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return nil, nil
}

func (f *fixture) ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	if f.ip == "" {
		return nil, errors.New("silence")
	}
	return []*runtimeapi.PodSandbox{{Id: "s", Labels: map[string]string{podstate.LabelPodUID: "u"}}}, nil
}

func (f *fixture) PodSandboxStatus(context.Context, string, bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
		Id: "s", State: runtimeapi.PodSandboxState_SANDBOX_READY, Network: &runtimeapi.PodSandboxNetworkStatus{Ip: f.ip},
	}}, nil
}

func command(words ...string) *corev1.LifecycleHandler {
	return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: words}}
}

func seconds(n int64) *corev1.LifecycleHandler {
	return &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: n}}
}

func TestCommands(t *testing.T) {
	for name, c := range map[string]struct {
		fails error
		want  string
	}{
		"it succeeds":      {nil, ""},
		"it fails":         {utilexec.CodeExitError{Err: errors.New("exit"), Code: 3}, "command 'a b' exited with 3: out"},
		"it cannot be run": {errors.New("no such program"), "run hook of container c: no such program"},
	} {
		f := newFixture()
		f.fails, f.output = c.fails, "out"
		err := f.Run(t.Context(), &corev1.Container{Name: "c"}, "id", nil, command("a", "b"))
		if err == nil != (c.want == "") || err != nil && err.Error() != c.want {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if want := []string{"id a b 0s"}; !slices.Equal(f.ran, want) {
			t.Errorf("%s: ran %q", name, f.ran)
		}
	}
}

// TestRequests: a hook of HTTP goes to the pod's first address, and any answer will do, as with kubelet.
func TestRequests(t *testing.T) {
	asked := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer server.Close()
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	hook := func(port intstr.IntOrString, host string) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/stop", Port: port, Host: host}}
	}
	f := newFixture()
	for name, c := range map[string]struct {
		ips   []string
		hook  *corev1.LifecycleHandler
		fails string
	}{
		"the pod's address":    {[]string{host, "192.0.2.9"}, hook(intstr.FromInt(number), ""), ""},
		"another host":         {nil, hook(intstr.FromInt(number), host), ""},
		"no such port":         {[]string{host}, hook(intstr.FromString("web"), ""), "web"},
		"nobody listens there": {[]string{host}, hook(intstr.FromInt(1), ""), "run hook of container c: "},
	} {
		err := f.Run(t.Context(), &corev1.Container{Name: "c"}, "id", c.ips, c.hook)
		switch {
		case c.fails != "":
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: %v, want %q", name, err, c.fails)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case len(asked) != 1 || <-asked != "/stop":
			t.Errorf("%s: it was not asked", name)
		}
	}
}

// TestResponses: the runner reads no more than it needs of a response and closes the connection; a response that is cut off is an error.
func TestResponses(t *testing.T) {
	left := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/short":
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("short"))
		case "/endless":
			_, _ = w.Write(make([]byte, 20<<10))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			close(left)
		}
	}))
	defer server.Close()
	at := server.Listener.Addr().(*net.TCPAddr)
	f := newFixture()
	run := func(path string) error {
		hook := &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt(at.Port)}}
		return f.Run(t.Context(), &corev1.Container{Name: "c"}, "id", []string{at.IP.String()}, hook)
	}
	if err := run("/short"); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut off: %v", err)
	}
	if err := run("/endless"); err != nil {
		t.Error(err)
	}
	<-left
}

// TestTimersStop: no timer is left when a handler has ended.
func TestTimersStop(t *testing.T) {
	f := newFixture()
	fake := clocktesting.NewFakeClock(time.Unix(0, 0))
	f.Clock = fake
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Run(ctx, &corev1.Container{}, "id", nil, seconds(7)); !errors.Is(err, context.Canceled) || fake.HasWaiters() {
		t.Errorf("sleep: %v, a timer is left: %t", err, fake.HasWaiters())
	}
	pod, c := &corev1.Pod{}, &corev1.Container{Lifecycle: &corev1.Lifecycle{PreStop: command("a")}}
	if f.PreStop(t.Context(), pod, c, "id", time.Minute); fake.HasWaiters() {
		t.Error("preStop leaves a timer")
	}
}

func TestSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		begin := time.Now()
		if err := f.Run(t.Context(), &corev1.Container{}, "id", nil, seconds(7)); err != nil || time.Since(begin) != 7*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Second, errors.New("enough"))
		defer cancel()
		begin = time.Now()
		if err := f.Run(ctx, &corev1.Container{}, "id", nil, seconds(7)); err == nil || err.Error() != "enough" ||
			time.Since(begin) != 2*time.Second {
			t.Errorf("abandoned after %v: %v", time.Since(begin), err)
		}
	})
}

func TestHandlerThatIsNone(t *testing.T) {
	err := newFixture().Run(t.Context(), &corev1.Container{}, "id", nil, &corev1.LifecycleHandler{})
	if err == nil || !strings.HasPrefix(err.Error(), "invalid handler: ") {
		t.Error(err)
	}
}

// TestPreStop: the hook runs for as long as the grace lasts and no longer; a failure is an event, unless nobody waits for it any more.
func TestPreStop(t *testing.T) {
	failed := []string{"Warning FailedPreStopHook PreStopHook failed"}
	for name, c := range map[string]struct {
		hook     *corev1.LifecycleHandler
		fails    error
		blocks   bool
		abandons time.Duration
		lasts    time.Duration
		events   []string
	}{
		"it succeeds":        {hook: seconds(3), lasts: 3 * time.Second},
		"it fails":           {hook: command("a"), fails: errors.New("no"), events: failed},
		"it is too long":     {hook: seconds(30), lasts: 10 * time.Second},
		"it does not end":    {hook: command("a"), blocks: true, lasts: 10 * time.Second},
		"nobody waits":       {hook: seconds(30), abandons: 4 * time.Second, lasts: 4 * time.Second},
		"it cannot be asked": {hook: &corev1.LifecycleHandler{}, events: failed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture()
				f.fails, f.blocks = c.fails, c.blocks
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.abandons > 0 {
					time.AfterFunc(c.abandons, cancel)
				}
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}}
				begin := time.Now()
				f.PreStop(ctx, pod, &corev1.Container{Name: "c", Lifecycle: &corev1.Lifecycle{PreStop: c.hook}}, "id", 10*time.Second)
				if took := time.Since(begin); took != c.lasts {
					t.Errorf("it took %v, want %v", took, c.lasts)
				}
				var events []string
				for len(f.events.Events) > 0 {
					events = append(events, <-f.events.Events)
				}
				if !slices.Equal(events, c.events) {
					t.Errorf("events %q, want %q", events, c.events)
				}
			})
		})
	}
}

// TestPreStopAsksThePod: the address of a hook of HTTP is that of the pod's sandbox now.
func TestPreStopAsksThePod(t *testing.T) {
	asked := make(chan struct{}, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} }))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server.Listener.Close()
	server.Listener = l
	server.Start()
	defer server.Close()
	f := newFixture()
	f.ip = "192.0.2.77"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Spec: corev1.PodSpec{HostNetwork: true}}
	port := intstr.FromInt(l.Addr().(*net.TCPAddr).Port)
	hook := &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: port}}
	f.Addresses = loopback{}
	f.PreStop(t.Context(), pod, &corev1.Container{Lifecycle: &corev1.Lifecycle{PreStop: hook}}, "id", 10*time.Second)
	if len(asked) != 1 || len(f.events.Events) != 0 {
		t.Errorf("asked %d times, %d events", len(asked), len(f.events.Events))
	}
}

// loopback is the address of a pod in the node's network.
type loopback struct{}

func (loopback) Texts() []string { return []string{"127.0.0.1"} }
