// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package robustness

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/etcd/tests/v3/robustness/model"
)

// prefix and end are the range of the keys in the model.
const prefix, end = "/k/", "/k0"

// forever is when an operation returns whose outcome is unknown.
const forever = time.Duration(math.MaxInt64)

// squeeze maps revisions to those of a store without other writers: the first change of the log makes revision 2, the next one 3, and so
// on. The order of revisions and of changes stays the same.
type squeeze []int64

func newSqueeze(log []Event) squeeze {
	s := make(squeeze, len(log))
	for i, e := range log {
		s[i] = e.Revision
	}
	return s
}

// at returns the revision of the state at a revision.
func (s squeeze) at(revision int64) int64 {
	i, found := slices.BinarySearch(s, revision)
	if found {
		i++
	}
	return int64(i) + 1
}

// of returns the revision of the change that made a revision; -1: no change made it, and no state has an object of it.
func (s squeeze) of(revision int64) int64 {
	if _, found := slices.BinarySearch(s, revision); !found {
		return -1
	}
	return s.at(revision)
}

// squeezed returns an operation with other revisions.
func (s squeeze) squeezed(o Operation) Operation {
	switch {
	case o.Verb == List:
		o.Revision = s.at(o.Revision)
	case o.Revision > 0:
		o.Revision = s.of(o.Revision)
	}
	if o.Expect > 0 {
		o.Expect = s.of(o.Expect)
	}
	o.Objects = slices.Clone(o.Objects)
	for i := range o.Objects {
		o.Objects[i].Revision = s.of(o.Objects[i].Revision)
	}
	return o
}

// known replaces what a client does not know by what the log tells: a write with its value there has been carried out, at that revision;
// one without never was, or after all that was recorded. Deletions write no value. The log tells the revision of one that required a
// resourceVersion, and that a deletion never was if all of the object's deletions are accounted for.
func known(h History) []Operation {
	written := map[string]int64{} // revisions by value
	deleted := map[int64]int64{}  // revisions by the one before
	deletions := map[string]int{}
	for _, e := range h.Log {
		if e.Value == "" {
			deletions[e.Name]++
			deleted[e.Previous] = e.Revision
			continue
		}
		written[e.Value] = e.Revision
	}
	for _, o := range h.Operations {
		if o.Verb == Delete && o.Outcome == Done {
			deletions[o.Name]--
		}
	}
	var out []Operation
	for _, o := range h.Operations {
		if o.Verb == Delete && o.Outcome == Done && o.Expect != 0 {
			o.Revision = deleted[o.Expect]
		}
		if o.Outcome == Unknown {
			o.Return = forever
			if o.Verb == Delete && deletions[o.Name] == 0 || o.Verb != Delete && written[o.Value] == 0 {
				continue
			}
			if o.Verb != Delete {
				o.Outcome, o.Revision = Done, written[o.Value]
			}
		}
		out = append(out, o)
	}
	return out
}

// narrow shortens the time in which each operation can have taken effect by what revisions tell: changes take effect in the order of their
// revisions, and a read shows a state after one change and before another. No order that was possible is lost, and far fewer are left to
// be tried. It returns an operation for which no time is left, if there is one.
func narrow(operations []Operation, log []Event) *Operation {
	// Change i of the log, which makes revision i+2, takes effect between earliest[i] and latest[i].
	earliest, latest := make([]time.Duration, len(log)), make([]time.Duration, len(log))
	for i := range latest {
		latest[i] = forever
	}
	for _, o := range operations {
		if i := o.Revision - 2; o.writes() && o.Outcome == Done && i >= 0 {
			earliest[i], latest[i] = o.Call, o.Return
		}
	}
	for i := range earliest[min(1, len(log)):] {
		earliest[i+1] = max(earliest[i+1], earliest[i])
	}
	for i := len(log) - 2; i >= 0; i-- {
		latest[i] = min(latest[i], latest[i+1])
	}
	replaced := map[int64]int64{} // by revision of an object, squeezed: the revision that replaces it
	newest := map[string]int64{}
	for i, e := range log {
		replaced[newest[e.Name]] = int64(i) + 2
		newest[e.Name] = int64(i) + 2
	}
	for i := range operations {
		o := &operations[i]
		first, next := o.Revision, o.Revision+1
		switch {
		case o.Verb == Get && o.Outcome == Done:
			first, next = o.Objects[0].Revision, replaced[o.Objects[0].Revision]
		case o.writes() && (o.Outcome != Done || o.Revision == 0), o.Verb == Get:
			continue
		case o.writes():
			o.Call, o.Return = max(o.Call, earliest[first-2]), min(o.Return, latest[first-2])
			next = 0
		}
		if j := first - 2; !o.writes() && j >= 0 {
			o.Call = max(o.Call, earliest[j])
		}
		if j := next - 2; j >= 0 && j < int64(len(latest)) {
			o.Return = min(o.Return, latest[j])
		}
		if o.Call > o.Return {
			return o
		}
	}
	return nil
}

