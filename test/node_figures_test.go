// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// counted is as much as its pod is bounded to, and as it has written.
const (
	countedMemory = 64 << 20
	countedBytes  = 1 << 20
)

// figured has a pod with bounds, volumes and a network work, and asks the node what it and its pods use, as metrics collectors do.
func figured(t *testing.T, n *realNode) {
	p := webPod("counted", nil)
	p.Spec.Containers[0].Command[2] = "dd if=/dev/zero of=/scratch/f bs=1024 count=1024\necho written\n" + p.Spec.Containers[0].Command[2]
	p.Spec.Containers[0].Resources = bounds{"100m", "32Mi", "200m", "64Mi"}.requirements()
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}, {Name: "fast", MountPath: "/fast"}}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "fast", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory,
			SizeLimit: new(resource.MustParse("8Mi"))}}},
	}
	host := idlePod("on-host")
	host.Spec.HostNetwork = true
	n.claim(t, "data")
	host.Spec.Volumes = []corev1.Volume{{Name: "data",
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	host.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	n.create(t, p, host)
	n.ready(t, "counted", "on-host")
	var names []string
	if list, err := n.c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Fatal(list, err)
	} else {
		names = append(names, list.Items[0].Name)
	}
	get := func(t *testing.T, page string) []byte {
		t.Helper()
		b, err := n.c.CoreV1().RESTClient().Get().RequestURI("/api/v1/nodes/" + names[0] + "/proxy/" + page).DoRaw(t.Context())
		if err != nil {
			t.Fatal(page, err)
		}
		return b
	}
	t.Run("summary", func(t *testing.T) { figuredSummary(t, n, get) })
	t.Run("cadvisor", func(t *testing.T) { figuredCadvisor(t, get) })
	t.Run("kubelet", func(t *testing.T) {
		f := families(t, get(t, "metrics"))
		claim := map[string]string{"namespace": "default", "persistentvolumeclaim": "data"}
		for name, c := range map[string]struct {
			labels      map[string]string
			least, most float64
		}{
			"kubelet_node_name":                    {map[string]string{"node": names[0]}, 1, 1},
			"kubelet_running_pods":                 {nil, 2, 2},
			"kubelet_running_containers":           {map[string]string{"container_state": "running"}, 2, 2},
			"kubelet_volume_stats_capacity_bytes":  {claim, countedBytes, 1 << 60},
			"kubelet_volume_stats_used_bytes":      {claim, 1, 1 << 60},
			"kubelet_volume_stats_available_bytes": {claim, 1, 1 << 60},
			"kubelet_volume_stats_inodes_free":     {claim, 1, 1 << 60},
		} {
			if got := one(t, f, name, c.labels); got < c.least || got > c.most {
				t.Errorf("%s%v is %v, want %v to %v", name, c.labels, got, c.least, c.most)
			}
		}
	})
	t.Run("resource", func(t *testing.T) {
		f := families(t, get(t, "metrics/resource"))
		pod := map[string]string{"namespace": "default", "pod": "counted"}
		for name, most := range map[string]float64{"pod_memory_working_set_bytes": countedMemory, "pod_cpu_usage_seconds_total": 1000} {
			if got := one(t, f, name, pod); got <= 0 || got > most {
				t.Errorf("%s is %v", name, got)
			}
		}
	})
}

