// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package encryption_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	kmsservice "k8s.io/kms/pkg/service"
	"k8s.io/utils/clock"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/encryption"
	"github.com/mortise-dev/mortise/internal/apiserver/encryption/kmstest"
	"github.com/mortise-dev/mortise/internal/kinds"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
	"github.com/mortise-dev/mortise/store/sealed"
)

func secret(c string, n int) string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte(c), n))
}

// document returns a configuration with rules, each "resources => providers" with providers as YAML flow.
func document(rules ...string) []byte {
	b := &strings.Builder{}
	fmt.Fprintln(b, "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:")
	for _, r := range rules {
		resources, providers, _ := strings.Cut(r, " => ")
		fmt.Fprintf(b, "- resources: [%s]\n  providers: [%s]\n", resources, providers)
	}
	return []byte(b.String())
}

func keyed(kind, name, c string) string {
	return fmt.Sprintf("{%s: {keys: [{name: %s, secret: %s}]}}", kind, name, secret(c, 32))
}

// kms is a plug-in in a folder that does not exist, so that there is nothing to watch, which a bubble's clock would
// wait for.
func kms(name string) string {
	return fmt.Sprintf("{kms: {apiVersion: v2, name: %s, endpoint: 'unix:///nowhere/%s.sock'}}", name, name)
}

func start(t *testing.T, data []byte, o encryption.Options) *encryption.Transformers {
	t.Helper()
	c, err := encryption.Parse("config.yaml", data, o.Reload)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := encryption.Start(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	tr.Know(kinds.All(kinds.Options{}))
	return tr
}

// TestResources checks that rules for a resource come before those for its group, and these before the wildcard, and
// that keys determine their resource.
func TestResources(t *testing.T) {
	tr := start(t, document(
		"secrets, events => "+keyed("aesgcm", "s", "a"),
		"widgets.example.com => "+keyed("aescbc", "w", "b"),
		"'*.apps' => "+keyed("secretbox", "g", "c"),
		"configmaps => {identity: {}}",
		"'*.*' => "+keyed("aesgcm", "all", "d"),
	), encryption.Options{})
	under := memory.Open(memory.Options{})
	s := store.New(sealed.New(under, tr))
	defer s.Close()
	for key, prefix := range map[string]string{
		"/registry/secrets/ns/x":                                "k8s:enc:aesgcm:v1:s:",
		"/registry/events/ns/x":                                 "k8s:enc:aesgcm:v1:s:",
		"/registry/example.com/widgets/ns/x":                    "k8s:enc:aescbc:v1:w:",
		"/registry/example.com/gadgets/ns/x":                    "k8s:enc:aesgcm:v1:all:",
		"/registry/deployments/ns/x":                            "k8s:enc:secretbox:v1:g:",
		"/registry/services/specs/ns/x":                         "k8s:enc:aesgcm:v1:all:",
		"/registry/services/endpoints/ns/x":                     "k8s:enc:aesgcm:v1:all:",
		"/registry/ranges/serviceips":                           "k8s:enc:aesgcm:v1:all:",
		"/registry/apiregistration.k8s.io/apiservices/v1.x.dev": "k8s:enc:aesgcm:v1:all:",
		"/registry/configmaps/ns/x":                             "hello",
	} {
		if _, err := s.Create(t.Context(), key, []byte("hello"), 0); err != nil {
			t.Fatal(err)
		}
		raw, _, _ := under.Get(t.Context(), key)
		if !bytes.HasPrefix(raw.Value, []byte(prefix)) {
			t.Errorf("%s is stored as %.40q, want %s…", key, raw.Value, prefix)
		}
		r, _, err := s.Get(t.Context(), key)
		if err != nil || string(r.Value) != "hello" {
			t.Errorf("%s reads %v, %v", key, r, err)
		}
		if strings.HasSuffix(key, "/ns/x") {
			prefix := strings.TrimSuffix(key, "ns/x")
			if !tr.Whole(prefix) {
				t.Errorf("%s is not known as one resource's prefix", prefix)
			}
			if p, err := s.List(t.Context(), prefix); err != nil || len(p.Records) != 1 || string(p.Records[0].Value) != "hello" {
				t.Errorf("list %s: %v, %v", prefix, p, err)
			}
		}
	}
	for _, prefix := range []string{"/registry/", "/registry/services/", "/registry/example.com/", "/registry/sec", "/other/"} {
		if tr.Whole(prefix) {
			t.Errorf("%s is taken for one resource's prefix", prefix)
		}
	}
	if p, err := s.List(t.Context(), "/registry/"); err != nil || len(p.Records) != 10 {
		t.Errorf("list of all: %d, %v", len(p.Records), err)
	}
}

// TestRefused checks that errors of a file are reported before anything is started.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"empty":         {nil, "is empty"},
		"unknown field": {append(document("secrets => {identity: {}}"), "x: 1\n"...), "unknown field"},
		"no provider":   {document("secrets => "), "providers"},
		"short key": {document("secrets => {aesgcm: {keys: [{name: a, secret: " + secret("a", 5) + "}]}}"),
			"secret is not of the expected length"},
		"masked":       {document("'*.*' => {identity: {}}", "secrets => {identity: {}}"), `resource "secrets" is masked by earlier rule "*.*"`},
		"masked group": {document("'*.apps' => {identity: {}}", "deployments.apps => {identity: {}}"), `masked by earlier rule "*.apps"`},
		"kms v1":       {document("secrets => {kms: {apiVersion: v1, name: a, endpoint: 'unix:///x'}}"), "apiVersion v1 is not served"},
		"kms tcp":      {document("secrets => {kms: {apiVersion: v2, name: a, endpoint: 'tcp://x'}}"), "unsupported scheme"},
		"same name":    {document("secrets => "+kms("a"), "configmaps => "+kms("a")), "must be unique"},
	} {
		_, err := encryption.Parse("c.yaml", c.data, false)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(document("secrets, '*.apps' => " + keyed("aesgcm", "a", "b")))
	f.Add(document("'*.*' => " + kms("a")))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := encryption.Parse("c.yaml", data, true); (c == nil) == (err == nil) {
			t.Error("neither a configuration nor an error")
		}
	})
}

