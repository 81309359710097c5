// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package sealed_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/alarm"
	"github.com/mortise-dev/mortise/store/local"
	"github.com/mortise-dev/mortise/store/memory"
	"github.com/mortise-dev/mortise/store/sealed"
	"github.com/mortise-dev/mortise/store/storetest"
)

var _ = storetest.Seed()

// gcm seals everything with AES-GCM, and reads what is plain.
type gcm struct {
	cipher.AEAD
	key   string // its name, in the prefix
	older *gcm
}

func newGCM(t testing.TB, key string, older *gcm) *gcm {
	t.Helper()
	block, err := aes.NewCipher(bytes.Repeat([]byte(key), 16))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	return &gcm{aead, key, older}
}

func (g *gcm) Cipher(key string) sealed.Cipher {
	if strings.Contains(key, "plain") {
		return nil
	}
	return g
}

func (g *gcm) prefix() string { return sealed.Prefix + "test:" + g.key + ":" }

func (g *gcm) Seal(_ context.Context, key string, plain []byte) ([]byte, error) {
	nonce := make([]byte, g.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	out := append([]byte(g.prefix()), nonce...)
	return g.AEAD.Seal(out, nonce, plain, []byte(key)), nil
}

func (g *gcm) Open(_ context.Context, key string, stored []byte) ([]byte, bool, error) {
	for c := g; c != nil; c = c.older {
		if rest, ok := bytes.CutPrefix(stored, []byte(c.prefix())); ok {
			n := c.NonceSize()
			out, err := c.AEAD.Open(nil, rest[:n], rest[n:], []byte(key))
			return out, c != g, err
		}
	}
	return nil, false, errors.New("no matching key")
}

// TestEngine: an engine under seal keeps every promise.
func TestEngine(t *testing.T) {
	c := newGCM(t, "k", nil)
	t.Run("memory", func(t *testing.T) {
		storetest.Run(t, func(_ testing.TB, clock alarm.Clock) storetest.Open {
			return func() (store.Engine, error) {
				return sealed.New(memory.Open(memory.Options{Clock: clock}), c), nil
			}
		}, storetest.Features{Clock: true, Checks: 20})
	})
	t.Run("local", func(t *testing.T) {
		storetest.Run(t, func(tb testing.TB, clock alarm.Clock) storetest.Open {
			dir := tb.TempDir()
			return func() (store.Engine, error) {
				e, err := local.Open(dir, local.Options{Clock: clock})
				if err != nil {
					return nil, err
				}
				return sealed.New(e, c), nil
			}
		}, storetest.Features{Durable: true, Clock: true, Checks: 10})
	})
}

// TestSealed looks at what the engine below is given, and at what others make of it.
func TestSealed(t *testing.T) {
	ctx := context.Background()
	under := memory.Open(memory.Options{})
	old := newGCM(t, "a", nil)
	s := store.New(sealed.New(under, old))
	defer s.Close()
	made, err := s.Create(ctx, "/r/secrets/x", []byte("hello"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if string(made.Value) != "hello" {
		t.Errorf("commit returned %q", made.Value)
	}
	raw, _, _ := under.Get(ctx, "/r/secrets/x")
	if !bytes.HasPrefix(raw.Value, []byte("k8s:enc:test:a:")) || bytes.Contains(raw.Value, []byte("hello")) {
		t.Errorf("stored %q", raw.Value)
	}
	if got, _, _ := s.Get(ctx, "/r/secrets/x"); got != made {
		t.Error("the plain record is not shared")
	}
	var conflict *store.ConflictError
	if _, err := s.Create(ctx, "/r/secrets/x", []byte("b"), 0); !errors.As(err, &conflict) || string(conflict.Current.Value) != "hello" {
		t.Errorf("conflict: %v", err)
	}
	if _, err := s.Create(ctx, "/r/plain/x", []byte("open"), 0); err != nil {
		t.Fatal(err)
	}
	if raw, _, _ := under.Get(ctx, "/r/plain/x"); string(raw.Value) != "open" {
		t.Errorf("a value without a cipher is stored as %q", raw.Value)
	}

	// a value is bound to its key
	if _, _, err := under.Commit(ctx, store.Op{Key: "/r/secrets/moved", Value: raw.Value, Expect: store.Any}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Get(ctx, "/r/secrets/moved"); err == nil ||
		!strings.Contains(err.Error(), `unable to transform key "/r/secrets/moved"`) {
		t.Errorf("a value opened under another key: %v", err)
	}
	if _, err := s.List(ctx, "/r/secrets/"); err == nil || !strings.Contains(err.Error(), "/r/secrets/moved") {
		t.Errorf("a list says nothing of what it cannot read: %v", err)
	}
	w, err := s.Watch(ctx, "/r/secrets/", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.Next(ctx); err == nil || !strings.Contains(err.Error(), "/r/secrets/moved") {
		t.Errorf("a watch says nothing of what it cannot read: %v", err)
	}

	// sealed values where plain ones are expected are an error, not data
	if _, _, err := under.Commit(ctx, store.Op{Key: "/r/plain/y", Value: raw.Value, Expect: store.Any}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Get(ctx, "/r/plain/y"); !errors.Is(err, sealed.ErrSealed) {
		t.Errorf("a sealed value was read as plain: %v", err)
	}

	// a new key reads what the old one wrote, says that it is stale, and writes anew
	rotated := store.New(sealed.New(under, newGCM(t, "b", old)))
	if s.Stale(ctx, made) {
		t.Error("what the only key sealed is stale")
	}
	if !rotated.Stale(ctx, made) {
		t.Error("what the older key sealed is not stale")
	}
	now, err := rotated.Update(ctx, "/r/secrets/x", made.Revision, made.Value, 0)
	if err != nil {
		t.Fatal(err)
	}
	if rotated.Stale(ctx, now) || now.Revision == made.Revision {
		t.Error("writing it again did not help")
	}
	if raw, _, _ := under.Get(ctx, "/r/secrets/x"); !bytes.HasPrefix(raw.Value, []byte("k8s:enc:test:b:")) {
		t.Errorf("stored %q", raw.Value)
	}
}

// TestLenient: of a lenient engine, a value that does not decrypt hides no other from lists and watches. It is marked, names itself when
// it is opened, and can be read when its key has come back.
func TestLenient(t *testing.T) {
	ctx := t.Context()
	under := memory.Open(memory.Options{})
	keys := newGCM(t, "a", nil)
	s := store.New(sealed.NewLenient(under, keys))
	defer s.Close()
	for key, c := range map[string]*gcm{"/r/secrets/x": keys, "/r/secrets/y": newGCM(t, "b", nil), "/r/secrets/z": keys} {
		value, err := c.Seal(ctx, key, []byte("hello"))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := under.Commit(ctx, store.Op{Key: key, Value: value}); err != nil {
			t.Fatal(err)
		}
	}
	w, err := s.Watch(ctx, "/r/secrets/", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	page, err := s.List(ctx, "/r/secrets/")
	if err != nil || len(page.Records) != 3 {
		t.Fatalf("%v, %v", page.Records, err)
	}
	records := page.Records
	for len(records) < 6 {
		batch, err := w.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range batch.Events {
			records = append(records, e.Record)
		}
	}
	var last store.Unopened
	for _, r := range records {
		unopened, marked := r.View().(store.Unopened)
		if sealed := r.Key == "/r/secrets/y"; marked != sealed || sealed == (string(r.Value) == "hello") {
			t.Errorf("%s, marked %v: %q", r.Key, marked, r.Value)
		}
		if !marked {
			continue
		}
		last = unopened
		var unread *store.UnreadableError
		if _, err := unopened.Open(); !errors.As(err, &unread) || unread.Key != r.Key || unread.Revision != r.Revision || !unread.Sealed {
			t.Errorf("opened: %v", err)
		}
	}
	var unread *store.UnreadableError
	if _, _, err := s.Get(ctx, "/r/secrets/y"); !errors.As(err, &unread) {
		t.Errorf("get: %v", err)
	}
	var conflict *store.ConflictError
	if _, err := s.Create(ctx, "/r/secrets/y", []byte("b"), 0); !errors.As(err, &conflict) || conflict.Current == nil {
		t.Errorf("a key that is taken: %v", err)
	}
	keys.older = newGCM(t, "b", nil)
	if r, err := last.Open(); err != nil || string(r.Value) != "hello" {
		t.Errorf("when the key has come back: %v, %v", r, err)
	}
}

func BenchmarkCommit(b *testing.B) {
	for _, name := range []string{"plain", "sealed"} {
		b.Run(name, func(b *testing.B) {
			ctx := context.Background()
			s := store.New(sealed.New(memory.Open(memory.Options{}), newGCM(b, "k", nil)))
			defer s.Close()
			v := bytes.Repeat([]byte("x"), 1024)
			for b.Loop() {
				if _, err := s.Update(ctx, "/registry/"+name+"/n/x", store.Any, v, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
