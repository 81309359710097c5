// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// next waits for a value, and fails the test if none comes.
func next[T any](t *testing.T, from <-chan T) (out T) {
	t.Helper()
	select {
	case out = <-from:
	case <-time.After(time.Minute):
		t.Fatal("it does not come")
	}
	return out
}

// calls are the calls that come, in their order.
func calls(t *testing.T, from <-chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := next(t, from); got != w {
			t.Errorf("call %q, want %q", got, w)
		}
	}
}

// driver is a plug-in that serves its registration.
type driver struct {
	registration.UnimplementedRegistrationServer
	info   *registration.PluginInfo
	asked  chan struct{}                         // each GetInfo
	hang   <-chan struct{}                       // GetInfo answers when it is closed; nil: at once
	told   chan *registration.RegistrationStatus // each NotifyRegistrationStatus
	refuse chan error                            // what NotifyRegistrationStatus answers, while there is something
}

func newDriver(name string, versions ...string) *driver {
	return &driver{
		info:   &registration.PluginInfo{Type: "CSIPlugin", Name: name, SupportedVersions: versions},
		asked:  make(chan struct{}, 100),
		told:   make(chan *registration.RegistrationStatus, 100),
		refuse: make(chan error, 100),
	}
}

func (d *driver) GetInfo(ctx context.Context, _ *registration.InfoRequest) (*registration.PluginInfo, error) {
	d.asked <- struct{}{}
	if d.hang != nil {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-d.hang:
		}
	}
	return d.info, nil
}

func (d *driver) NotifyRegistrationStatus(
	_ context.Context, status *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	d.told <- status
	select {
	case err := <-d.refuse:
		return nil, err
	default:
		return &registration.RegistrationStatusResponse{}, nil
	}
}

// serve serves a driver at a socket. What it returns stops it, and removes the socket.
func (d *driver) serve(t *testing.T, path string) (stop func()) {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, d)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return server.Stop
}

// recorder is a handler that writes down its calls.
type recorder struct {
	calls chan string
	fail  chan error // what the next call of Validate or Register returns, while there is something
	// hold keeps Register of a name from returning until it is closed, or the socket is removed.
	hold map[string]chan struct{}

	mu     sync.Mutex
	inside map[string]bool
	t      *testing.T
}

func newRecorder(t *testing.T) *recorder {
	return &recorder{
		calls: make(chan string, 1000), fail: make(chan error, 100), hold: map[string]chan struct{}{}, inside: map[string]bool{}, t: t,
	}
}

// enter writes down a call, which must be the only one for plug-ins of the name.
func (r *recorder) enter(call string, p Plugin) (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inside[p.Name] {
		r.t.Errorf("%s of %s comes while another call for that name runs", call, p.Name)
	}
	r.inside[p.Name] = true
	r.calls <- fmt.Sprint(call, " ", p.Name, " ", filepath.Base(p.Endpoint), " ", p.Versions)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.inside[p.Name] = false
	}
}

func (r *recorder) failure() error {
	select {
	case err := <-r.fail:
		return err
	default:
		return nil
	}
}

func (r *recorder) Validate(_ context.Context, p Plugin) error {
	defer r.enter("Validate", p)()
	return r.failure()
}

func (r *recorder) Register(ctx context.Context, p Plugin) error {
	defer r.enter("Register", p)()
	if hold := r.hold[p.Name]; hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
		}
	}
	return r.failure()
}

func (r *recorder) Deregister(ctx context.Context, p Plugin) {
	defer r.enter("Deregister", p)()
	if ctx.Err() != nil {
		r.t.Error("Deregister has no time")
	}
}

// stepped is a clock that stands until a test lets it go on.
type stepped struct {
	asked chan time.Duration
	end   chan time.Time
}

func (s *stepped) Now() time.Time { return time.Unix(0, 0) }

func (s *stepped) After(d time.Duration) <-chan time.Time {
	s.asked <- d
	return s.end
}

// room is a manager that runs.
type room struct {
	dir string
	*recorder
	*stepped
	stop func()
}

func run(t *testing.T, dir string) *room {
	r := &room{dir: dir, recorder: newRecorder(t), stepped: &stepped{make(chan time.Duration, 100), make(chan time.Time)}}
	r.start(t)
	return r
}

func (r *room) start(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() {
		over <- Run(ctx, Options{Dir: r.dir, Handlers: map[string]Handler{"CSIPlugin": r.recorder}, Clock: r.stepped})
	}()
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := next(t, over); err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(func() { r.stop() })
}

