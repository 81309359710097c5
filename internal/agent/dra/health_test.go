// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	clocktesting "k8s.io/utils/clock/testing"
)

// said is the health in a container's status.
func said(m *Manager, p *corev1.Pod) string {
	var out []string
	for _, s := range m.ResourceStatus(p, "c") {
		for _, r := range s.Resources {
			text := fmt.Sprintf("%s %s %s", s.Name, r.ResourceID, r.Health)
			if r.Message != nil {
				text += " " + *r.Message
			}
			out = append(out, text)
		}
	}
	return strings.Join(out, ", ")
}

func (w *world) wakes(p *corev1.Pod) {
	w.Helper()
	select {
	case uid := <-w.woken:
		if uid != p.UID {
			w.Errorf("%s is woken, want %s", uid, p.UID)
		}
	case <-time.After(patience):
		w.Fatal("no pod is woken")
	}
}

func TestHealthOfDevices(t *testing.T) {
	for name, options := range map[string][]kubeletplugin.Option{
		"v1": {kubeletplugin.HealthV1alpha1(false)}, "v1alpha1": {kubeletplugin.HealthV1(false)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			m := w.manager()
			stop := w.run(m)
			d := newDriver(w, "d.test")
			d.start(m, options...)
			a := pod("a", "one")
			w.claim("one", []string{"d.test/r/dev1", "d.test/r/dev2"}, a)
			w.prepare(m, a)
			const unknown = "claim:one d.test/class=dev1 Unknown, claim:one d.test/class=dev2 Unknown"
			if got := said(m, a); got != unknown {
				t.Errorf("%s", got)
			}
			d.reports <- kubeletplugin.DeviceHealthReport{Devices: []kubeletplugin.DeviceHealth{
				{PoolName: "pool", DeviceName: "dev1", Health: kubeletplugin.HealthStatusHealthy, HealthCheckTimeout: time.Hour},
				{PoolName: "pool", DeviceName: "dev2", Health: kubeletplugin.HealthStatusUnhealthy, Message: "hot", HealthCheckTimeout: time.Hour},
			}}
			w.wakes(a)
			const want = "claim:one d.test/class=dev1 Healthy, claim:one d.test/class=dev2 Unhealthy hot"
			if got := said(m, a); got != want {
				t.Errorf("%s", got)
			}
			stop() // the driver's connection ends with it
			w.wakes(a)
			if got := said(m, a); got != unknown {
				t.Errorf("after the end: %s", got)
			}
		})
	}
}

func TestHealthGrowsStale(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	dir := t.TempDir()
	h := openHealth(dir, clock.Now, slog.New(slog.DiscardHandler))
	report := func(names ...string) (out []deviceHealth) {
		for _, n := range names {
			out = append(out, deviceHealth{
				PoolName: "p", DeviceName: n, Health: corev1.ResourceHealthStatusHealthy, HealthCheckTimeout: healthTimeout,
			})
		}
		return out
	}
	changes := func(want map[string]bool, names ...string) {
		t.Helper()
		if diff := cmp.Diff(want, h.update("d", report(names...))); diff != "" {
			t.Errorf("changed (-want +got)\n%s", diff)
		}
	}
	changes(map[string]bool{"p/a": true, "p/b": true}, "a", "b")
	clock.SetTime(clock.Now().Add(20 * time.Second))
	changes(map[string]bool{}, "a")
	h = openHealth(dir, clock.Now, slog.New(slog.DiscardHandler)) // a new process
	if got := h.get("d", "p", "b").Health; got != corev1.ResourceHealthStatusHealthy {
		t.Error(got)
	}
	clock.SetTime(clock.Now().Add(20 * time.Second))
	if got := h.get("d", "p", "b").Health; got != corev1.ResourceHealthStatusUnknown {
		t.Error(got)
	}
	changes(map[string]bool{"p/b": true}, "a")
	var many []string
	for i := range mostDevices + 10 {
		many = append(many, fmt.Sprint(i))
	}
	h.update("d", report(many...))
	if n := len(h.drivers["d"].Devices); n != mostDevices {
		t.Errorf("%d devices are kept", n)
	}
	if got := h.forget("d"); len(got) != mostDevices || len(h.drivers) != 0 {
		t.Errorf("%d forgotten", len(got))
	}
}