// TestRotation checks that keys and providers are rotated by adding the new one in front. Old values can be read, and
// are stale.
func TestRotation(t *testing.T) {
	under := memory.Open(memory.Options{})
	defer under.Close()
	key := "/registry/secrets/ns/x"
	if _, err := store.New(under).Create(t.Context(), key, []byte("hello"), 0); err != nil {
		t.Fatal(err)
	}
	gcm, cbc, box := keyed("aesgcm", "k1", "a"), keyed("aescbc", "k1", "b"), keyed("secretbox", "k1", "c")
	both := fmt.Sprintf("{aesgcm: {keys: [{name: k2, secret: %s}, {name: k1, secret: %s}]}}", secret("z", 16), secret("a", 32))
	for _, step := range []struct{ providers, prefix string }{
		{gcm + ", {identity: {}}", "k8s:enc:aesgcm:v1:k1:"},
		{both, "k8s:enc:aesgcm:v1:k2:"},
		{cbc + ", " + both, "k8s:enc:aescbc:v1:k1:"},
		{box + ", " + cbc, "k8s:enc:secretbox:v1:k1:"},
		{"{identity: {}}, " + box, "hello"},
	} {
		s := store.New(sealed.New(under, start(t, document("secrets => "+step.providers), encryption.Options{})))
		r, _, err := s.Get(t.Context(), key)
		if err != nil || string(r.Value) != "hello" {
			t.Fatalf("%s: %v", step.prefix, err)
		}
		if !s.Stale(t.Context(), r) {
			t.Errorf("%s: what is old is not stale", step.prefix)
		}
		made, err := s.Update(t.Context(), key, r.Revision, r.Value, 0)
		if err != nil {
			t.Fatal(err)
		}
		if s.Stale(t.Context(), made) {
			t.Errorf("%s: what is new is stale", step.prefix)
		}
		if raw, _, _ := under.Get(t.Context(), key); !bytes.HasPrefix(raw.Value, []byte(step.prefix)) {
			t.Errorf("stored as %.40q, want %s", raw.Value, step.prefix)
		}
	}
	// without a key the value cannot be read, and the error names the key
	s := store.New(sealed.New(under, start(t, document("secrets => "+box), encryption.Options{})))
	if _, _, err := s.Get(t.Context(), key); err == nil ||
		!strings.Contains(err.Error(), `"/registry/secrets/ns/x": no matching prefix found`) {
		t.Errorf("plain data without the identity provider: %v", err)
	}
}

var errDown = errors.New("connection refused")

