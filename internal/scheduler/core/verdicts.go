// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/cache"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// Bounds of the cache: the number of signatures, and of nodes over all of them.
const (
	mostSignatures = 64
	mostSlots      = 1 << 20
	mostScorers    = 32
)

// verdicts is the cache for one signature, in columns by slot.
type verdicts struct {
	epoch      int64
	generation []int64 // at which status and scores were computed; 0: never
	status     []*fwk.Status
	scorers    int
	scored     []uint32 // which scorers' scores are cached, one bit each
	scores     []int64  // scorers of slot 0, of slot 1 …
	behind     []behind // the slots' verdicts with nominated pods; nil: none was computed
	used       uint64
	reasons    map[string]*fwk.Status // one status for equal refusals
}

// nominations is the condition of a cached verdict with nominated pods: a node, the pods that are nominated to it, and the priority of the
// pod that comes after those with the same or a higher priority.
type nominations struct {
	generation int64
	version    uint64
	priority   int32
}

type behind struct {
	of     nominations
	status *fwk.Status
}

// verdicts finds or creates the cache for a signature; nil if nothing can be cached.
func (c *Core) verdicts(p *profile.Profile, s *cache.Snapshot, signature fwk.PodSignature) *verdicts {
	nodes := len(s.Nodes())
	if c.options.Forget || len(signature) == 0 || nodes > mostSlots || p.Scorers() > mostScorers {
		return nil
	}
	c.clock++
	key := p.Name() + "\x00" + string(signature)
	v := c.kept[key]
	if v == nil || v.epoch != s.Epoch() || len(v.generation) != nodes {
		if v == nil {
			c.evict(nodes)
		}
		n := p.Scorers()
		v = &verdicts{
			epoch: s.Epoch(), generation: make([]int64, nodes), status: make([]*fwk.Status, nodes), scorers: n,
			scored: make([]uint32, nodes), scores: make([]int64, nodes*n), reasons: map[string]*fwk.Status{},
		}
		c.kept[key] = v
	}
	v.used = c.clock
	return v
}

// evict makes room for one more signature, dropping the least recently used ones.
func (c *Core) evict(nodes int) {
	for len(c.kept) > 0 && (len(c.kept) >= mostSignatures || (len(c.kept)+1)*nodes > mostSlots) {
		oldest := ""
		for key, v := range c.kept {
			if oldest == "" || v.used < c.kept[oldest].used {
				oldest = key
			}
		}
		delete(c.kept, oldest)
	}
}

func (v *verdicts) set(slot int, generation int64, st *fwk.Status) {
	v.generation[slot], v.status[slot], v.scored[slot] = generation, v.one(st), 0
}

// after returns the cached verdict with nominated pods, if there is one.
func (v *verdicts) after(slot int, of nominations) (st *fwk.Status, ok bool) {
	if v.behind == nil || v.behind[slot].of != of {
		return nil, false
	}
	return v.behind[slot].status, true
}

func (v *verdicts) setAfter(slot int, of nominations, st *fwk.Status) {
	if v.behind == nil {
		v.behind = make([]behind, len(v.generation))
	}
	v.behind[slot] = behind{of, v.one(st)}
}

// one returns one shared status for equal statuses.
func (v *verdicts) one(st *fwk.Status) *fwk.Status {
	if st == nil {
		return nil
	}
	key := st.Plugin() + "\x00" + st.Code().String() + "\x00" + st.Message()
	if same := v.reasons[key]; same != nil {
		return same
	}
	v.reasons[key] = st
	return st
}

func (v *verdicts) setScore(slot, scorer int, score int64) {
	v.scored[slot] |= 1 << scorer
	v.scores[slot*v.scorers+scorer] = score
}
