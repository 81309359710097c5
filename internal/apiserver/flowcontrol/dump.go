// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol/fair"
)

// Dumps returns the debug pages by path.
func (c *Controller) Dumps() map[string]http.Handler {
	const under = "/debug/api_priority_and_fairness/"
	return map[string]http.Handler{
		under + "dump_priority_levels": table(c.dumpLevels),
		under + "dump_queues":          table(c.dumpQueues),
		under + "dump_requests":        table(c.dumpRequests),
	}
}

// table serves rows as columns that are separated by commas.
func table(rows func(r *http.Request, row func(cells ...string))) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := tabwriter.NewWriter(w, 8, 0, 1, ' ', 0)
		rows(r, func(cells ...string) {
			_, _ = fmt.Fprintln(t, strings.Join(cells, ",\t")) // a client that went away needs no answer
		})
		_ = t.Flush()
	})
}

// each locks each level and calls f for it, sorted by name.
func (c *Controller) each(f func(l *level)) {
	c.mu.Lock()
	levels := slices.SortedFunc(maps.Values(c.levels), func(a, b *level) int { return cmp.Compare(a.name, b.name) })
	c.mu.Unlock()
	for _, l := range levels {
		l.mu.Lock()
		f(l)
		l.mu.Unlock()
	}
}

func (c *Controller) dumpLevels(_ *http.Request, row func(cells ...string)) {
	row("PriorityLevelName", "ActiveQueues", "IsIdle", "IsQuiescing", "WaitingRequests", "ExecutingRequests", "DispatchedRequests",
		"RejectedRequests",
		"TimedoutRequests", "CancelledRequests")
	c.each(func(l *level) {
		active := 0
		for _, q := range l.set.Queues() {
			if q.Waiting > 0 {
				active++
			}
		}
		n := l.set.Counts()
		row(l.name, strconv.Itoa(active), strconv.FormatBool(l.set.Idle()), strconv.FormatBool(l.going.Load()), strconv.Itoa(n.Waiting),
			strconv.Itoa(n.Running),
			strconv.Itoa(l.set.Dispatched), strconv.Itoa(l.set.Rejected), "0", strconv.Itoa(l.set.Cancelled))
	})
}

func (c *Controller) dumpQueues(_ *http.Request, row func(cells ...string)) {
	row("PriorityLevelName", "Index", "PendingRequests", "ExecutingRequests", "SeatsInUse", "NextDispatchR", "InitialSeatsSum", "MaxSeatsSum",
		"TotalWorkSum")
	c.each(func(l *level) {
		for i, q := range l.set.Queues() {
			row(l.name, strconv.Itoa(i), strconv.Itoa(q.Waiting), strconv.Itoa(q.Running), strconv.Itoa(q.Seats), q.NextR.String(),
				strconv.Itoa(q.InitialSum), strconv.Itoa(q.SeatsSum), q.WorkSum.String())
		}
	})
}

func (c *Controller) dumpRequests(r *http.Request, row func(cells ...string)) {
	details := r.URL.Query().Get("includeRequestDetails") != ""
	head := []string{"PriorityLevelName", "FlowSchemaName", "QueueIndex", "RequestIndexInQueue", "FlowDistingsher", "ArriveTime",
		"InitialSeats", "FinalSeats", "AdditionalLatency", "StartTime"}
	if details {
		head = append(head, "UserName", "Verb", "APIPath", "Namespace", "Name", "APIVersion", "Resource", "SubResource")
	}
	row(head...)
	c.each(func(l *level) {
		l.set.Each(func(q, i int, r *fair.Request) {
			cells := []string{
				l.name, r.Flow.Name, strconv.Itoa(q), strconv.Itoa(i), r.Distinguisher, r.Arrived.UTC().Format(time.RFC3339Nano),
				strconv.Itoa(r.Initial), strconv.Itoa(r.Final), r.Linger.String(), r.Started.UTC().Format(time.RFC3339Nano),
			}
			if t, ok := r.Owner.(*Ticket); ok && details {
				name := ""
				if t.who != nil {
					name = t.who.GetName()
				}
				cells = append(cells, name, t.info.Verb, t.info.Path, t.info.Namespace, t.info.Name,
					schema.GroupVersion{Group: t.info.APIGroup, Version: t.info.APIVersion}.String(), t.info.Resource, t.info.Subresource)
			}
			row(cells...)
		})
	})
}
