// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package sealed encrypts values in any engine: the layers below it (memory, log, snapshots, backups, a remote etcd) see only sealed bytes,
// the layers above it only plain ones.
//
//	e := sealed.New(engine, ciphers)
//
// [Ciphers] select the cipher of a value by its key. The engine decrypts a record once: it attaches the plain record to the sealed one as
// its view ([store.Record.View]), so that readers share it like the engine's own records, and it lives as long. It returns a value that was
// stored plain without a copy.
//
// An [Engine] is safe for concurrent use; it starts no goroutines, and reads take no lock.
//
// # Stability
//
// Other programs may use this package. A committed list of what it exports is compared in a test, so that nothing changes by accident. A
// release may change it, and its notes announce the change.
package sealed

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/mortise-dev/mortise/store"
)

// Prefix is the prefix of every sealed value, in all ciphers and in kube-apiserver's data.
const Prefix = "k8s:enc:"

// Cipher seals and opens the values of some keys. Its methods get the keys, so that a cipher can bind a value to its key.
type Cipher interface {
	Seal(ctx context.Context, key string, plain []byte) ([]byte, error)
	// Open returns the plain value, which may be the stored one itself, and whether Seal would now use another cipher or key.
	Open(ctx context.Context, key string, stored []byte) (plain []byte, stale bool, err error)
}

// Ciphers select the cipher for a key, or for all keys with a prefix. Nil means that values are stored plain.
type Ciphers interface {
	Cipher(key string) Cipher
}

// ErrSealed is returned for a sealed value where plain ones are expected.
var ErrSealed = errors.New("identity transformer tried to read encrypted data") // upstream's words

// Engine decorates another engine.
type Engine struct {
	store.Decorator
	ciphers Ciphers
	lenient bool
}

var (
	_ store.Engine    = (*Engine)(nil)
	_ store.Unwrapper = (*Engine)(nil)
	_ store.Staler    = (*Engine)(nil)
)

// New decorates an engine.
func New(under store.Engine, c Ciphers) *Engine {
	return &Engine{Decorator: store.Decorator{Engine: under}, ciphers: c}
}

// NewLenient is [New] for users of many records, of which one that does not decrypt must not hide the others: Range, Watch and the
// errors of conflicts have its record with the sealed value and a view that is [store.Unopened]. Get returns an error as ever.
func NewLenient(under store.Engine, c Ciphers) *Engine {
	e := New(under, c)
	e.lenient = true
	return e
}

// plain is the view of a sealed record: the same record, opened.
type plain struct{ *store.Record }

// attach attaches the plain form to a sealed record.
func attach(r *store.Record, value []byte) *store.Record {
	o := &store.Record{Key: r.Key, Value: value, Revision: r.Revision, Created: r.Created, Expires: r.Expires}
	r.SetView(plain{o})
	return o
}

// open returns the plain form of a record of the engine below.
func open(ctx context.Context, c Cipher, r *store.Record) (*store.Record, error) {
	if r == nil {
		return nil, nil
	}
	if p, ok := r.View().(plain); ok {
		return p.Record, nil
	}
	if c == nil {
		if bytes.HasPrefix(r.Value, []byte(Prefix)) {
			return nil, unreadable(r, ErrSealed)
		}
		return r, nil
	}
	value, _, err := c.Open(ctx, r.Key, r.Value)
	if err != nil {
		return nil, unreadable(r, err)
	}
	if len(value) == len(r.Value) && (len(value) == 0 || &value[0] == &r.Value[0]) {
		return r, nil
	}
	if value == nil {
		value = []byte{}
	}
	return attach(r, value), nil
}

func unreadable(r *store.Record, err error) error {
	return &store.UnreadableError{Key: r.Key, Revision: r.Revision, Sealed: true, Err: err}
}

// unopened is the view of a sealed record that did not decrypt.
type unopened struct {
	engine *Engine
	record *store.Record
}

// reopenTime bounds one more try to decrypt a value: a plug-in may have to be asked.
const reopenTime = 3 * time.Second

// Open implements [store.Unopened].
func (u unopened) Open() (*store.Record, error) {
	ctx, cancel := context.WithTimeout(context.Background(), reopenTime)
	defer cancel()
	return open(ctx, u.engine.ciphers.Cipher(u.record.Key), u.record)
}

// open returns the plain form of one of many records. A lenient engine returns one that does not decrypt as it is.
func (e *Engine) open(ctx context.Context, c Cipher, r *store.Record) (*store.Record, error) {
	plain, err := open(ctx, c, r)
	if err == nil || !e.lenient || ctx.Err() != nil {
		return plain, err
	}
	r.SetView(unopened{e, r})
	return r, nil
}

