// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/cri"
)

// TestRuntimeClass has a node whose containerd knows crun beside runc, and pods that ask for the one or say nothing.
func TestRuntimeClass(t *testing.T) {
	if _, err := exec.LookPath("crun"); err != nil {
		t.Skipf("SKIPPED: pods by another runtime than runc: %v; apt-get install crun", err)
	}
	if !alone(t) {
		return
	}
	// crun takes cgroups v1 or v2, not controllers of both: where v2 has some beside v1, it is v1 here.
	const beside = "/sys/fs/cgroup/unified"
	if _, err := os.Stat(beside + "/cgroup.controllers"); err == nil {
		if err := unix.Mount("/sys/fs/cgroup/systemd", beside, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	n := startNode(t)
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Handler: "crun"}
	if _, err := n.c.NodeV1().RuntimeClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	byCrun, byRunc := webPod("by-crun", nil), webPod("by-runc", nil)
	byCrun.Spec.RuntimeClassName = &class.Name
	n.create(t, byCrun, byRunc)
	client, err := cri.Dial(t.Context(), n.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(t.Context())
	for _, program := range []string{"crun", "runc"} {
		name := "by-" + program
		pod := n.ready(t, name) // it is probed
		if got := n.inside(t, name, "hostname"); got != name+"\n" {
			t.Errorf("inside of %s: %q", name, got)
		}
		status, err := client.Runtime.ContainerStatus(t.Context(),
			strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://"), true)
		if err != nil {
			t.Fatal(err)
		}
		var info struct {
			Options struct {
				Binary string `json:"binary_name"`
			} `json:"runtimeOptions"`
		}
		if err := json.Unmarshal([]byte(status.Info["info"]), &info); err != nil || filepath.Base(info.Options.Binary) != program {
			t.Errorf("%s is run by %q, %v: %s", name, info.Options.Binary, err, status.Info["info"])
		}
	}
	n.deleteAll(t)
	n.stop()
}
