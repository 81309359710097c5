// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package encryption_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kmsservice "k8s.io/kms/pkg/service"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/encryption"
	"github.com/mortise-dev/mortise/internal/apiserver/encryption/kmstest"
)

const aSecret = "/registry/secrets/ns/x"

// journal is a log that keeps its messages and passes each on.
type journal struct {
	slog.Handler
	mu    sync.Mutex
	lines []string
	each  chan string
}

func newJournal() *journal {
	return &journal{Handler: slog.DiscardHandler, each: make(chan string, 100)}
}

func (j *journal) Enabled(context.Context, slog.Level) bool { return true }

func (j *journal) Handle(_ context.Context, r slog.Record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	line := r.Level.String() + " " + r.Message
	j.lines = append(j.lines, line)
	j.each <- line
	return nil
}

// said returns the lines since the last call.
func (j *journal) said() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := j.lines
	j.lines = nil
	return out
}

// moody is a plug-in with one method that fails.
type moody struct {
	*kmstest.Plugin
	mu    sync.Mutex
	fails string
	asked chan struct{} // receives at each call of Status
	until []context.Context
}

func newMoody(t testing.TB) *moody {
	return &moody{Plugin: kmstest.New(t, ""), asked: make(chan struct{}, 100)}
}

func (m *moody) dial(ctx context.Context, _ string) (kmsservice.Service, error) {
	if err := m.failure("Dial"); err != nil {
		return nil, err
	}
	m.until = append(m.until, ctx)
	return m, nil
}

func (m *moody) fail(method string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fails = method
}

func (m *moody) failure(method string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails == method {
		return errors.New("no " + method + " today")
	}
	return nil
}

func (m *moody) Status(ctx context.Context) (*kmsservice.StatusResponse, error) {
	select {
	case m.asked <- struct{}{}:
	default:
	}
	if err := m.failure("Status"); err != nil {
		return nil, err
	}
	return m.Plugin.Status(ctx)
}

func (m *moody) Encrypt(ctx context.Context, uid string, data []byte) (*kmsservice.EncryptResponse, error) {
	if err := m.failure("Encrypt"); err != nil {
		return nil, err
	}
	return m.Plugin.Encrypt(ctx, uid, data)
}

func (m *moody) Decrypt(ctx context.Context, uid string, q *kmsservice.DecryptRequest) ([]byte, error) {
	if err := m.failure("Decrypt"); err != nil {
		return nil, err
	}
	return m.Plugin.Decrypt(ctx, uid, q)
}

func seal(t *testing.T, tr *encryption.Transformers) ([]byte, error) {
	t.Helper()
	return tr.Cipher(aSecret).Seal(t.Context(), aSecret, []byte("hello"))
}

