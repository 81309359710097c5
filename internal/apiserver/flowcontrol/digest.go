// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol/fair"
)

// config is the configuration that requests are matched with: schemas in matching order. It is immutable.
type config struct {
	schemas []*Schema
	rest    *Schema // for requests that no schema matches
}

// Schema is a flow schema in use.
type Schema struct {
	Name  string
	Level string

	uid, levelUID []string // as header values
	rules         []rule
	by            flowcontrolv1.FlowDistinguisherMethodType
	level         *level
	flow          *fair.Flow
	deal          bool // requests of a flow go to a shuffle-sharded hand of queues
	maxSeats      int  // maximum seats of one request; 0: the level sets no bound
}

// level is a priority level with its queues and seats.
type level struct {
	name    string
	exempt  bool
	dropped dropped

	mu    sync.Mutex // guards set and flows; locked after the controller's mutex
	set   *fair.Set
	flows map[string]*fair.Flow

	going atomic.Bool // the level was removed, and is dropped when it is idle

	// The controller's mutex guards the following fields.
	config                        *flowcontrolv1.PriorityLevelConfiguration
	shares                        float64
	nominal, least, most, current int
	maxSeats                      int
	wanted                        fair.Demanded
	smoothed, target              float64
	set0                          bool // has had its seats
}

// shape returns the queue configuration of a level, and rejects an invalid one.
func shape(p *flowcontrolv1.PriorityLevelConfiguration) (fair.Config, error) {
	exempt := p.Spec.Type == flowcontrolv1.PriorityLevelEnablementExempt
	switch {
	case (p.Spec.Type == flowcontrolv1.PriorityLevelEnablementLimited) != (p.Spec.Limited != nil), exempt != (p.Spec.Exempt != nil):
		return fair.Config{}, errors.New("type and configuration do not agree")
	case exempt != (p.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt):
		return fair.Config{}, errors.New("name and type do not agree")
	case exempt:
		return fair.Config{Queues: fair.Unlimited}, nil
	}
	response := p.Spec.Limited.LimitResponse
	if (response.Type == flowcontrolv1.LimitResponseTypeReject) != (response.Queuing == nil) {
		return fair.Config{}, errors.New("limit response and queuing do not agree")
	}
	q := response.Queuing
	if q == nil {
		return fair.Config{}, nil
	}
	c := fair.Config{Queues: int(q.Queues), Hand: int(q.HandSize), Length: int(q.QueueLengthLimit)}
	return c, c.Check()
}

// digest builds the configuration from the stored objects. The caller holds the controller's mutex.
func (c *Controller) digest() {
	now := c.o.Now()
	next := map[string]*level{}
	use := func(name string, p *flowcontrolv1.PriorityLevelConfiguration) {
		shaped, err := shape(p)
		if err != nil {
			return // validation rejects these; an object that bypassed it is ignored
		}
		l := c.levels[name]
		if l == nil {
			l = &level{name: name, exempt: shaped.Queues == fair.Unlimited, set: fair.New(now), flows: map[string]*fair.Flow{}}
		}
		l.config = p
		l.going.Store(false)
		next[name] = l
		l.mu.Lock()
		defer l.mu.Unlock()
		l.set.Configure(now, shaped)
	}
	for name, p := range c.configs {
		use(name, p)
	}
	for _, p := range bootstrap.MandatoryPriorityLevelConfigurations {
		switch was := c.levels[p.Name]; {
		case next[p.Name] != nil:
		case was != nil:
			use(p.Name, was.config) // deleted, but mandatory
		default:
			use(p.Name, p)
		}
	}
	for name, l := range c.levels { // removed levels stay while requests wait in them
		if next[name] == nil {
			l.mu.Lock()
			idle := l.set.Idle()
			l.going.Store(true)
			l.mu.Unlock()
			if !idle {
				next[name] = l
			}
		}
	}
	c.share(now, next)
	c.levels = next
	c.config.Store(c.compile(next))
}

