// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package scalinglog keeps the latest decisions about each HorizontalPodAutoscaler, so that users can ask why a target has its replicas.
//
// An autoscaler is evaluated every few seconds, mostly with the same result. The log keeps results, not evaluations: an evaluation whose
// result is that of the one before takes its place, and counts it ([Log.Add]). A rescale is a result of its own. The last rescale stays
// when the log is full, so that the number of replicas can always be explained.
//
// The log bounds the decisions and the bytes of each autoscaler, and the bytes of all; it first drops the autoscaler whose last decision is
// the oldest. It estimates bytes from the texts of a decision. A new autoscaler of the same name starts afresh.
package scalinglog

import (
	"cmp"
	"container/list"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/extension/trace"
)

// Bounds of one autoscaler.
const (
	MostDecisions = 6
	MostMetrics   = 10       // of a decision
	MostBytes     = 10 << 10 // of all decisions, but for a single one
	longest       = 512      // bytes of a text
)

// Options are a log's bounds.
type Options struct {
	Bytes int64 // 0: 16 MiB
}

// Log records decisions. A nil Log records none. It is safe for concurrent use.
type Log struct {
	bound int64

	mu          sync.Mutex
	autoscalers map[types.NamespacedName]*list.Element // of *autoscaler
	order       list.List                              // touched last first
	bytes       int64
}

// autoscaler is the record of one autoscaler.
type autoscaler struct {
	key       types.NamespacedName
	uid       types.UID
	decisions []*trace.Scaling // oldest first
	bytes     int64            // of decisions
}

// New returns an empty log.
func New(o Options) *Log {
	return &Log{bound: cmp.Or(o.Bytes, 16<<20), autoscalers: map[types.NamespacedName]*list.Element{}}
}

// Add records a decision about an autoscaler. The decision then belongs to the log.
func (l *Log) Add(key types.NamespacedName, uid types.UID, d *trace.Scaling) {
	if l == nil {
		return
	}
	clip(d)
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.autoscalers[key]
	if e == nil {
		e = l.order.PushFront(&autoscaler{key: key, uid: uid})
		l.autoscalers[key] = e
		l.bytes += autoscalerBytes
	} else {
		l.order.MoveToFront(e)
	}
	a := e.Value.(*autoscaler) //nolint:forcetypeassert // nothing else is put in
	l.bytes -= a.bytes
	if a.uid != uid {
		a.uid, a.decisions = uid, nil
	}
	a.add(d)
	a.bytes = 0
	for i := len(a.decisions) - 1; i >= 0; i-- {
		if a.bytes += size(a.decisions[i]); a.bytes > MostBytes && i < len(a.decisions)-1 {
			a.bytes -= size(a.decisions[i])
			a.decisions = slices.Delete(a.decisions, 0, i+1)
			break
		}
	}
	l.bytes += a.bytes
	for l.bytes > l.bound && l.order.Len() > 1 {
		l.remove(l.order.Back())
	}
}

// add adds a decision, or has it take the place of the last one.
func (a *autoscaler) add(d *trace.Scaling) {
	d.Since, d.Evaluations = d.Time, 1
	if n := len(a.decisions); n > 0 && same(a.decisions[n-1], d) {
		d.Since, d.Evaluations = a.decisions[n-1].Since, a.decisions[n-1].Evaluations+1
		a.decisions[n-1] = d
		return
	}
	if a.decisions = append(a.decisions, d); len(a.decisions) <= MostDecisions {
		return
	}
	oldest := 0
	if rescaled(a.decisions[0]) && !slices.ContainsFunc(a.decisions[1:], rescaled) {
		oldest = 1
	}
	a.decisions = slices.Delete(a.decisions, oldest, oldest+1)
}

func rescaled(d *trace.Scaling) bool {
	return d.Outcome == trace.OutcomeScaledUp || d.Outcome == trace.OutcomeScaledDown
}

// same reports whether two evaluations have the same result, whatever the values were.
func same(a, b *trace.Scaling) bool {
	return a.Outcome == b.Outcome && !rescaled(a) && a.Message == b.Message && a.Target == b.Target && a.Replicas == b.Replicas &&
		slices.EqualFunc(a.Limits, b.Limits, func(x, y trace.ScalingLimit) bool { return x.Reason == y.Reason && x.To == y.To }) &&
		slices.EqualFunc(a.Metrics, b.Metrics, func(x, y trace.ScalingMetric) bool {
			return x.Type == y.Type && x.Name == y.Name && x.Kept == y.Kept && x.Error == y.Error
		})
}

// Remove drops the record of an autoscaler.
func (l *Log) Remove(key types.NamespacedName) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.autoscalers[key]; e != nil {
		l.remove(e)
	}
}

// remove removes an autoscaler. The caller holds the lock.
func (l *Log) remove(e *list.Element) {
	a := e.Value.(*autoscaler) //nolint:forcetypeassert // nothing else is put in
	l.order.Remove(e)
	delete(l.autoscalers, a.key)
	l.bytes -= autoscalerBytes + a.bytes
}

// Autoscaling returns the log's record of an autoscaler, or nil.
func (l *Log) Autoscaling(namespace, name string) *trace.Autoscaling {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.autoscalers[types.NamespacedName{Namespace: namespace, Name: name}]
	if e == nil {
		return nil
	}
	a := e.Value.(*autoscaler) //nolint:forcetypeassert // nothing else is put in
	out := &trace.Autoscaling{
		Namespace: namespace, Name: name, UID: string(a.uid),
		Kept: trace.KeptOfAutoscalers{Autoscalers: len(l.autoscalers), Bytes: l.bytes, Bound: l.bound},
	}
	for _, d := range slices.Backward(a.decisions) {
		told := *d
		told.Metrics = slices.Clone(d.Metrics) // the caller fills in services
		out.Decisions = append(out.Decisions, told)
	}
	return out
}

// clip shortens a decision to its bounds.
func clip(d *trace.Scaling) {
	if more := len(d.Metrics) - MostMetrics; more > 0 {
		d.Metrics, d.MoreMetrics = slices.Clone(d.Metrics[:MostMetrics]), more
	}
	short := func(s *string) {
		if len(*s) > longest {
			*s = strings.ToValidUTF8((*s)[:longest], "") + "…"
		}
	}
	short(&d.Message)
	for i := range d.Metrics {
		m := &d.Metrics[i]
		for _, s := range []*string{&m.Name, &m.Path, &m.Value, &m.Target, &m.Error} {
			short(s)
		}
	}
}

// Approximate sizes in memory.
const (
	autoscalerBytes = 300 // with its entries in map and list
	decisionBytes   = 350
	limitBytes      = 64
	metricBytes     = 260
)

// size estimates the memory of a decision.
func size(d *trace.Scaling) int64 {
	n := decisionBytes + len(d.Message) + len(d.Target)
	for i := range d.Limits {
		n += limitBytes + len(d.Limits[i].Detail)
	}
	for i := range d.Metrics {
		m := &d.Metrics[i]
		n += metricBytes + len(m.Name) + len(m.Path) + len(m.Value) + len(m.Target) + len(m.Error)
	}
	return int64(n)
}