// claim makes a local volume on the node's own file system, and a claim of it that are gone with the test.
func (n *realNode) claim(t *testing.T, name string) {
	t.Helper()
	nodes, err := n.c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(filepath.Dir(n.dir), name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	host := corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
		Values: []string{nodes.Items[0].Labels[corev1.LabelHostname]}}
	if _, err := n.c.CoreV1().PersistentVolumes().Create(t.Context(),
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: dir}},
			NodeAffinity: &corev1.VolumeNodeAffinity{
				Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
					{MatchExpressions: []corev1.NodeSelectorRequirement{host}}}}},
		}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.c.CoreV1().PersistentVolumeClaims("default").Create(t.Context(),
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size}, VolumeName: name, StorageClassName: new(""),
		}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := n.c.CoreV1().PersistentVolumeClaims("default").Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := n.c.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func figuredSummary(t *testing.T, n *realNode, get func(*testing.T, string) []byte) {
	read := func(page string) (s stats.Summary) {
		t.Helper()
		if err := json.Unmarshal(get(t, page), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	of := func(s stats.Summary, name string) stats.PodStats {
		t.Helper()
		i := slices.IndexFunc(s.Pods, func(p stats.PodStats) bool { return p.PodRef.Name == name })
		if i < 0 || len(s.Pods[i].Containers) != 1 {
			t.Fatalf("pod %s has no figures of one container: %+v", name, s)
		}
		return s.Pods[i]
	}
	read("stats/summary")
	// The server ends it: what is used in a second is known then.
	w, err := n.c.CoreV1().ConfigMaps("default").Watch(t.Context(),
		metav1.ListOptions{TimeoutSeconds: new(int64(2)), FieldSelector: "metadata.name=none"})
	if err != nil {
		t.Fatal(err)
	}
	for range w.ResultChan() {
	}
	n.inside(t, "counted", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; dd if=/dev/zero of=/fast/f bs=1024 count=512")
	s := read("stats/summary")
	node, counted := s.Node, of(s, "counted")
	above := func(what string, got *uint64, least, most uint64) {
		t.Helper()
		if got == nil {
			t.Errorf("%s is not told", what)
		} else if *got < least || *got > most {
			t.Errorf("%s is %d, want %d to %d", what, *got, least, most)
		}
	}
	const any = 1 << 60
	above("the node's processor time", node.CPU.UsageCoreNanoSeconds, 1, any)
	// the kernel counts in hundredths of a second
	above("the node's use of processors", node.CPU.UsageNanoCores, 1, uint64(runtime.NumCPU())*2e9)
	above("the node's memory", node.Memory.WorkingSetBytes, 1, any)
	above("the node's resident memory", node.Memory.RSSBytes, 1, any)
	above("the node's file system", node.Fs.CapacityBytes, 1, any)
	above("the images' file system", node.Runtime.ImageFs.CapacityBytes, 1, any)
	above("images", node.Runtime.ImageFs.UsedBytes, 1, any)
	above("swap", node.Swap.SwapUsageBytes, 0, any)
	if r := node.Rlimit; r == nil || *r.MaxPID <= *r.NumOfRunningProcesses || *r.NumOfRunningProcesses == 0 {
		t.Errorf("threads of the node: %+v", r)
	}
	if len(node.SystemContainers) != 1 || node.SystemContainers[0].Name != "pods" {
		t.Errorf("groups of the node: %+v", node.SystemContainers)
	} else {
		above("memory of all pods", node.SystemContainers[0].Memory.WorkingSetBytes, *counted.Memory.WorkingSetBytes, any)
	}
	if node.Network == nil || len(node.Network.Interfaces) == 0 {
		t.Error("the node has no network")
	}
	above("the pod's processor time", counted.CPU.UsageCoreNanoSeconds, *counted.Containers[0].CPU.UsageCoreNanoSeconds, any)
	above("the pod's use of processors", counted.CPU.UsageNanoCores, 1, 1e9)
	above("the container's use of processors", counted.Containers[0].CPU.UsageNanoCores, 1, 1e9)
	above("the pod's memory", counted.Memory.WorkingSetBytes, 1, countedMemory)
	above("what the pod can still have", counted.Memory.AvailableBytes, 1, countedMemory)
	above("the container's resident memory", counted.Containers[0].Memory.RSSBytes, 1, countedMemory)
	above("the container's faults", counted.Containers[0].Memory.PageFaults, 1, any)
	above("the container's log", counted.Containers[0].Logs.UsedBytes, 1, countedBytes)
	above("the container's own files", counted.Containers[0].Rootfs.UsedBytes, 0, countedBytes) // containerd measures them now and then
	above("processes", counted.ProcessStats.ProcessCount, 2, 20)
	above("what the pod keeps", counted.EphemeralStorage.UsedBytes, countedBytes, 2*countedBytes)
	if counted.Network == nil || counted.Network.Name != "eth0" {
		t.Errorf("the pod's network: %+v", counted.Network)
	} else {
		above("what the pod has received", counted.Network.RxBytes, 1, any)
	}
	volumes := map[string]stats.VolumeStats{}
	for _, v := range counted.VolumeStats {
		volumes[v.Name] = v
	}
	above("the volume", volumes["scratch"].UsedBytes, countedBytes, 2*countedBytes)
	above("the volume's room", volumes["scratch"].CapacityBytes, countedBytes, any)
	above("the volume in memory", volumes["fast"].CapacityBytes, 8<<20, 8<<20)
	if len(volumes) != 3 { // with the token's
		t.Errorf("volumes: %+v", counted.VolumeStats)
	}
	if host := of(s, "on-host"); host.Network != nil {
		t.Errorf("a pod of the node's network has one: %+v", host.Network)
	}
	little := of(read("stats/summary?only_cpu_and_memory=true"), "counted")
	if little.CPU == nil || little.Memory == nil || little.Network != nil || little.VolumeStats != nil || little.EphemeralStorage != nil ||
		little.Containers[0].Rootfs != nil {
		t.Errorf("processors and memory alone: %+v", little)
	}
}

func figuredCadvisor(t *testing.T, get func(*testing.T, string) []byte) {
	f := families(t, get(t, "metrics/cadvisor"))
	container := map[string]string{"container": "c", "namespace": "default", "pod": "counted"}
	with := func(name, value string) map[string]string {
		out := map[string]string{name: value}
		for k, v := range container {
			out[k] = v
		}
		return out
	}
	for name, c := range map[string]struct {
		labels      map[string]string
		least, most float64
	}{
		"container_cpu_usage_seconds_total":  {with("cpu", "total"), 0.001, 1000},
		"container_cpu_cfs_periods_total":    {container, 1, 1e9},
		"container_spec_cpu_quota":           {container, 20000, 20000},
		"container_spec_cpu_period":          {container, 100000, 100000},
		"container_spec_cpu_shares":          {container, 100, 104},
		"container_spec_memory_limit_bytes":  {container, countedMemory, countedMemory},
		"container_memory_working_set_bytes": {container, 1, countedMemory},
		"container_memory_rss":               {container, 1, countedMemory},
		"container_memory_cache":             {container, 0, countedMemory},
		"container_fs_usage_bytes":           {container, 0, countedBytes},
		"container_processes":                {container, 2, 20},
		"container_threads":                  {container, 2, 20},
		"container_file_descriptors":         {container, 3, 1000},
		"container_sockets":                  {container, 1, 100}, // it listens
		"container_start_time_seconds":       {container, 1e9, 1e10},
		"container_last_seen":                {container, 1e9, 1e10},
		"container_oom_events_total":         {container, 0, 0},
		"container_network_receive_bytes_total": {map[string]string{"interface": "eth0", "namespace": "default", "pod": "counted",
			"container": ""}, 1, 1e9},
		"container_network_transmit_packets_total": {map[string]string{"interface": "eth0", "namespace": "default", "pod": "counted",
			"container": ""}, 1, 1e9},
		"machine_cpu_cores":      {nil, float64(runtime.NumCPU()), 1e4},
		"machine_memory_bytes":   {nil, 1 << 28, 1 << 50},
		"container_scrape_error": {nil, 0, 0},
		"cadvisor_version_info":  {nil, 1, 1},
		"container_memory_failures_total": {map[string]string{"container": "c", "pod": "counted", "failure_type": "pgfault",
			"scope": "container"}, 1, 1e9},
		"container_spec_memory_reservation_limit_bytes": {container, 0, 0},
	} {
		if got := one(t, f, name, c.labels); got < c.least || got > c.most {
			t.Errorf("%s%v is %v, want %v to %v", name, c.labels, got, c.least, c.most)
		}
	}
	// Each container by its cgroup, ID and image; the pod and the node by their cgroups.
	m := find(t, f, "container_memory_usage_bytes", container)
	labels := map[string]string{}
	for _, l := range m.Label {
		labels[l.GetName()] = l.GetValue()
	}
	if labels["image"] == "" || len(labels["name"]) != 64 || !bytes.HasSuffix([]byte(labels["id"]), []byte(labels["name"])) ||
		m.GetTimestampMs() == 0 {
		t.Errorf("the container is said to be %v at %d", labels, m.GetTimestampMs())
	}
	if whole := one(t, f, "container_memory_usage_bytes", map[string]string{"id": "/"}); whole <= m.GetGauge().GetValue() {
		t.Errorf("the node uses %v, a container %v", whole, m.GetGauge().GetValue())
	}
	for _, m := range f["container_network_receive_bytes_total"].GetMetric() {
		for _, l := range m.Label {
			if l.GetName() == "pod" && l.GetValue() == "on-host" {
				t.Errorf("the pod of the node's network has one: %v", m)
			}
		}
	}
}

// families reads a page of metrics.
func families(t *testing.T, page []byte) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	f, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// find is the only metric of a name that has the labels.
func find(t *testing.T, f map[string]*dto.MetricFamily, name string, labels map[string]string) (found *dto.Metric) {
	t.Helper()
	for _, m := range f[name].GetMetric() {
		has := 0
		for _, l := range m.Label {
			if v, ok := labels[l.GetName()]; ok && v == l.GetValue() {
				has++
			}
		}
		if has != len(labels) {
			continue
		}
		if found != nil && found.GetLabel() != nil && labels["container"] != "" {
			t.Errorf("%s%v is there twice", name, labels)
		}
		found = m
	}
	if found == nil {
		t.Fatalf("there is no %s%v", name, labels)
	}
	return found
}

// one is its value.
func one(t *testing.T, f map[string]*dto.MetricFamily, name string, labels map[string]string) float64 {
	t.Helper()
	m := find(t, f, name, labels)
	return m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
}