// says fails the test unless an error contains a text; empty: there must be none.
func says(t *testing.T, what string, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

// TestSocket checks that a plug-in is called over its socket, and that its errors are returned.
func TestSocket(t *testing.T) {
	m := newMoody(t)
	folder, err := os.MkdirTemp("", "kms") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	socket := filepath.Join(folder, "kms.sock")
	server, ended := kmsservice.NewGRPCService(socket, 5*time.Second, m), make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	t.Cleanup(func() { server.Close(); <-ended })
	data := document("secrets => {kms: {apiVersion: v2, name: vault, timeout: 60s, endpoint: 'unix://" + socket + "'}}")
	for _, ledger := range []*extension.Ledger{nil, extension.NewLedger(clock.RealClock{})} {
		m.fail("")
		o := encryption.Options{Ledger: ledger}
		one, two := start(t, data, o), start(t, data, o)
		says(t, "health", one.Check(t.Context()), "")
		sealed, err := seal(t, one)
		if err != nil {
			t.Fatal(err)
		}
		m.fail("Decrypt")
		_, _, err = two.Cipher(aSecret).Open(t.Context(), aSecret, sealed)
		says(t, "open while the plug-in refuses", err, "no Decrypt today")
		m.fail("")
		plain, _, err := two.Cipher(aSecret).Open(t.Context(), aSecret, sealed)
		if says(t, "open", err, ""); string(plain) != "hello" {
			t.Errorf("opened as %q", plain)
		}
		for _, method := range []string{"Status", "Encrypt"} {
			m.fail(method)
			ill := start(t, data, o)
			err := ill.Check(t.Context())
			if says(t, "health", err, "no "+method+" today"); err != nil && strings.Contains(err.Error(), "call ") {
				t.Errorf("health: %v: the error is not the plug-in's own", err)
			}
			_, err = seal(t, ill)
			says(t, "seal without a seed", err, "got unexpected nil transformer")
		}
	}
}

// TestAwait checks that the server waits for the plug-ins that it needs to start, and that the log reports an unhealthy
// plug-in and its recovery once each.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, log, ledger := newMoody(t), newJournal(), extension.NewLedger(clock.RealClock{})
		m.fail("Status")
		tr := start(t, document("secrets => "+kms("vault")), encryption.Options{Dial: m.dial, Log: slog.New(log), Ledger: ledger})
		if entries := ledger.Snapshot(); len(entries) != 1 || entries[0].Name != "vault" || entries[0].Where != "config.yaml" {
			t.Errorf("the ledger says %+v", entries)
		}
		says(t, "a plug-in that nobody needs", tr.Await(t.Context(), func(gr schema.GroupResource) bool { return gr.Resource == "secrets" }), "")
		none := func(schema.GroupResource) bool { return false }
		short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		says(t, "a wait that is ended", tr.Await(short, none), "wait for KMS plug-in vault: context deadline exceeded")
		time.Sleep(time.Minute)
		synctest.Wait()
		watch := func(lines []string) (out []string) {
			for _, l := range lines {
				if !strings.Contains(l, "Could not watch files") { // there is no folder to watch
					out = append(out, l)
				}
			}
			return out
		}
		want := []string{"ERROR Could not get the status of a KMS plug-in", "WARN Waiting for a KMS plug-in"}
		if diff := cmp.Diff(want, watch(log.said())); diff != "" {
			t.Errorf("the log of one who is ill: %s", diff)
		}
		awaited := make(chan error, 1)
		go func() { awaited <- tr.Await(t.Context(), none) }()
		synctest.Wait()
		m.fail("")
		says(t, "the wait for one who comes", <-awaited, "")
		says(t, "a wait for one who is there", tr.Await(t.Context(), none), "")
		says(t, "health", tr.Check(t.Context()), "")
		time.Sleep(5*time.Minute + time.Second) // longer than writes are allowed after one status
		synctest.Wait()
		_, err := seal(t, tr)
		says(t, "a write with a key that stays", err, "")
		if diff := cmp.Diff([]string{"WARN Waiting for a KMS plug-in", "WARN KMS plug-in is healthy again"}, watch(log.said())); diff != "" {
			t.Errorf("the log of one who is well: %s", diff)
		}
		if _, encryptions, _ := m.Calls(); encryptions != 1 {
			t.Errorf("%d seeds for one key", encryptions)
		}
	})
}