// dialer makes plug-ins without sockets, each of which can be down.
type dialer struct {
	*kmstest.Plugin
	down atomic.Bool
}

func (d *dialer) dial(context.Context, string) (kmsservice.Service, error) { return d, nil }

func (d *dialer) Status(ctx context.Context) (*kmsservice.StatusResponse, error) {
	if d.down.Load() {
		return nil, errDown
	}
	return d.Plugin.Status(ctx)
}

func (d *dialer) Decrypt(ctx context.Context, uid string, q *kmsservice.DecryptRequest) ([]byte, error) {
	if d.down.Load() {
		return nil, errDown
	}
	return d.Plugin.Decrypt(ctx, uid, q)
}

func (d *dialer) Encrypt(ctx context.Context, uid string, data []byte) (*kmsservice.EncryptResponse, error) {
	if d.down.Load() {
		return nil, errDown
	}
	return d.Plugin.Encrypt(ctx, uid, data)
}

// TestPlugin follows a KMS v2 plug-in over an hour of trouble, on the bubble's clock.
func TestPlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialer{Plugin: kmstest.New(t, "")}
		ledger := extension.NewLedger(clock.RealClock{})
		tr := start(t, document("secrets => "+kms("vault")), encryption.Options{Dial: d.dial, Ledger: ledger})
		under := memory.Open(memory.Options{})
		s := store.New(sealed.New(under, tr))
		defer s.Close()
		ctx := t.Context()
		put := func(key string) (*store.Record, error) {
			return s.Update(ctx, "/registry/secrets/ns/"+key, store.Any, []byte("hello"), 0)
		}
		wait := func(d time.Duration) { time.Sleep(d); synctest.Wait() }

		first, err := put("a")
		if err != nil {
			t.Fatal(err)
		}
		for range 50 { // one seed for all, wrapped once
			if _, err := put("b"); err != nil {
				t.Fatal(err)
			}
		}
		if _, encryptions, _ := d.Calls(); encryptions != 1 {
			t.Errorf("%d calls to wrap a seed, want 1", encryptions)
		}
		raw, _, _ := under.Get(ctx, first.Key)
		if !bytes.HasPrefix(raw.Value, []byte("k8s:enc:kms:v2:vault:")) || bytes.Contains(raw.Value, []byte("hello")) {
			t.Errorf("stored %q", raw.Value)
		}
		statuses, _, _ := d.Calls()
		wait(10*time.Minute + time.Second)
		if after, _, _ := d.Calls(); after-statuses < 9 || after-statuses > 10 {
			t.Errorf("asked %d times in ten minutes for its status", after-statuses)
		}

		// another key: within a minute writes use it, and values of the old one are stale but readable
		d.Rotate("key-2")
		wait(time.Minute + 10*time.Second)
		if !s.Stale(ctx, first) {
			t.Error("what the old key sealed is not stale")
		}
		if again, err := put("a"); err != nil || s.Stale(ctx, again) {
			t.Errorf("writing it again: %v", err)
		}
		if _, encryptions, _ := d.Calls(); encryptions != 2 {
			t.Errorf("%d seeds for two keys", encryptions)
		}

		// a status that names another key than the one that wraps: the old seed stays in use until it expires
		d.Disagree("key-3")
		wait(time.Minute + 10*time.Second)
		if err := tr.Check(ctx); err == nil || !strings.Contains(err.Error(), "the plug-in's status names key") {
			t.Errorf("health: %v", err)
		}
		if _, err := put("a"); err != nil {
			t.Errorf("writes end before their time: %v", err)
		}
		wait(3 * time.Minute)
		if _, err := put("a"); err == nil || !strings.Contains(err.Error(), "encryptedDEKSource with keyID hash") ||
			!strings.Contains(err.Error(), "expired at") {
			t.Errorf("a write three minutes after the last good status: %v", err)
		}
		if _, _, err := s.Get(ctx, first.Key); err != nil {
			t.Errorf("reads end with writes: %v", err)
		}
		d.Rotate("key-3")
		wait(11 * time.Second)
		if _, err := put("a"); err != nil {
			t.Errorf("a write after the plug-in has come to its senses: %v", err)
		}

		// down: reads with known seeds continue, also of values that are new in memory
		d.down.Store(true)
		wait(5 * time.Minute)
		if _, err := put("a"); err == nil {
			t.Error("a write with a plug-in that is down for five minutes")
		}
		fresh := store.New(sealed.New(under, tr))
		under.Get(ctx, first.Key)
		if r, _, _ := under.Get(ctx, first.Key); r != nil {
			r.SetView(nil)
		}
		if r, _, err := fresh.Get(ctx, first.Key); err != nil || string(r.Value) != "hello" {
			t.Errorf("a read while the plug-in is down: %v", err)
		}
		if err := tr.Check(ctx); err == nil || !strings.Contains(err.Error(), "kms-provider-0: ") ||
			!strings.Contains(err.Error(), "connection refused") {
			t.Errorf("health: %v", err)
		}
		entries := ledger.Snapshot()
		if len(entries) != 1 || entries[0].Name != "vault" || entries[0].Calls == 0 || entries[0].LastError != "connection refused" {
			t.Errorf("the ledger says %+v", entries)
		}

		// unhealthy by its own status, or with another version
		d.down.Store(false)
		wait(11 * time.Second)
		for _, c := range []struct{ health, version, want string }{
			{"vault is sealed", "", "got unexpected healthz status: vault is sealed"},
			{"", "v3", "expected KMSv2 API version v2, got v3"},
			{"", "v2beta1", "should not change after the initial status response version v2, got v2beta1"},
		} {
			d.Say(c.health, c.version)
			wait(21 * time.Second)
			if err := tr.Check(ctx); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("health: %v, want %q", err, c.want)
			}
			d.Say("", "")
			wait(11 * time.Second)
			if err := tr.Check(ctx); err != nil {
				t.Errorf("health afterwards: %v", err)
			}
		}
	})
}

