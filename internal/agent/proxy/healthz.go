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

// leavingTaint is the Cluster Autoscaler's taint of a node that it is about to remove.
const leavingTaint = "ToBeDeletedByClusterAutoscaler"

// Health reports whether the rules follow the cluster, as kube-proxy's /healthz and /livez do: it is unhealthy if a change has waited for
// too long. /healthz also fails for a node that is being removed, so that it gets no new connections. Its methods may be called
// concurrently.
type Health struct {
	clock   clock.PassiveClock
	late    time.Duration
	metrics *Metrics

	mu       sync.Mutex
	families map[corev1.IPFamily]*lag
	eligible bool
}

// lag is the delay of one family.
type lag struct {
	updated time.Time // when its rules were last up to date
	waits   time.Time // since when a change waits; zero: none does
	begun   time.Time // the same for a change that is being written
}

// NewHealth makes a Health without knowledge: the rules of both families are still to be written, and there is no node.
func NewHealth(late time.Duration, now clock.PassiveClock, metrics *Metrics) *Health {
	h := &Health{clock: now, late: late, metrics: metrics, families: map[corev1.IPFamily]*lag{}}
	for _, f := range families() {
		h.families[f.ip] = &lag{waits: now.Now()}
	}
	return h
}

// serve sets the families that have rules.
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

// heard notes that something has changed.
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

// begin notes that the proxy writes the changes.
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

// oldest returns since when the rules are out of date; zero: they are up to date.
func (l *lag) oldest() time.Time {
	if l.begun.IsZero() || !l.waits.IsZero() && l.waits.Before(l.begun) {
		return l.waits
	}
	return l.begun
}

// wrote notes that a family's rules are up to date, except for later changes.
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

// see notes the state of the node.
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

// familyHealth and healthReport are the response formats.
type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

type healthReport struct {
	LastUpdated  time.Time                        `json:"lastUpdated"` // the current time if everything is healthy
	CurrentTime  time.Time                        `json:"currentTime"`
	NodeEligible *bool                            `json:"nodeEligible,omitempty"`
	Healthy      bool                             `json:"healthy"`
	Status       map[corev1.IPFamily]familyHealth `json:"status,omitempty"`
}

// report makes the response. It contains a family that was never written only if that is late.
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

// Handler serves /healthz and /livez.
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
	_, _ = w.Write(body) // the client may have gone away
}
