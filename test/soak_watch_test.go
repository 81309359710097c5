// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// seen is an event of the watch.
type seen struct {
	kind    watch.EventType
	name    string
	value   string
	version int64
}

// listing is a list that was read in pages.
type listing struct {
	version int64
	items   map[string]register
}

// watch follows the registers from where it was before, and breaks off and resumes at random.
func (s *soaking) watch(ctx context.Context, c kubernetes.Interface, r *rand.Rand) {
	for ctx.Err() == nil {
		w, err := c.CoreV1().ConfigMaps("soak").Watch(ctx,
			metav1.ListOptions{LabelSelector: "register", ResourceVersion: strconv.FormatInt(s.from, 10), AllowWatchBookmarks: true})
		if err != nil {
			if ctx.Err() == nil && outcome(err).refused == "" {
				s.t.Errorf("watch from %d: %v", s.from, err)
			}
			return
		}
		for n := r.IntN(200); n >= 0; n-- {
			e, open := <-w.ResultChan()
			if !open {
				break
			}
			if !s.follow(e) {
				return
			}
		}
		w.Stop()
	}
}

// follow books an event, and the place from which to go on.
func (s *soaking) follow(e watch.Event) bool {
	m, ok := e.Object.(*corev1.ConfigMap)
	if !ok {
		err := apierrors.FromObject(e.Object)
		if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "decode an event") { // the client's word for a stream that broke
			s.t.Errorf("the watch from %d says %s %v", s.from, e.Type, err)
		}
		return false
	}
	at := registerOf(m)
	if at.version <= s.from && e.Type != watch.Bookmark || at.version < s.from {
		s.t.Errorf("a watch from %d says %s %s at %d", s.from, e.Type, m.Name, at.version)
	}
	s.from = at.version
	if e.Type == watch.Bookmark {
		return true
	}
	s.watched = append(s.watched, seen{e.Type, m.Name, at.value, at.version})
	if e.Type == watch.Deleted {
		delete(s.state, m.Name)
	} else {
		s.state[m.Name] = at
	}
	return true
}

// catchUp resumes the watch on a server that was started again, and reads until the state that a list showed.
func (s *soaking) catchUp(p *program, now map[string]register, version int64) {
	s.t.Helper()
	if s.from > version {
		s.t.Errorf("a watch was at %d, and after the kill the server is at %d: what was shown is lost", s.from, version)
		return
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	w, err := p.client().CoreV1().ConfigMaps("soak").Watch(ctx,
		metav1.ListOptions{LabelSelector: "register", ResourceVersion: strconv.FormatInt(s.from, 10)})
	if err != nil {
		s.t.Fatal(err)
	}
	defer w.Stop()
	for !maps.Equal(s.state, now) {
		e, open := <-w.ResultChan()
		if !open || s.from > version {
			s.t.Errorf("the watch is at %d and did not show what a list at %d shows:%s, but%s", s.from, version, describeRegisters(s.state),
				describeRegisters(now))
			return
		}
		if !s.follow(e) {
			return
		}
	}
}

// judgeWatch wants each acknowledged write once among the events, and no event of which nobody knows.
func (s *soaking) judgeWatch() {
	state, values := maps.Clone(s.begun), map[string]int64{}
	last := s.floor
	for _, e := range s.watched {
		if e.version <= last {
			s.t.Errorf("the watch went from %d to %d", last, e.version)
		}
		last = e.version
		was, there := state[e.name]
		switch {
		case (e.kind == watch.Added) == there:
			s.t.Errorf("%s %s at %d, after %+v", e.kind, e.name, e.version, was)
		case e.kind == watch.Deleted && was.value != e.value:
			s.t.Errorf("%s %s at %d with %s, after %+v", e.kind, e.name, e.version, e.value, was)
		}
		if e.kind == watch.Deleted {
			delete(state, e.name)
			continue
		}
		state[e.name] = register{true, e.value, e.version}
		if !s.tried[e.value] {
			s.t.Errorf("%s %s at %d with %s, which no write of this round set", e.kind, e.name, e.version, e.value)
		}
		if first := values[e.value]; first != 0 {
			s.t.Errorf("%s was written at %d and again at %d", e.value, first, e.version)
		}
		values[e.value] = e.version
	}
	for version, a := range s.past {
		if values[a.value] != version {
			s.t.Errorf("the watch did not show what was acknowledged: %s", a)
		}
	}
	s.events += len(s.watched)
}

// page lists the registers in pages of random length.
func (s *soaking) page(ctx context.Context, c kubernetes.Interface, r *rand.Rand) {
	for ctx.Err() == nil {
		options := metav1.ListOptions{LabelSelector: "register", Limit: int64(1 + r.IntN(10))}
		l := listing{items: map[string]register{}}
		var names []string
		for {
			page, err := c.CoreV1().ConfigMaps("soak").List(ctx, options)
			if err != nil {
				return
			}
			version, err := strconv.ParseInt(page.ResourceVersion, 10, 64)
			if err != nil || l.version != 0 && version != l.version {
				s.t.Errorf("a page at resourceVersion %s follows one at %d", page.ResourceVersion, l.version)
			}
			l.version = version
			for i := range page.Items {
				names = append(names, page.Items[i].Name)
				l.items[page.Items[i].Name] = registerOf(&page.Items[i])
			}
			if options.Continue = page.Continue; options.Continue == "" {
				break
			}
		}
		if !slices.IsSorted(names) || len(l.items) != len(names) {
			s.t.Errorf("pages give %v", names)
		}
		s.mu.Lock()
		s.lists = append(s.lists, l)
		s.mu.Unlock()
	}
}

// judgeLists wants each list to be what the watch shows for its resourceVersion.
func (s *soaking) judgeLists() {
	slices.SortFunc(s.lists, func(a, b listing) int { return int(a.version - b.version) })
	state, next := maps.Clone(s.begun), 0
	for _, l := range s.lists {
		for ; next < len(s.watched) && s.watched[next].version <= l.version; next++ {
			if e := s.watched[next]; e.kind == watch.Deleted {
				delete(state, e.name)
			} else {
				state[e.name] = register{true, e.value, e.version}
			}
		}
		if !maps.Equal(state, l.items) {
			s.t.Errorf("a list in pages at %d gave %v, the watch comes to %v", l.version, describeRegisters(l.items), describeRegisters(state))
		}
	}
	s.listed += len(s.lists)
}

func describeRegisters(m map[string]register) string {
	var out string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out += fmt.Sprintf(" %s=%s@%d", k, m[k].value, m[k].version)
	}
	return out
}