// registered waits until a plug-in is told that it is registered.
func registered(t *testing.T, d *driver) {
	t.Helper()
	if status := next(t, d.told); !status.PluginRegistered || status.Error != "" {
		t.Errorf("told %v", status)
	}
}

func refused(t *testing.T, d *driver, want string) {
	t.Helper()
	if status := next(t, d.told); status.PluginRegistered || !strings.HasPrefix(status.Error, "RegisterPlugin error -- "+want) {
		t.Errorf("told %v, want %s", status, want)
	}
}

// Sockets that are there when the manager starts are found, as are those that come later, here and below. When one goes, its plug-in is
// deregistered.
func TestSockets(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugins_registry")
	if err := os.MkdirAll(filepath.Join(dir, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	early, deep := newDriver("early", "1.0", "1.1"), newDriver("deep", "1.0")
	gone := early.serve(t, filepath.Join(dir, "early.sock"))
	deep.serve(t, filepath.Join(dir, "below/deep.sock"))
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	newDriver("hidden", "1.0").serve(t, filepath.Join(dir, ".hidden.sock"))
	r := run(t, dir)
	registered(t, early)
	registered(t, deep)
	seen := map[string]bool{}
	for range 4 {
		seen[next(t, r.calls)] = true
	}
	for _, call := range []string{
		"Validate early early.sock [1.0 1.1]", "Register early early.sock [1.0 1.1]",
		"Validate deep deep.sock [1.0]", "Register deep deep.sock [1.0]",
	} {
		if !seen[call] {
			t.Errorf("%s is missing in %v", call, seen)
		}
	}
	late := newDriver("late", "1.0")
	late.info.Endpoint = "/run/csi.sock"
	if err := os.MkdirAll(filepath.Join(dir, "new/er"), 0o755); err != nil {
		t.Fatal(err)
	}
	late.serve(t, filepath.Join(dir, "new/er/late.sock"))
	registered(t, late)
	calls(t, r.calls, "Validate late csi.sock [1.0]", "Register late csi.sock [1.0]")
	gone()
	calls(t, r.calls, "Deregister early early.sock [1.0 1.1]")
	if err := os.RemoveAll(filepath.Join(dir, "below")); err != nil {
		t.Fatal(err)
	}
	calls(t, r.calls, "Deregister deep deep.sock [1.0]")
}

// A directory that is not there is made, and made again.
func TestDirectory(t *testing.T) {
	top := t.TempDir()
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	if err := watcher.Add(top); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(top, "plugins_registry")
	r := run(t, dir)
	for range 2 {
		for !next(t, watcher.Events).Has(fsnotify.Create) {
		}
		d := newDriver("d")
		d.serve(t, filepath.Join(dir, "d.sock"))
		registered(t, d)
		calls(t, r.calls, "Validate d d.sock []", "Register d d.sock []")
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		calls(t, r.calls, "Deregister d d.sock []")
	}
}

// A socket that another one replaces is deregistered before the other one is looked at.
func TestReplacedSocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "d.sock")
	old := newDriver("d", "1.0")
	old.serve(t, path)
	r := run(t, dir)
	registered(t, old)
	beside := filepath.Join(t.TempDir(), "d.sock")
	other := newDriver("d", "2.0")
	other.serve(t, beside)
	if err := os.Rename(beside, path); err != nil { // at once: no moment is without a socket
		t.Fatal(err)
	}
	registered(t, other)
	calls(t, r.calls, "Validate d d.sock [1.0]", "Register d d.sock [1.0]", "Deregister d d.sock [1.0]",
		"Validate d d.sock [2.0]", "Register d d.sock [2.0]")
}

// A plug-in that is refused is told why, and is tried again, later and later.
func TestRefusedPlugins(t *testing.T) {
	dir := t.TempDir()
	r := run(t, dir)
	d := newDriver("d", "1.0")
	r.fail <- errors.New("too old")
	r.fail <- nil
	r.fail <- errors.New("no room")
	d.serve(t, filepath.Join(dir, "d.sock"))
	refused(t, d, "plugin validation failed with err: too old")
	if wait := next(t, r.asked); wait != 500*time.Millisecond {
		t.Errorf("tried again after %v", wait)
	}
	r.end <- time.Time{}
	refused(t, d, "plugin registration failed with err: no room")
	if wait := next(t, r.asked); wait != time.Second {
		t.Errorf("tried again after %v", wait)
	}
	d.refuse <- errors.New("what?")
	r.end <- time.Time{}
	registered(t, d) // so it is told, and answers with an error
	if wait := next(t, r.asked); wait != 2*time.Second {
		t.Errorf("tried again after %v", wait)
	}
	r.end <- time.Time{}
	registered(t, d)
	const of = " d d.sock [1.0]"
	calls(t, r.calls, "Validate"+of, "Validate"+of, "Register"+of, "Validate"+of, "Register"+of, "Deregister"+of, "Validate"+of, "Register"+of)
}

