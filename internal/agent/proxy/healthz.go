// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// leavingTaint is what the Cluster Autoscaler gives to a node that it is about to take away.
const leavingTaint = "ToBeDeletedByClusterAutoscaler"

// Health says whether the rules follow the cluster, as kube-proxy's /healthz and /livez do: a change that has waited for longer than
// a time is too late. /healthz also says whether the node is to have connections: one that is being taken away is not. Its methods may
// be called concurrently.
type Health struct {
	clock   clock.PassiveClock
	late    time.Duration
	metrics *Metrics

	mu       sync.Mutex
	families map[corev1.IPFamily]*lag
	eligible bool
}

// lag is how far one family is behind.
type lag struct {
	updated time.Time // when its rules were last right
	waits   time.Time // since when a change waits; zero: none does
	begun   time.Time // the same of one that is being written
}

// NewHealth makes a health that knows nothing yet: of both families the rules are still to be written, and there is no node.
func NewHealth(late time.Duration, now clock.PassiveClock, metrics *Metrics) *Health {
	h := &Health{clock: now, late: late, metrics: metrics, families: map[corev1.IPFamily]*lag{}}
	for _, f := range families() {
		h.families[f.ip] = &lag{waits: now.Now()}
	}
	return h
}

// serve says which families there are rules of.
func (h *Health) serve(list []corev1.IPFamily, now time.Time) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.families
	h.families = map[corev1.IPFamily]*lag{}
	for _, f := range list {
		if h.families[f] = before[f]; h.families[f] == nil {
			h.families[f] = &lag{waits: now}
		}
	}
}

// heard says that something changed.
func (h *Health) heard(now time.Time) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.families {
		if l.waits.IsZero() {
			l.waits = now
		}
	}
}

// begin says that what changed is being written.
func (h *Health) begin() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.families {
		l.begun, l.waits = l.oldest(), time.Time{}
	}
}

// oldest is since when the rules are not right; zero: they are.
func (l *lag) oldest() time.Time {
	if l.begun.IsZero() || !l.waits.IsZero() && l.waits.Before(l.begun) {
		return l.waits
	}
	return l.begun
}

// wrote says that a family's rules are right but for what was heard meanwhile.
func (h *Health) wrote(f corev1.IPFamily, now time.Time) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.families[f]; l != nil {
		l.updated, l.begun = now, time.Time{}
	}
}

// see notes what a node is.
func (h *Health) see(n *corev1.Node, there bool) {
	if h == nil {
		return
	}
	eligible := there && n.DeletionTimestamp.IsZero()
	for _, t := range n.Spec.Taints {
		eligible = eligible && t.Key != leavingTaint
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eligible = eligible
}

// familyHealth and healthReport are the wire forms.
type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

type healthReport struct {
	LastUpdated  time.Time                        `json:"lastUpdated"` // now where all is well
	CurrentTime  time.Time                        `json:"currentTime"`
	NodeEligible *bool                            `json:"nodeEligible,omitempty"`
	Healthy      bool                             `json:"healthy"`
	Status       map[corev1.IPFamily]familyHealth `json:"status,omitempty"`
}

// report says how it goes. A family that was never written is in it only when that is late.
func (h *Health) report() (r healthReport, eligible bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r = healthReport{CurrentTime: h.clock.Now(), Healthy: true, Status: map[corev1.IPFamily]familyHealth{}}
	for f, l := range h.families {
		since := l.oldest()
		well := since.IsZero() || r.CurrentTime.Sub(since) < h.late
		if !well || !l.updated.IsZero() {
			r.Status[f] = familyHealth{LastUpdated: l.updated, Healthy: well}
		}
		r.Healthy = r.Healthy && well
		if l.updated.After(r.LastUpdated) {
			r.LastUpdated = l.updated
		}
	}
	return r, h.eligible
}

// Handler answers /healthz and /livez.
func (h *Health) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		r, eligible := h.report()
		r.NodeEligible = &eligible
		h.answer(w, r, r.Healthy && eligible, func(m *Metrics) *prometheus.CounterVec { return m.healthz })
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		r, _ := h.report()
		h.answer(w, r, r.Healthy, func(m *Metrics) *prometheus.CounterVec { return m.livez })
	})
	return mux
}

func (h *Health) answer(w http.ResponseWriter, r healthReport, well bool, counter func(*Metrics) *prometheus.CounterVec) {
	code := http.StatusOK
	if well {
		r.LastUpdated = r.CurrentTime
	} else {
		code = http.StatusServiceUnavailable
	}
	body, err := json.Marshal(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if h.metrics != nil {
		counter(h.metrics).WithLabelValues(strconv.Itoa(code)).Inc()
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body) // a client that went away needs no answer
}
