// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package runconfig

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/agent/environ"
	"github.com/mortise-dev/mortise/internal/golden"
)

var node = Node{
	LogDir: "/var/log/pods", ClusterDNS: func() []string { return []string{"10.96.0.10"} }, ClusterDomain: "cluster.local",
	HostServers: []string{"1.1.1.1"}, HostSearches: []string{"example.org"}, HostOptions: []string{"rotate"}, MemoryBytes: 8 << 30,
	HugePages: []int64{2 << 20, 1 << 30}, LowestOOMScore: -1000, CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS,
}

// TestConfigurations turns testdata/NAME.pod.yaml into NAME.cri.yaml: the sandbox's and each
// container's configuration.
func TestConfigurations(t *testing.T) {
	files, err := filepath.Glob("testdata/*.pod.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no pods: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var pod corev1.Pod
		if err := yaml.UnmarshalStrict(text, &pod); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out := write(t, func() (proto.Message, error) { return node.Sandbox(&pod, 1, nil) })
		for i := range pod.Spec.Containers {
			out += "---\n" + write(t, func() (proto.Message, error) {
				return node.Container(ContainerInput{Pod: &pod, Container: &pod.Spec.Containers[i], ImageRef: "sha256:1", RestartCount: 2,
					ImageUser: new(int64(0)), Env: []environ.Var{{Name: "A", Value: "x"}}})
			})
		}
		out += "---\n" + node.Hosts(&pod, []string{"10.0.0.1"}, "127.0.0.1 host\n")
		golden.Compare(t, file[:len(file)-len(".pod.yaml")]+".cri.yaml", out)
	}
}

func write(t *testing.T, make func() (proto.Message, error)) string {
	t.Helper()
	m, err := make()
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	// Protobuf's own JSON varies its spaces on purpose; YAML does not.
	text, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out, err := yaml.JSONToYAML(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestSystemdCgroups(t *testing.T) {
	n := Node{CgroupDriver: runtimeapi.CgroupDriver_SYSTEMD}
	pod := &corev1.Pod{}
	pod.UID = "a-b"
	if got, want := n.CgroupParent(pod), "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda_b.slice"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestParseResolvConf(t *testing.T) {
	servers, searches, options := ParseResolvConf(
		"# x\nnameserver 1.1.1.1 # y\nnameserver ::1\nsearch a.b. c\noptions ndots:2 rotate\nsortlist\n")
	if diff := cmp.Diff([][]string{{"1.1.1.1", "::1"}, {"a.b", "c"}, {"ndots:2", "rotate"}},
		[][]string{servers, searches, options}); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add("nameserver 1.1.1.1\nsearch . a\n")
	f.Fuzz(func(t *testing.T, text string) {
		servers, searches, options := ParseResolvConf(text)
		for _, list := range [][]string{servers, searches, options} {
			for _, word := range list {
				if word == "" {
					t.Errorf("an empty word in %q", text)
				}
			}
		}
	})
}

func TestKubeletsChoices(t *testing.T) {
	pod := &corev1.Pod{}
	pod.UID = "1-2"
	c := &corev1.Container{Name: "c"}
	c.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}
	pod.Spec.Containers = []corev1.Container{*c}
	for name, want := range map[string]struct {
		node          Node
		parent        string
		period, quota int64
		profile       runtimeapi.SecurityProfile_ProfileType
	}{
		"none": {Node{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}, "/kubepods/burstable/pod1-2", 100_000, 50_000,
			runtimeapi.SecurityProfile_Unconfined},
		"period": {Node{QuotaPeriod: 10 * time.Millisecond, SeccompDefault: true, CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS},
			"/kubepods/burstable/pod1-2", 10_000, 5_000, runtimeapi.SecurityProfile_RuntimeDefault},
		"root": {Node{NoQuota: true, CgroupRoot: "/a/b", CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}, "/a/b/kubepods/burstable/pod1-2", 0,
			0, runtimeapi.SecurityProfile_Unconfined},
		"systemd": {Node{NoQuota: true, CgroupRoot: "/a/b", CgroupDriver: runtimeapi.CgroupDriver_SYSTEMD},
			"/a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-burstable.slice/a-b-kubepods-burstable-pod1_2.slice", 0, 0,
			runtimeapi.SecurityProfile_Unconfined},
		"flat": {Node{NoQuota: true, CgroupRoot: "/a", Flat: true}, "/a", 0, 0, runtimeapi.SecurityProfile_Unconfined},
	} {
		got, err := want.node.Container(ContainerInput{Pod: pod, Container: c})
		if err != nil {
			t.Fatal(err)
		}
		r := got.Linux.Resources
		if parent := want.node.CgroupParent(pod); parent != want.parent || r.CpuPeriod != want.period || r.CpuQuota != want.quota ||
			got.Linux.SecurityContext.Seccomp.ProfileType != want.profile {
			t.Errorf("%s: %s, period %d, quota %d, %v", name, parent, r.CpuPeriod, r.CpuQuota, got.Linux.SecurityContext.Seccomp)
		}
	}
}