// share divides the server's seats among the levels in proportion to their shares.
func (c *Controller) share(now time.Time, levels map[string]*level) {
	sum := 0.0
	for _, l := range levels {
		var shares *int32
		if l.config.Spec.Limited != nil {
			shares = l.config.Spec.Limited.NominalConcurrencyShares
		} else {
			shares = l.config.Spec.Exempt.NominalConcurrencyShares
		}
		l.shares = 0
		if shares != nil {
			l.shares = float64(*shares)
		}
		sum += l.shares
	}
	c.nominal = 0
	room := 0
	for _, l := range levels {
		l.nominal = 0
		if sum > 0 {
			l.nominal = int(math.Ceil(float64(c.o.Seats) * l.shares / sum))
		}
		lendable, borrowed := 0, c.o.Seats
		part := func(percent *int32, otherwise int) int {
			if percent == nil {
				return otherwise
			}
			return int(math.Round(float64(l.nominal) * float64(*percent) / 100))
		}
		l.maxSeats = 0
		if limited := l.config.Spec.Limited; limited != nil {
			lendable, borrowed = part(limited.LendablePercent, 0), part(limited.BorrowingLimitPercent, c.o.Seats)
			if q := limited.LimitResponse.Queuing; q != nil {
				room += int(q.Queues) * int(q.QueueLengthLimit)
				l.maxSeats = max(1, min(int(math.Ceil(float64(l.nominal)*0.15)), l.nominal/max(int(q.HandSize), 1)))
			}
		} else {
			lendable = part(l.config.Spec.Exempt.LendablePercent, 0)
		}
		l.least, l.most = l.nominal-lendable, l.nominal+borrowed
		c.nominal += l.nominal
		if !l.set0 {
			l.set0, l.current = true, l.nominal-lendable/2
		}
	}
	c.peaks.bound(now, c.nominal, room)
	c.lend(now, levels)
}

// compile builds the configuration that requests read. A schema whose level does not exist matches nothing.
func (c *Controller) compile(levels map[string]*level) *config {
	out := &config{}
	flows := map[*level]map[string]*fair.Flow{}
	add := func(s *flowcontrolv1.FlowSchema) *Schema {
		l := levels[s.Spec.PriorityLevelConfiguration.Name]
		if l == nil || l.going.Load() {
			return nil
		}
		if flows[l] == nil {
			flows[l] = map[string]*fair.Flow{}
		}
		f := l.flow(s.Name)
		flows[l][s.Name] = f
		n := &Schema{
			Name: s.Name, Level: l.name, uid: []string{string(s.UID)}, levelUID: []string{string(l.config.UID)},
			rules: compileRules(s.Spec.Rules), level: l, flow: f, maxSeats: l.maxSeats,
		}
		if m := s.Spec.DistinguisherMethod; m != nil {
			n.by = m.Type
		}
		if limited := l.config.Spec.Limited; limited != nil {
			q := limited.LimitResponse.Queuing
			n.deal = q != nil && q.Queues > 1
		}
		return n
	}
	sorted := make([]*flowcontrolv1.FlowSchema, 0, len(c.schemas)+2)
	for _, s := range c.schemas {
		sorted = append(sorted, s)
	}
	slices.SortFunc(sorted, func(a, b *flowcontrolv1.FlowSchema) int {
		return cmp.Or(cmp.Compare(a.Spec.MatchingPrecedence, b.Spec.MatchingPrecedence), cmp.Compare(a.Name, b.Name))
	})
	exempt := false
	for _, s := range sorted {
		n := add(s)
		if n == nil {
			continue
		}
		out.schemas = append(out.schemas, n)
		exempt = exempt || s.Name == flowcontrolv1.FlowSchemaNameExempt
		if s.Name == flowcontrolv1.FlowSchemaNameCatchAll {
			out.rest = n
		}
	}
	if !exempt {
		out.schemas = slices.Insert(out.schemas, 0, add(bootstrap.MandatoryFlowSchemaExempt))
	}
	if out.rest == nil {
		out.rest = add(bootstrap.MandatoryFlowSchemaCatchAll)
		out.schemas = append(out.schemas, out.rest)
	}
	for l, used := range flows {
		l.forget(used)
	}
	return out
}

// flow returns the counters of a schema's requests.
func (l *level) flow(schema string) *fair.Flow {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.flows[schema]
	if f == nil {
		f = fair.NewFlow(schema)
		l.flows[schema] = f
	}
	return f
}

// forget drops the counters of deleted schemas once no request uses them.
func (l *level) forget(used map[string]*fair.Flow) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, f := range l.flows {
		if used[name] == nil && f.Queued == 0 && f.RunningSeats == 0 && f.Running == 0 {
			delete(l.flows, name)
		}
	}
}
