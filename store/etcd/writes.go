// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/mortise-dev/mortise/store"
)

// writes are the commits in progress: the mirror learns from them whose changes it applies, and they learn from the mirror which records
// they made. The zero value is empty.
type writes struct {
	mu sync.Mutex
	by map[string][]*write
}

// write is one op of a commit in progress.
type write struct {
	op   store.Op
	seen []seen // by the mirror, of its key, since the commit began
	over bool   // the commit has returned
}

// seen is a change of the key to the value of a write.
type seen struct {
	revision int64
	record   *store.Record // nil for a delete
}

// begin adds the ops of a commit.
func (w *writes) begin(ops []store.Op) []*write {
	all := make([]*write, len(ops))
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by = map[string][]*write{}
	}
	for i, op := range ops {
		all[i] = &write{op: op}
		w.by[op.Key] = append(w.by[op.Key], all[i])
	}
	return all
}

// end removes them.
func (w *writes) end(all []*write) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range all {
		one.over = true
		key := one.op.Key
		left := w.by[key]
		for i := range left {
			if left[i] == one {
				left[i] = left[len(left)-1]
				left = left[:len(left)-1]
				break
			}
		}
		if len(left) == 0 {
			delete(w.by, key)
		} else {
			w.by[key] = left
		}
	}
}

// made returns the record that a write made at a revision, nil if the mirror has not seen it.
func (w *writes) made(one *write, revision int64) *store.Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range one.seen {
		if s.revision == revision {
			return s.record
		}
	}
	return nil
}

// together returns the revision in which the mirror has seen all puts of a commit with their values, and 0 if there is none. A commit that
// only deletes has none: others may have deleted the keys.
func (w *writes) together(all []*write) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	var revision int64
	for _, one := range all {
		if one.op.Value == nil {
			continue
		}
		found := false
		for _, s := range one.seen {
			if revision == 0 || s.revision == revision {
				revision, found = s.revision, true
				break
			}
		}
		if !found {
			return 0
		}
	}
	return revision
}

// events returns the mirror's events of a revision. A record that holds the bytes of a write in progress shares them.
func (w *writes) events(m *mirror, changes []*mvccpb.Event) []store.Event {
	events := make([]store.Event, len(changes))
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, c := range changes {
		e := &events[i]
		e.Revision = c.Kv.ModRevision
		if c.Type == mvccpb.Event_DELETE {
			e.Key = m.keys.Inner(c.Kv.Key)
			continue
		}
		e.Record = &store.Record{Key: m.keys.Inner(c.Kv.Key), Value: c.Kv.Value, Revision: c.Kv.ModRevision, Created: c.Kv.CreateRevision}
		if e.Record.Value == nil {
			e.Record.Value = []byte{}
		}
		e.Key = e.Record.Key
		for _, one := range w.by[e.Key] {
			if one.op.Value == nil || !bytes.Equal(one.op.Value, e.Record.Value) {
				continue
			}
			if one.op.Made != nil && e.Record.View() == nil {
				e.Record.Value = one.op.Value
				one.op.Made(e.Record)
			} else if len(one.seen) == 0 {
				e.Record.Value = one.op.Value
			}
			one.seen = append(one.seen, seen{e.Revision, e.Record})
		}
	}
	return events
}

// own returns the events of a commit that etcd has carried out.
func (w *writes) own(writes []*write, revision int64, response *pb.TxnResponse) []store.Event {
	events := make([]store.Event, len(writes))
	created := creations(writes, revision, response)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, one := range writes {
		e := &events[i]
		e.Revision, e.Key = revision, one.op.Key
		if one.op.Value == nil {
			continue
		}
		e.Record = &store.Record{Key: one.op.Key, Value: one.op.Value, Revision: revision, Created: created[i]}
		if one.op.Made != nil && len(one.seen) == 0 && !one.over {
			one.op.Made(e.Record)
		}
		one.seen = append(one.seen, seen{revision, e.Record})
	}
	return events
}

// creations returns in which revision the key of each put was created.
func creations(writes []*write, revision int64, response *pb.TxnResponse) []int64 {
	created := make([]int64, len(writes))
	reads := len(writes) // the reads of the transaction come after its changes
	for i, one := range writes {
		if one.op.Value == nil {
			continue
		}
		created[i] = revision
		if one.op.Expect != 0 && response != nil {
			if found := response.Responses[reads].GetResponseRange().GetKvs(); len(found) > 0 {
				created[i] = found[0].CreateRevision
			}
			reads++
		}
	}
	return created
}

// results returns the records of a commit: the mirror's, or, if the caller did not wait for it, equal ones.
func (m *mirror) results(writes []*write, revision int64, response *pb.TxnResponse) []*store.Record {
	records := make([]*store.Record, len(writes))
	var created []int64
	for i, one := range writes {
		if one.op.Value == nil {
			continue
		}
		if records[i] = m.writes.made(one, revision); records[i] == nil {
			if created == nil {
				created = creations(writes, revision, response)
			}
			records[i] = &store.Record{Key: one.op.Key, Value: one.op.Value, Revision: revision, Created: created[i]}
		}
	}
	return records
}