// The wait between two attempts has a bound.
func TestBackOff(t *testing.T) {
	dir := t.TempDir()
	d := newDriver("d", "1.0")
	d.info.Type = "Toaster"
	path := filepath.Join(dir, "d.sock")
	d.serve(t, path)
	r := run(t, dir)
	for _, want := range []time.Duration{500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 122000, 122000} {
		refused(t, d, "no handler registered for plugin type: Toaster at socket "+path)
		if wait := next(t, r.asked); wait != want*time.Millisecond {
			t.Errorf("tried again after %v, want %v", wait, want*time.Millisecond)
		}
		r.end <- time.Time{}
	}
}

// A plug-in that does not answer, and one whose registration does not end, hinder no other. Each attempt has an end.
func TestPluginsThatHang(t *testing.T) {
	dir := t.TempDir()
	mute, slow, good := newDriver("mute"), newDriver("slow"), newDriver("good")
	mute.hang = make(chan struct{})
	mute.serve(t, filepath.Join(dir, "mute.sock"))
	slow.serve(t, filepath.Join(dir, "slow.sock"))
	var config net.ListenConfig
	deaf, err := config.Listen(t.Context(), "unix", filepath.Join(dir, "deaf.sock")) // it takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	r := &room{dir: dir, recorder: newRecorder(t), stepped: &stepped{make(chan time.Duration, 100), make(chan time.Time)}}
	hold := make(chan struct{})
	r.hold["slow"] = hold
	r.start(t)
	next(t, mute.asked)
	calls(t, r.calls, "Validate slow slow.sock []", "Register slow slow.sock []")
	good.serve(t, filepath.Join(dir, "good.sock"))
	registered(t, good)
	calls(t, r.calls, "Validate good good.sock []", "Register good good.sock []")
	next(t, r.asked) // GetInfo has a second
	close(hold)
	registered(t, slow)
}

// Handlers see one call at a time for plug-ins of one name, whatever sockets these have.
func TestPluginsOfOneName(t *testing.T) {
	dir := t.TempDir()
	r := &room{dir: dir, recorder: newRecorder(t), stepped: &stepped{make(chan time.Duration, 100), make(chan time.Time)}}
	hold := make(chan struct{})
	r.hold["d"] = hold
	var drivers []*driver
	var stops []func()
	for i := range 3 {
		d := newDriver("d", fmt.Sprint(i))
		drivers = append(drivers, d)
		stops = append(stops, d.serve(t, filepath.Join(dir, fmt.Sprintf("%d.sock", i))))
	}
	r.start(t)
	for _, d := range drivers {
		next(t, d.asked)
	}
	close(hold)
	for _, d := range drivers {
		registered(t, d)
	}
	for range 6 {
		next(t, r.calls)
	}
	stops[0]()
	calls(t, r.calls, "Deregister d 0.sock [0]")
}

// A plug-in whose socket goes while it is registered is not registered in the end.
func TestSocketThatGoesMeanwhile(t *testing.T) {
	dir := t.TempDir()
	r := &room{dir: dir, recorder: newRecorder(t), stepped: &stepped{make(chan time.Duration, 100), make(chan time.Time)}}
	r.hold["d"] = make(chan struct{})
	d := newDriver("d")
	path := filepath.Join(dir, "d.sock")
	d.serve(t, path)
	r.start(t)
	calls(t, r.calls, "Validate d d.sock []", "Register d d.sock []")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	calls(t, r.calls, "Deregister d d.sock []")
}

// A manager that ends deregisters nothing, and the next one registers what is there.
func TestStop(t *testing.T) {
	dir := t.TempDir()
	d := newDriver("d")
	d.serve(t, filepath.Join(dir, "d.sock"))
	r := run(t, dir)
	registered(t, d)
	r.stop()
	r.start(t)
	registered(t, d)
	calls(t, r.calls, "Validate d d.sock []", "Register d d.sock []", "Validate d d.sock []", "Register d d.sock []")
}
