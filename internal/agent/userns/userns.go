// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package userns allocates ranges of the machine's user and group IDs to pods with `hostUsers: false`.
//
// All ranges have the same length and begin at a multiple of it; the first one, with the machine's own users, is never allocated.
// A pod keeps its range for life: its directory has a file with it, in kubelet's format, from which it is restored after a
// restart. With 65536 IDs each, the pods with the ranges 1 and 2 have the IDs from 65536 and from 131072 on, and root in a pod is
// the first ID of its range:
//
//	{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[…the same…]}
//
// A Table is pure: its user, a Manager, stores its decisions. Both are safe for concurrent use.
package userns

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// FileName is the name of the file with the range, in a pod's directory.
const FileName = "userns"

// Unit is the divisor of all lengths of ranges, and the usual length.
const Unit = 65536

// Range is the range of IDs of a pod.
type Range struct{ First, Length uint32 }

// mapping and file are the stored form.
type mapping struct {
	Host      uint32 `json:"hostId"`
	Container uint32 `json:"containerId"`
	Length    uint32 `json:"length"`
}

type file struct {
	UIDs []mapping `json:"uidMappings"`
	GIDs []mapping `json:"gidMappings"`
}

// Encode returns the stored form of a range.
func (r Range) Encode() []byte {
	m := []mapping{{Host: r.First, Length: r.Length}}
	out, err := json.Marshal(file{UIDs: m, GIDs: m})
	if err != nil {
		panic("three numbers have no JSON: " + err.Error())
	}
	return out
}

// decode parses the stored form.
func decode(text []byte) (Range, error) {
	var f file
	if err := json.Unmarshal(text, &f); err != nil {
		return Range{}, fmt.Errorf("invalid user namespace mappings file: %w", err) // upstream's words
	}
	switch {
	case len(f.UIDs) != 1:
		return Range{}, errors.New("invalid user namespace configuration: no more than one mapping allowed.") //nolint:staticcheck // upstream's words
	case len(f.GIDs) != 1:
		return Range{}, errors.New("invalid user namespace configuration: GID and UID mappings should be identical.") //nolint:staticcheck // upstream's words
	case f.UIDs[0] != f.GIDs[0]:
		return Range{}, errors.New("invalid user namespace configuration: GID and UID mapping should be identical") // upstream's words
	case f.UIDs[0].Container != 0:
		return Range{}, errors.New("invalid user namespace configuration: UID 0 must be mapped") // upstream's words
	}
	return Range{First: f.UIDs[0].Host, Length: f.UIDs[0].Length}, nil
}

// Option returns the range as a CRI option.
func (r Range) Option() *runtimeapi.UserNamespace {
	m := func() []*runtimeapi.IDMapping { return []*runtimeapi.IDMapping{{HostId: r.First, Length: r.Length}} }
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: m(), Gids: m()}
}

// Host is the CRI option of pods in the host's user namespace.
func Host() *runtimeapi.UserNamespace {
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}
}

// Subordinate parses getsubids' output for a user with one range of subordinate IDs.
func Subordinate(text string) (first, count uint32, err error) {
	if strings.Count(strings.TrimSpace(text), "\n") > 0 {
		return 0, 0, fmt.Errorf("error parsing line %q: it must contain only one line", text) // upstream's words
	}
	words := strings.Fields(text) // 0: kubelet 65536 7208960
	if len(words) != 4 {
		return 0, 0, fmt.Errorf("invalid line %q", text) // upstream's words
	}
	for i, into := range []*uint32{&first, &count} {
		number, err := strconv.ParseUint(words[2+i], 10, 32)
		if err != nil {
			return 0, 0, fmt.Errorf("read subordinate IDs: %w", err)
		}
		*into = uint32(number)
	}
	return first, count, nil
}

// Supported returns nil if a runtime's handler supports user namespaces; otherwise kubelet's message that says why not.
func Supported(handlers []*runtimeapi.RuntimeHandler, name string) error {
	message := "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
	if name != "" {
		message = fmt.Sprintf("can't set `spec.hostUsers: false`, RuntimeClass handler %q does not support user namespaces", name)
	}
	for _, h := range handlers {
		if h.GetName() == name {
			if h.GetFeatures().GetUserNamespaces() {
				return nil
			}
			return errors.New(message) // upstream's words
		}
	}
	if len(handlers) == 0 { // the runtime is too old to report them
		return errors.New(message) // upstream's words
	}
	return fmt.Errorf("%s: the handler %q is not known", message, name) // upstream's words
}

