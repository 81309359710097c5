// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package evict

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const mi = 1 << 20

func manager(t *testing.T, s Settings) *Manager {
	t.Helper()
	thresholds, err := Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return &Manager{Thresholds: thresholds, Transition: 5 * time.Minute, MaxGrace: 20}
}

func memory(available int64) Observations {
	return Observations{MemoryAvailable: {available, 1000 * mi}}
}

func TestConditionsStayForTheTransitionPeriod(t *testing.T) {
	m := manager(t, Settings{Hard: map[string]string{"memory.available": "100Mi"}})
	begin := time.Unix(1000, 0)
	pressure := []corev1.NodeConditionType{corev1.NodeMemoryPressure}
	for _, c := range []struct {
		after     time.Duration
		available int64
		want      []corev1.NodeConditionType
		starved   bool
	}{
		{0, 500 * mi, nil, false},
		{10 * time.Second, 90 * mi, pressure, true},
		{20 * time.Second, 300 * mi, pressure, false},
		{5*time.Minute + 9*time.Second, 300 * mi, pressure, false},
		{5*time.Minute + 10*time.Second, 300 * mi, nil, false},
	} {
		step := m.Next(begin.Add(c.after), memory(c.available))
		if diff := cmp.Diff(c.want, step.Conditions); diff != "" || (step.Starved != nil) != c.starved {
			t.Errorf("after %v: %s, starved %v", c.after, diff, step.Starved)
		}
	}
}

func TestSoftThresholdHasGrace(t *testing.T) {
	m := manager(t, Settings{
		Soft: map[string]string{"nodefs.available": "20%"}, SoftGracePeriod: map[string]string{"nodefs.available": "30s"},
		Hard: map[string]string{"nodefs.available": "5%"},
	})
	begin := time.Unix(1000, 0)
	low := Observations{NodeFSAvailable: {15, 100}}
	if step := m.Next(begin, low); step.Starved != nil || len(step.Conditions) != 1 {
		t.Errorf("at once: %+v", step)
	}
	if step := m.Next(begin.Add(20*time.Second), Observations{NodeFSAvailable: {50, 100}}); step.Starved != nil {
		t.Errorf("enough again: %+v", step)
	}
	if step := m.Next(begin.Add(30*time.Second), low); step.Starved != nil {
		t.Errorf("the grace begins again: %+v", step)
	}
	step := m.Next(begin.Add(60*time.Second), low)
	if step.Starved == nil || step.Starved.Hard || step.Starved.Resource != corev1.ResourceEphemeralStorage || !step.Starved.Disk {
		t.Errorf("after the grace: %+v", step.Starved)
	}
	step = m.Next(begin.Add(61*time.Second), Observations{NodeFSAvailable: {4, 100}})
	if step.Starved == nil || !step.Starved.Hard {
		t.Errorf("hard: %+v", step.Starved)
	}
}

func TestMinimumReclaim(t *testing.T) {
	m := manager(t, Settings{Hard: map[string]string{"memory.available": "100Mi"},
		MinimumReclaim: map[string]string{"memory.available": "50Mi"}})
	now := time.Unix(1000, 0)
	for i, c := range []struct {
		available int64
		starved   bool
	}{{120 * mi, false}, {90 * mi, true}, {120 * mi, true}, {150 * mi, false}, {120 * mi, false}} {
		if step := m.Next(now.Add(time.Duration(i)*time.Second), memory(c.available)); (step.Starved != nil) != c.starved {
			t.Errorf("%d: with %d Mi: %+v", i, c.available/mi, step.Starved)
		}
	}
	if m.Enough(memory(120*mi)) || !m.Enough(memory(150*mi)) {
		t.Error("enough is the threshold and what is to be reclaimed")
	}
}

func TestMemoryGoesFirst(t *testing.T) {
	m := manager(t, Settings{Hard: map[string]string{"pid.available": "10", "imagefs.available": "10%", "memory.available": "100Mi"}})
	step := m.Next(time.Unix(1, 0), Observations{PIDAvailable: {5, 100}, ImageFSAvailable: {5, 100}, MemoryAvailable: {mi, 1000 * mi}})
	if step.Starved.Signal != MemoryAvailable || len(step.Conditions) != 3 {
		t.Errorf("step: %+v", step)
	}
}

func TestWhatIsNotMeasuredIsNotShort(t *testing.T) {
	m := manager(t, Settings{Hard: map[string]string{"memory.available": "100Mi"}})
	if step := m.Next(time.Unix(1, 0), nil); step.Starved != nil || len(step.Conditions) != 0 {
		t.Errorf("step: %+v", step)
	}
}

func pod(name string, priority int32, request string, used int64) Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{Priority: &priority, Containers: []corev1.Container{{Name: "c"}}}}
	if request != "" {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(request),
			corev1.ResourceEphemeralStorage: resource.MustParse(request)}
	}
	return Pod{Pod: p, Known: true, Memory: used, Processes: used / mi, Containers: []Container{{Name: "c", Memory: used, LayerBytes: used}}}
}

func names(list []Eviction) string {
	var out []string
	for _, e := range list {
		out = append(out, e.Pod.Name)
	}
	return strings.Join(out, " ")
}