// linearizable returns nil if some order of the operations, each between its call and its return, is one that etcd's model allows.
func linearizable(h History, limit time.Duration) error {
	revisions := newSqueeze(h.Log)
	all := known(h)
	names := map[string]bool{}
	for i := range all {
		all[i] = revisions.squeezed(all[i])
		names[prefix+all[i].Name] = true
		for _, object := range all[i].Objects {
			if object.Revision < 0 {
				return fmt.Errorf("%w: %s by %s shows what no change has made", ErrNotLinearizable, describe(all[i]), all[i].Server)
			}
			names[prefix+object.Name] = true
		}
	}
	if o := narrow(all, h.Log); o != nil {
		return fmt.Errorf("%w: %s by %s, too early or too late for its revision", ErrNotLinearizable, describe(*o), o.Server)
	}
	var operations []porcupine.Operation
	for _, o := range all {
		operations = append(operations, porcupine.Operation{ClientId: o.Client, Input: o, Call: int64(o.Call), Return: int64(o.Return)})
	}
	keys := make([]string, 0, len(names))
	for name := range names {
		keys = append(keys, name)
	}
	slices.Sort(keys)
	m := porcupine.Model{
		Init:              func() any { return states{empty(keys)} },
		Step:              func(s, in, _ any) (bool, any) { next := s.(states).step(in.(Operation)); return len(next) > 0, next },
		Equal:             func(a, b any) bool { return slices.EqualFunc(a.(states), b.(states), model.EtcdState.Equal) },
		DescribeOperation: func(in, _ any) string { return describe(in.(Operation)) },
		DescribeState:     func(s any) string { return fmt.Sprintf("%+v", s) },
	}
	switch porcupine.CheckOperationsTimeout(m, operations, limit) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return ErrUndecided
	}
	return ErrNotLinearizable
}

func describe(o Operation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", o.Verb, o.Name)
	if o.Value != "" {
		fmt.Fprintf(&b, "=%s", o.Value)
	}
	if o.Expect != 0 {
		fmt.Fprintf(&b, " at %d", o.Expect)
	}
	fmt.Fprintf(&b, " -> %s", o.Outcome)
	if o.Revision != 0 {
		fmt.Fprintf(&b, " %d", o.Revision)
	}
	for _, object := range o.Objects {
		fmt.Fprintf(&b, " %s=%s at %d", object.Name, object.Value, object.Revision)
	}
	return b.String()
}

// states are the states that a store can be in, after operations of which some have an unknown outcome.
type states []model.EtcdState

func empty(keys []string) model.EtcdState {
	return model.EtcdState{
		Revision: 1, CompactRevision: -1, Keys: keys, KeyValues: make([]*model.ValueRevision, len(keys)), KeyLeases: make([]*int64, len(keys)),
	}
}

// step returns the states after an operation; none if its outcome is possible in none.
func (all states) step(o Operation) states {
	var next states
	add := func(s model.EtcdState) {
		if !slices.ContainsFunc(next, s.Equal) {
			next = append(next, s)
		}
	}
	for _, s := range all {
		after, possible := apply(s, o)
		if o.Outcome == Unknown {
			add(s)
			possible = true
		}
		if possible {
			add(after)
		}
	}
	return next
}

// apply lets etcd's model carry out the request that stands for an operation. It returns the next state, and reports whether the outcome is
// the one that the client saw.
func apply(s model.EtcdState, o Operation) (model.EtcdState, bool) {
	key := prefix + o.Name
	current, exists := s.GetValue(key)
	if o.Verb == Get || o.Verb == List {
		options := model.RangeOptions{Start: key}
		if o.Verb == List {
			options = model.RangeOptions{Start: prefix, End: end}
		}
		_, response := s.Step(model.EtcdRequest{Type: model.Range, Range: &model.RangeRequest{RangeOptions: options}})
		if o.Verb == List && response.Revision != o.Revision || (o.Verb == Get && exists) != (o.Verb == Get && o.Outcome == Done) {
			return s, false
		}
		return s, slices.EqualFunc(response.Range.KVs, o.Objects, func(kv model.KeyValue, object Object) bool {
			return kv.Key == prefix+object.Name && kv.Value == model.ToValueOrHash(object.Value) && kv.ModRevision == object.Revision
		})
	}
	if o.Verb != Create && !exists {
		return s, o.Outcome == NotFound
	}
	txn := &model.TxnRequest{OperationsOnSuccess: []model.EtcdOperation{{
		Type: model.PutOperation, Put: model.PutOptions{Key: key, Value: model.ToValueOrHash(o.Value)},
	}}}
	if o.Verb == Delete {
		txn.OperationsOnSuccess = []model.EtcdOperation{{Type: model.DeleteOperation, Delete: model.DeleteOptions{Key: key}}}
	}
	if o.Verb == Create || o.Expect != 0 {
		txn.Conditions = []model.EtcdCondition{{Key: key, ExpectedRevision: o.Expect}}
	}
	next, response := s.Step(model.EtcdRequest{Type: model.Txn, Txn: txn})
	if response.Txn.Failure {
		return next, o.Outcome == Conflict && (o.Verb == Create || current.ModRevision != o.Expect)
	}
	return next, o.Outcome == Done && (o.Revision == 0 || o.Revision == response.Revision)
}