// Commit implements [store.Engine].
func (e *Engine) Commit(ctx context.Context, ops ...store.Op) (int64, []*store.Record, error) {
	given := ops
	for i := range ops {
		if ops[i].Value == nil || ops[i].Key == "" {
			continue
		}
		c := e.ciphers.Cipher(ops[i].Key)
		if c == nil {
			continue
		}
		value, err := c.Seal(ctx, ops[i].Key, ops[i].Value)
		if err != nil {
			return 0, nil, err
		}
		if &given[0] == &ops[0] {
			ops = append([]store.Op(nil), given...)
		}
		ops[i].Value, ops[i].Made = value, nil // users get another record than the engine below creates
	}
	revision, records, err := e.Engine.Commit(ctx, ops...)
	if err != nil {
		var conflict *store.ConflictError
		if errors.As(err, &conflict) && conflict.Current != nil {
			current, unread := e.open(ctx, e.ciphers.Cipher(conflict.Key), conflict.Current)
			if unread != nil {
				return revision, nil, unread
			}
			return revision, nil, &store.ConflictError{Key: conflict.Key, Expect: conflict.Expect, Current: current}
		}
		return revision, nil, err
	}
	for i, r := range records {
		if r == nil || bytes.Equal(given[i].Value, r.Value) {
			continue
		}
		if p, ok := r.View().(plain); ok { // a watcher was faster
			records[i] = p.Record
			continue
		}
		records[i] = attach(r, given[i].Value)
	}
	return revision, records, nil
}

// Get implements [store.Engine].
func (e *Engine) Get(ctx context.Context, key string) (*store.Record, int64, error) {
	r, revision, err := e.Engine.Get(ctx, key)
	if err != nil || r == nil {
		return r, revision, err
	}
	r, err = open(ctx, e.ciphers.Cipher(key), r)
	return r, revision, err
}

// lookup finds the ciphers for records of one prefix. A prefix within one resource has one cipher for all records.
type lookup struct {
	ciphers Ciphers
	whole   bool
	one     Cipher
}

// Whole is implemented by ciphers that can tell whether all keys with a prefix have the same cipher.
type Whole interface {
	Whole(prefix string) bool
}

func (e *Engine) lookup(prefix string) lookup {
	if w, ok := e.ciphers.(Whole); ok && w.Whole(prefix) {
		return lookup{whole: true, one: e.ciphers.Cipher(prefix)}
	}
	return lookup{ciphers: e.ciphers}
}

func (l *lookup) cipher(key string) Cipher {
	if l.whole {
		return l.one
	}
	return l.ciphers.Cipher(key)
}

// Range implements [store.Engine].
func (e *Engine) Range(ctx context.Context, r store.Range) (store.Page, error) {
	p, err := e.Engine.Range(ctx, r)
	if err != nil {
		return p, err
	}
	l := e.lookup(r.Prefix)
	for i, rec := range p.Records {
		if p.Records[i], err = e.open(ctx, l.cipher(rec.Key), rec); err != nil {
			return store.Page{}, err
		}
	}
	return p, nil
}

// Watch implements [store.Engine].
func (e *Engine) Watch(ctx context.Context, prefix string, after int64) (store.Watcher, error) {
	w, err := e.Engine.Watch(ctx, prefix, after)
	if err != nil {
		return nil, err
	}
	return &watcher{Watcher: w, engine: e, prefix: prefix}, nil
}

type watcher struct {
	store.Watcher
	engine *Engine
	prefix string
}

// Next implements [store.Watcher].
func (w *watcher) Next(ctx context.Context) (store.Batch, error) {
	b, err := w.Watcher.Next(ctx)
	if err != nil || len(b.Events) == 0 {
		return b, err
	}
	l := w.engine.lookup(w.prefix)
	events := make([]store.Event, len(b.Events)) // the original slice may be shared
	copy(events, b.Events)
	for i := range events {
		ev := &events[i]
		c := l.cipher(ev.Key)
		if ev.Record, err = w.engine.open(ctx, c, ev.Record); err != nil {
			return store.Batch{}, err
		}
		if ev.Previous, err = w.engine.open(ctx, c, ev.Previous); err != nil {
			return store.Batch{}, err
		}
	}
	b.Events = events
	return b, nil
}

// Stale implements [store.Staler]: it reports whether Seal would now encrypt the key's value differently, if the key still has that
// revision.
func (e *Engine) Stale(ctx context.Context, key string, revision int64) bool {
	r, _, err := e.Engine.Get(ctx, key)
	if err != nil || r == nil || r.Revision != revision {
		return false
	}
	c := e.ciphers.Cipher(key)
	if c == nil {
		return false
	}
	_, stale, err := c.Open(ctx, key, r.Value)
	return err == nil && stale
}