// TestPluginDownAtStart checks that the server starts without the plug-in, and that its resources can be neither read
// nor written until it is up.
func TestPluginDownAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialer{Plugin: kmstest.New(t, "")}
		d.down.Store(true)
		tr := start(t, document("secrets => "+kms("vault")), encryption.Options{Dial: d.dial})
		s := store.New(sealed.New(memory.Open(memory.Options{}), tr))
		defer s.Close()
		if _, err := s.Create(t.Context(), "/registry/secrets/ns/x", []byte("x"), 0); err == nil {
			t.Error("a write without a seed")
		}
		if _, err := s.Create(t.Context(), "/registry/configmaps/ns/x", []byte("x"), 0); err != nil {
			t.Errorf("a write of what is not encrypted: %v", err)
		}
		if err := tr.Check(t.Context()); err == nil {
			t.Error("healthy without its plug-in")
		}
		d.down.Store(false)
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if _, err := s.Create(t.Context(), "/registry/secrets/ns/x", []byte("x"), 0); err != nil {
			t.Errorf("a write once the plug-in is there: %v", err)
		}
	})
}

// TestReload checks that a valid file takes effect, and that an invalid one is counted and changes nothing.
func TestReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	write := func(data []byte) {
		t.Helper()
		if err := os.WriteFile(file+".new", data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	one, two := keyed("aesgcm", "one", "a"), keyed("aesgcm", "two", "b")
	write(document("secrets => " + one))
	c, err := encryption.Load(file, true)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := encryption.Start(t.Context(), c, encryption.Options{Reload: true, ServerID: "me"})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	prefix := func() string {
		t.Helper()
		v, err := tr.Cipher("/registry/secrets/ns/x").Seal(t.Context(), "/registry/secrets/ns/x", []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		return string(v[:len("k8s:enc:aesgcm:v1:one:")])
	}
	if err := tr.Reload(t.Context()); err != nil || prefix() != "k8s:enc:aesgcm:v1:one:" {
		t.Fatalf("nothing new: %v, %s", err, prefix())
	}
	write([]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources: 7\n"))
	if err := tr.Reload(t.Context()); err == nil || prefix() != "k8s:enc:aesgcm:v1:one:" {
		t.Errorf("a bad file: %v, %s", err, prefix())
	}
	write(document("secrets => " + two + ", " + one))
	if err := tr.Reload(t.Context()); err != nil || prefix() != "k8s:enc:aesgcm:v1:two:" {
		t.Errorf("a good file: %v, %s", err, prefix())
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(tr.Metrics())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	want := "apiserver_encryption_config_controller_automatic_reload_last_timestamp_seconds apiserver_encryption_config_controller_automatic_reloads_total apiserver_encryption_config_controller_last_config_info"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("metrics %s", got)
	}
}