// TestSocketComes checks that a plug-in is called immediately when its socket appears or is replaced, long before the
// next interval.
func TestSocketComes(t *testing.T) {
	m, socket := newMoody(t), filepath.Join(t.TempDir(), "kms.sock")
	tr := start(t, document("secrets => {kms: {apiVersion: v2, name: vault, endpoint: 'unix://"+socket+"'}}"),
		encryption.Options{Dial: m.dial})
	<-m.asked
	for n := range 2 {
		other := fmt.Sprintf("%s.%d", socket, n) // both exist at the same time, so that they are two files
		if err := os.WriteFile(other, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(other, socket); err != nil {
			t.Fatal(err)
		}
		<-m.asked
	}
	tr.Close()
}

// TestChecks checks that there is a health check if there is a plug-in, or if a reload could add one.
func TestChecks(t *testing.T) {
	local := document("secrets => " + keyed("aesgcm", "k", "a"))
	for _, c := range []struct {
		data   []byte
		reload bool
		want   bool
	}{{local, false, false}, {local, true, true}, {document("secrets => " + kms("vault")), false, true}} {
		if got := start(t, c.data, encryption.Options{Reload: c.reload, Dial: newMoody(t).dial}).Checks(); got != c.want {
			t.Errorf("reload %t: a health check %t, want %t", c.reload, got, c.want)
		}
	}
}

// TestTwoParts checks resources whose prefixes share the first part: services and endpoints.
func TestTwoParts(t *testing.T) {
	tr := start(t, document("services => "+keyed("aesgcm", "k", "a")), encryption.Options{})
	for key, want := range map[string]bool{
		"/registry/services/specs/ns/x": true, "/registry/services/specs": true, "/registry/services/endpoints/ns/x": false,
		"/elsewhere/services/x": false,
	} {
		if got := tr.Cipher(key) != nil; got != want {
			t.Errorf("%s is sealed: %t", key, got)
		}
	}
}

// TestLoad checks that unreadable and invalid files are rejected.
func TestLoad(t *testing.T) {
	_, err := encryption.Load(filepath.Join(t.TempDir(), "none.yaml"), false)
	says(t, "no file", err, "no such file")
	_, err = encryption.Parse("c.yaml", []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n"), false)
	says(t, "another kind", err, "it is a apiserver.config.k8s.io/v1, Kind=AdmissionConfiguration")
	_, err = encryption.Parse("c.yaml", document("'*.' => {identity: {}}", "secrets => {identity: {}}"), false)
	says(t, "the core group's", err, `masked by earlier rule "*."`)
	m := newMoody(t)
	m.fail("Dial")
	c, err := encryption.Parse("c.yaml", document("secrets => "+kms("vault")), false)
	if err != nil {
		t.Fatal(err)
	}
	_, err = encryption.Start(t.Context(), c, encryption.Options{Dial: m.dial})
	says(t, "no client", err, "use KMS provider vault: no Dial today")
}

// series returns the values of a server's metrics, without times.
func series(t *testing.T, tr *encryption.Transformers) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(tr.Metrics())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "apiserver_encryption_config_controller_")
			for _, l := range m.GetLabel() {
				name += " " + l.GetName() + "=" + l.GetValue()
			}
			if !strings.Contains(name, "timestamp") {
				out[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return out
}

func hash(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// TestReloadPlugins checks that the plug-ins of a new file are followed, and that those of the old one are closed once
// no request can use them. A new file with unhealthy plug-ins changes nothing.
func TestReloadPlugins(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	synctest.Test(t, func(t *testing.T) {
		m, ledger := newMoody(t), extension.NewLedger(clock.RealClock{})
		first := document("secrets => " + kms("one"))
		c, err := encryption.Parse(file, first, true)
		if err != nil {
			t.Fatal(err)
		}
		tr, err := encryption.Start(t.Context(), c, encryption.Options{Reload: true, ServerID: "me", Dial: m.dial, Ledger: ledger})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		write := func(data []byte) {
			t.Helper()
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		says(t, "no file", tr.Reload(t.Context()), "read encryption configuration: ")
		id := hash([]byte("me"))
		if diff := cmp.Diff(map[string]float64{"last_config_info apiserver_id_hash=" + id + " hash=" + hash(first): 1},
			series(t, tr)); diff != "" {
			t.Error(diff)
		}

		second := document("secrets => " + kms("two") + ", " + kms("one"))
		write(second)
		m.fail("Dial")
		says(t, "no client", tr.Reload(t.Context()), "no Dial today")
		m.fail("Status")
		began := time.Now()
		says(t, "one that is ill", tr.Reload(t.Context()), "check health of KMS plug-ins: ")
		if took := time.Since(began); took < 12*time.Second || took > 13*time.Second { // twice the sum of the timeouts of 3 s
			t.Errorf("waited %s for plug-ins to be well", took)
		}
		if m.until[0].Err() != nil || m.until[1].Err() == nil || m.until[2].Err() == nil {
			t.Error("the old plug-in's client has ended, or those of the file that was not taken have not")
		}
		m.fail("")
		says(t, "one that is well", tr.Reload(t.Context()), "")
		if sealed, err := seal(t, tr); err != nil || !strings.HasPrefix(string(sealed), "k8s:enc:kms:v2:two:") {
			t.Errorf("sealed as %.30q, %v", sealed, err)
		}
		var names []string
		for _, e := range ledger.Snapshot() {
			names = append(names, e.Name+" "+filepath.Base(e.Where))
		}
		if diff := cmp.Diff([]string{"one c.yaml", "two c.yaml"}, names); diff != "" {
			t.Errorf("the ledger: %s", diff)
		}
		want := map[string]float64{
			"last_config_info apiserver_id_hash=" + id + " hash=" + hash(second):  1,
			"automatic_reloads_total apiserver_id_hash=" + id + " status=success": 1,
		}
		if diff := cmp.Diff(want, series(t, tr)); diff != "" {
			t.Error(diff)
		}
		time.Sleep(5 * time.Second)
		if m.until[0].Err() != nil {
			t.Error("the old plug-in is let go while requests may use it")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if m.until[0].Err() == nil {
			t.Error("the old plug-in is not let go")
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		_, err = seal(t, tr)
		says(t, "a write with plug-ins that are followed", err, "")
	})
}

// TestRun checks that the file is followed if reloads are enabled. An invalid file is counted each time, and logged
// once.
func TestRun(t *testing.T) {
	file, log := filepath.Join(t.TempDir(), "c.yaml"), newJournal()
	write := func(data []byte) {
		t.Helper()
		if err := os.WriteFile(file+".new", data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	one, two := document("secrets => "+keyed("aesgcm", "one", "a")), document("secrets => "+keyed("aesgcm", "two", "a"))
	write(one)
	for _, reload := range []bool{false, true} {
		c, err := encryption.Load(file, reload)
		if err != nil {
			t.Fatal(err)
		}
		tr, err := encryption.Start(t.Context(), c, encryption.Options{Reload: reload, Log: slog.New(log)})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- tr.Run(ctx) }()
		if reload {
			for range 2 {
				write([]byte("kind: Nothing\n"))
				if got := <-log.each; got != "ERROR Could not reload the encryption configuration, keeping the previous one" {
					t.Errorf("a bad file: %s", got)
				}
				write([]byte("kind: Nothing\n"))
				write(two)
				if got := <-log.each; got != "INFO Reloaded the encryption configuration" {
					t.Errorf("a good file: %s", got)
				}
				one, two = two, one
			}
			got := series(t, tr)
			if got["automatic_reloads_total apiserver_id_hash= status=failure"] < 2 ||
				got["automatic_reloads_total apiserver_id_hash= status=success"] != 2 {
				t.Errorf("counted %v", got)
			}
		} else {
			select {
			case err := <-ended:
				t.Fatalf("it ended by itself: %v", err)
			default:
			}
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("reload %t: it ended with %v", reload, err)
		}
	}
}

// TestClosedConnections checks that a plug-in's connections are closed with their user.
func TestClosedConnections(t *testing.T) {
	folder, err := os.MkdirTemp("", "kms")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	socket := filepath.Join(folder, "kms.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	met, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(ended)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		defer close(met)
		// A server's empty settings: the client takes the connection for one that works, and waits for its answers.
		if _, err := c.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}); err != nil {
			ended <- err
			return
		}
		met <- struct{}{}
		_, err = io.Copy(io.Discard, c)
		ended <- err
	}()
	data := document("secrets => {kms: {apiVersion: v2, name: vault, timeout: 10ms, endpoint: 'unix://" + socket + "'}}")
	tr := start(t, data, encryption.Options{})
	<-met
	tr.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// lingering is a plug-in that takes a moment to notice that its caller has left.
type lingering struct {
	*moody
	over atomic.Bool
}

func (l *lingering) dial(context.Context, string) (kmsservice.Service, error) { return l, nil }

func (l *lingering) Status(ctx context.Context) (*kmsservice.StatusResponse, error) {
	if l.failure("Status") == nil {
		return l.moody.Status(ctx)
	}
	<-ctx.Done()
	time.Sleep(time.Second)
	l.over.Store(true)
	return nil, ctx.Err()
}

// TestCloseWaits checks that a plug-in receives no call after Close has returned.
func TestCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lingering{moody: newMoody(t)}
		tr := start(t, document("secrets => "+kms("vault")), encryption.Options{Dial: l.dial})
		l.fail("Status")
		time.Sleep(time.Minute + time.Second)
		tr.Close()
		if !l.over.Load() {
			t.Error("the plug-in is still asked for its status")
		}
	})
}

// TestHealthIsKept checks that health checks use a recent status: for 20 seconds if it was healthy, otherwise for 3.
func TestHealthIsKept(t *testing.T) {
	for _, c := range []struct {
		fails, want string
		kept        time.Duration
	}{{"", "", 20 * time.Second}, {"Status", "no Status today", 3 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			m := newMoody(t)
			m.fail(c.fails)
			tr := start(t, document("secrets => "+kms("vault")), encryption.Options{Dial: m.dial})
			synctest.Wait()
			for i, step := range []time.Duration{0, c.kept - 1, 1} {
				time.Sleep(step)
				says(t, "health", tr.Check(t.Context()), c.want)
				if asked := len(m.asked); asked != 1+i/2 {
					t.Errorf("after %v more it is asked %d times", step, asked)
				}
			}
		})
	}
}

// TestReloadThatFails checks that the connections of a new file are closed if the rest of it cannot be used.
func TestReloadThatFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	m := newMoody(t)
	var dialed []context.Context
	dial := func(ctx context.Context, socket string) (kmsservice.Service, error) {
		if dialed = append(dialed, ctx); len(dialed) == 3 {
			return nil, errors.New("no more")
		}
		return m, nil
	}
	c, err := encryption.Parse(file, document("secrets => "+kms("one")), true)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := encryption.Start(t.Context(), c, encryption.Options{Reload: true, Dial: dial})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if err := os.WriteFile(file, document("secrets => "+kms("two")+", "+kms("three")), 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, "a client that cannot be made", tr.Reload(t.Context()), "no more")
	if len(dialed) != 3 || dialed[0].Err() != nil || dialed[1].Err() == nil {
		t.Errorf("the first plug-in is let go, or the new file's is not: %v", dialed)
	}
}