func TestRanking(t *testing.T) {
	static := pod("static", 0, "", 900*mi)
	static.Pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	unknown := pod("unknown", 5, "", 0)
	unknown.Known = false
	pods := []Pod{
		pod("within", 0, "500Mi", 400*mi), pod("little-over", 0, "100Mi", 110*mi), pod("far-over", 0, "100Mi", 300*mi),
		pod("important", 10, "", 600*mi), pod("best-effort", 0, "", 50*mi), static, pod("critical", 2000000000, "", 900*mi), unknown,
	}
	for signal, want := range map[string]string{
		"memory.available": "unknown far-over best-effort little-over important within",
		"nodefs.available": "unknown far-over best-effort little-over important within",
		"pid.available":    "within far-over little-over best-effort unknown important",
	} {
		m := manager(t, Settings{Hard: map[string]string{signal: "100Mi"}})
		step := m.Next(time.Unix(1, 0), Observations{Signal(signal): {mi, 1000 * mi}})
		if got := names(m.Victims(step.Starved, pods)); got != want {
			t.Errorf("%s: %s, want %s", signal, got, want)
		}
	}
}

func TestFileSystemsApart(t *testing.T) {
	layers, logs := pod("layers", 0, "", 0), pod("logs", 0, "", 0)
	layers.Containers[0].LayerBytes, layers.Containers[0].LogBytes = 100, 1
	logs.Containers[0].LayerBytes, logs.Containers[0].LogBytes = 1, 50
	for signal, want := range map[string]string{"imagefs.available": "layers logs", "nodefs.available": "logs layers"} {
		m := manager(t, Settings{Hard: map[string]string{signal: "50%"}})
		m.ImageFS = true
		step := m.Next(time.Unix(1, 0), Observations{Signal(signal): {1, 100}})
		if got := names(m.Victims(step.Starved, []Pod{logs, layers})); got != want {
			t.Errorf("%s: %s, want %s", signal, got, want)
		}
		if step.Starved.Disk != (signal == "imagefs.available") {
			t.Errorf("%s: collecting images helps: %v", signal, step.Starved.Disk)
		}
	}
}

func TestMessages(t *testing.T) {
	m := manager(t, Settings{Hard: map[string]string{"memory.available": "100Mi"}})
	step := m.Next(time.Unix(1, 0), memory(90*mi))
	p := pod("p", 0, "100Mi", 300*mi)
	p.Pod.Spec.TerminationGracePeriodSeconds = new(int64(7))
	got := m.Victims(step.Starved, []Pod{p})[0]
	want := Eviction{
		Pod: p.Pod, Signal: MemoryAvailable, Grace: 1, Disrupted: true,
		Message:     "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. Container c was using 300Mi, request is 100Mi, has larger consumption of memory. ",
		Annotations: map[string]string{"offending_containers": "c", "offending_containers_usage": "300Mi", "starved_resource": "memory"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	step.Starved.Hard = false
	if got := m.Victims(step.Starved, []Pod{p})[0].Grace; got != 7 {
		t.Errorf("soft grace %d", got)
	}
	m = manager(t, Settings{Hard: map[string]string{"nodefs.inodesFree": "5%"}})
	step = m.Next(time.Unix(1, 0), Observations{NodeFSInodesFree: {30, 1000}})
	if got, want := m.Victims(step.Starved, []Pod{p})[0].Message,
		"The node was low on resource: inodes. Threshold quantity: 50, available: 30. "; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestLocalStorageLimits(t *testing.T) {
	size := resource.MustParse("1Mi")
	volume := pod("volume", 0, "", 0)
	volume.Pod.Spec.Volumes = []corev1.Volume{{Name: "v",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &size}}}}
	volume.Volumes = []Volume{{Name: "v", Bytes: 2 * mi}}
	ram := pod("ram", 0, "", 0)
	ram.Pod.Spec.Volumes = []corev1.Volume{{Name: "v",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &size}}}}
	ram.Volumes = []Volume{{Name: "v", Bytes: 2 * mi}}
	sum := pod("sum", 0, "", 0)
	sum.Pod.Spec.Containers = append(sum.Pod.Spec.Containers, corev1.Container{Name: "d"})
	for i := range sum.Pod.Spec.Containers {
		sum.Pod.Spec.Containers[i].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: size}
	}
	sum.Containers = []Container{{Name: "c", LayerBytes: 2 * mi}, {Name: "d", LogBytes: mi}}
	single := pod("single", 0, "", 0)
	single.Pod.Spec = *sum.Pod.Spec.DeepCopy()
	single.Containers = []Container{{Name: "c", LayerBytes: mi, LogBytes: 1}, {Name: "d"}}
	m := &Manager{}
	var got []string
	for _, e := range m.OverLimit([]Pod{volume, ram, sum, single, pod("free", 0, "", 5*mi)}) {
		if e.Grace != 1 || e.Disrupted {
			t.Errorf("eviction: %+v", e)
		}
		got = append(got, e.Pod.Name+": "+e.Message)
	}
	want := []string{
		`volume: Usage of EmptyDir volume "v" exceeds the limit "1Mi". `,
		"sum: Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ",
		`single: Container c exceeded its local ephemeral storage limit "1Mi". `,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, p := range []Pod{volume, sum, single} {
		if !Limited(p.Pod) {
			t.Errorf("%s has bounds", p.Pod.Name)
		}
	}
	if Limited(ram.Pod) {
		t.Error("a volume in memory is the kernel's")
	}
}
