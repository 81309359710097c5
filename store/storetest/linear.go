// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/mortise-dev/mortise/store"
)

const linearKeys = 3

// linearInput is one call: a commit of ops, or a read of all keys, or of one.
type linearInput struct {
	commit bool
	all    bool
	key    int
	ops    []linearOp
}

type linearOp struct {
	key    int
	delete bool
	expect int64
}

// linearOutput is the call's result.
type linearOutput struct {
	revision int64
	conflict int // key, -1 for none
	found    [linearKeys]int64
}

// linearState is the reference: the store's revision, and each key's, 0 if the key is absent.
type linearState struct {
	revision int64
	keys     [linearKeys]int64
}

// linearModel returns the model of which results are correct in which state.
func linearModel(first int64) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return linearState{revision: first} },
		Step: func(state, input, output any) (bool, any) {
			s, in, out := state.(linearState), input.(linearInput), output.(linearOutput)
			switch {
			case in.all:
				return out.revision == s.revision && out.found == s.keys, s
			case !in.commit:
				return out.revision == s.revision && out.found[in.key] == s.keys[in.key], s
			}
			next := s
			changed := false
			for _, op := range in.ops {
				if op.expect != store.Any && op.expect != s.keys[op.key] {
					return out.conflict == op.key && out.found[op.key] == s.keys[op.key], s
				}
				if !op.delete {
					next.keys[op.key], changed = s.revision+1, true
				} else if s.keys[op.key] != 0 {
					next.keys[op.key], changed = 0, true
				}
			}
			if changed {
				next.revision++
			}
			return out.conflict < 0 && out.revision == next.revision, next
		},
		Equal: func(a, b any) bool { return a == b },
		DescribeOperation: func(input, output any) string {
			return fmt.Sprintf("%+v → %+v", input, output)
		},
	}
}

// testLinearizable lets clients race over few keys, and looks for an order of their calls that explains all results.
func testLinearizable(t *testing.T, f *fixture) {
	const rounds = 8
	for range rounds {
		for key := range linearKeys {
			must[int64](t)(f.Delete(f.ctx, linearKey(key), store.Any))
		}
		race(t, f)
	}
}

func race(t *testing.T, f *fixture) {
	t.Helper()
	const clients, calls = 4, 60
	var (
		mu      sync.Mutex
		history []porcupine.Operation
		wg      sync.WaitGroup
	)
	began := time.Now()
	first := f.Revision()
	for client := range clients {
		random := rand.New(rand.NewPCG(f.random.Uint64(), 3))
		wg.Go(func() {
			var known [linearKeys]int64 // what the client saw last
			for range calls {
				in := linearChoice(random, known)
				call := time.Since(began).Nanoseconds()
				out, err := linearCall(f.ctx, f.Store, in)
				back := time.Since(began).Nanoseconds()
				if err != nil {
					t.Errorf("%+v: %v", in, err)
					return
				}
				for key, revision := range out.found {
					if revision > 0 {
						known[key] = revision
					}
				}
				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: back})
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if result := porcupine.CheckOperationsTimeout(linearModel(first), history, patience); result != porcupine.Ok {
		for _, op := range history {
			t.Logf("%d..%d client %d: %+v → %+v", op.Call, op.Return, op.ClientId, op.Input, op.Output)
		}
		t.Fatalf("linearizable: no order explains these answers (%s)", result)
	}
}

func linearChoice(r *rand.Rand, known [linearKeys]int64) linearInput {
	switch r.IntN(5) {
	case 0:
		return linearInput{key: r.IntN(linearKeys)}
	case 1:
		return linearInput{all: true}
	}
	in := linearInput{commit: true}
	for _, key := range r.Perm(linearKeys)[:1+r.IntN(2)] {
		op := linearOp{key: key, delete: r.IntN(4) == 0}
		switch r.IntN(4) {
		case 0:
		case 1:
			op.expect = store.Any
		default:
			op.expect = known[key]
		}
		in.ops = append(in.ops, op)
	}
	return in
}

func linearKey(key int) string { return fmt.Sprintf("/linear/keys/%d", key) }

func linearCall(ctx context.Context, s *store.Store, in linearInput) (linearOutput, error) {
	out := linearOutput{conflict: -1}
	switch {
	case in.all:
		page, err := s.List(ctx, "/linear/keys/")
		if err != nil {
			return out, err
		}
		out.revision = page.Revision
		for _, r := range page.Records {
			out.found[r.Key[len(r.Key)-1]-'0'] = r.Revision
		}
		return out, nil
	case !in.commit:
		r, revision, err := s.Get(ctx, linearKey(in.key))
		if err != nil {
			return out, err
		}
		out.revision = revision
		if r != nil {
			out.found[in.key] = r.Revision
		}
		return out, nil
	}
	var ops []store.Op
	for _, op := range in.ops {
		o := store.Op{Key: linearKey(op.key), Expect: op.expect}
		if !op.delete {
			o.Value = []byte("v")
		}
		ops = append(ops, o)
	}
	revision, records, err := s.Commit(ctx, ops...)
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		out.conflict = int(conflict.Key[len(conflict.Key)-1] - '0')
		if conflict.Current != nil {
			out.found[out.conflict] = conflict.Current.Revision
		}
		return out, nil
	}
	if err != nil {
		return out, err
	}
	out.revision = revision
	for i, r := range records {
		if r != nil {
			out.found[in.ops[i].key] = r.Revision
		}
	}
	return out, nil
}