// Table has the ranges of pods.
type Table struct {
	each       uint32
	from, most uint32 // indices of ranges, the latter excluded

	mu   sync.Mutex
	of   map[types.UID]uint32 // index of the range
	used map[uint32]types.UID
	next uint32 // where the search for a free range begins
}

// New makes a table of ranges of a length, from count IDs from first on. The IDs must suffice for the given number of pods.
func New(first, count, each uint32, pods int64) (*Table, error) {
	switch {
	case each == 0 || each%Unit != 0:
		return nil, fmt.Errorf("kubelet user namespace length %v is not a multiple of %d", each, Unit) // upstream's words
	case first%each != 0:
		return nil, fmt.Errorf("kubelet user assigned ID %v is not a multiple of %v", first, each) // upstream's words
	case first < each:
		return nil, fmt.Errorf("kubelet user assigned ID %v must be greater or equal to %v", first, each) // upstream's words
	case count%each != 0:
		return nil, fmt.Errorf("kubelet user assigned IDs length %v is not a multiple of %v", count, each) // upstream's words
	case int64(count/each) < pods:
		return nil, fmt.Errorf("kubelet user assigned IDs are not enough to support %v pods", pods) // upstream's words
	}
	from := first / each
	return &Table{each: each, from: from, most: from + count/each, of: map[types.UID]uint32{}, used: map[uint32]types.UID{}, next: from}, nil
}

// All returns all IDs of the machine except those of its own users, as ranges of a length.
func All(each uint32) (first, count uint32) {
	return each, uint32(1<<32/uint64(each)-1) * each
}

// Take allocates a range to a pod, or returns its existing one; fresh means that the caller must store it.
func (t *Table) Take(pod types.UID) (r Range, fresh bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if index, ok := t.of[pod]; ok {
		return t.at(index), false, nil
	}
	if uint32(len(t.used)) == t.most-t.from {
		return Range{}, false, errors.New("create user namespace: could not find an empty slot to allocate a user namespace") // upstream's words
	}
	// A released range is not reused immediately: files that its pod left belong to no pod for a while.
	for {
		if t.next >= t.most {
			t.next = t.from
		}
		if _, taken := t.used[t.next]; !taken {
			break
		}
		t.next++
	}
	t.of[pod], t.used[t.next] = t.next, pod
	t.next++
	return t.at(t.of[pod]), true, nil
}

// Of returns the range of a pod.
func (t *Table) Of(pod types.UID) (Range, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	index, ok := t.of[pod]
	return t.at(index), ok
}

func (t *Table) at(index uint32) Range { return Range{First: index * t.each, Length: t.each} }

// Adopt restores the stored range of a pod.
func (t *Table) Adopt(pod types.UID, text []byte) (Range, error) {
	r, err := decode(text)
	if err != nil {
		return Range{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	index, has := t.of[pod]
	switch {
	case r.Length != t.each:
		return Range{}, fmt.Errorf("wrong user namespace length %v", r.Length) // upstream's words
	case r.First%t.each != 0:
		return Range{}, fmt.Errorf("wrong user namespace offset specified %v", r.First) // upstream's words
	case has && t.at(index) != r:
		return Range{}, fmt.Errorf("different user namespace range already used by pod %q", pod) // upstream's words
	case r.First/t.each < t.from || r.First/t.each >= t.most:
		return Range{}, fmt.Errorf("id %v is out of range", r.First) // upstream's words
	}
	index = r.First / t.each
	if other, taken := t.used[index]; taken && other != pod {
		return Range{}, fmt.Errorf("range picked for pod %q already taken", pod) // upstream's words
	}
	t.of[pod], t.used[index] = index, pod
	return r, nil
}

// Release frees a pod's range when nothing of the pod is left.
func (t *Table) Release(pod types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if index, ok := t.of[pod]; ok {
		delete(t.used, index)
		delete(t.of, pod)
	}
}
