// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/cri/fakecri"
)

func podOfItsUsers(name string) *corev1.Pod {
	p := onePod(name)
	p.Spec.HostUsers = new(false)
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	return p
}

// mapped is where the root of a pod of the fake runtime is on the machine, the same for its sandbox, its container and all its mounts.
func mapped(t *testing.T, r *fakecri.Runtime, pod string) uint32 {
	t.Helper()
	sandbox, made := r.Made(pod, "c")
	users := sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	own := made.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if users.GetMode() != runtimeapi.NamespaceMode_POD || len(users.Uids) != 1 || own.String() != users.String() {
		t.Fatalf("pod %s: users of the sandbox %v, of the container %v", pod, users, own)
	}
	uid, gid := users.Uids[0], users.Gids[0]
	if uid.ContainerId != 0 || uid.Length != 65536 || uid.HostId < 65536 || uid.HostId%65536 != 0 || uid.String() != gid.String() {
		t.Errorf("pod %s: IDs %v", pod, users)
	}
	if len(made.Mounts) < 2 {
		t.Errorf("pod %s has the mounts %v", pod, made.Mounts)
	}
	for _, m := range made.Mounts {
		if len(m.UidMappings) != 1 || m.UidMappings[0].String() != uid.String() || len(m.GidMappings) != 1 ||
			m.GidMappings[0].String() != gid.String() {
			t.Errorf("pod %s: mount %v", pod, m)
		}
	}
	return uid.HostId
}

func TestPodsHaveUsersOfTheirOwn(t *testing.T) {
	c, r := newFake(t, nil)
	c.stop()
	r.Handlers(&runtimeapi.RuntimeHandler{Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}},
		&runtimeapi.RuntimeHandler{Name: "old"})
	c.start()
	c.create(podOfItsUsers("a"))
	c.create(podOfItsUsers("b"))
	first := c.await("a", "ready", isReady)
	c.await("b", "ready", isReady)
	a, b := mapped(t, r, "a"), mapped(t, r, "b")
	if a == b {
		t.Fatalf("two pods have the IDs from %d on", a)
	}
	c.create(onePod("usual"))
	c.await("usual", "ready", isReady)
	if _, made := r.Made("usual", "c"); made.Linux.SecurityContext.NamespaceOptions.UsernsOptions.GetMode() != runtimeapi.NamespaceMode_NODE ||
		len(made.Mounts[0].UidMappings) > 0 {
		t.Errorf("a usual pod: %v", made)
	}
	node, err := c.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range node.Status.RuntimeHandlers {
		if *h.Features.UserNamespaces != (h.Name == "") {
			t.Errorf("the node says of handler %q: %+v", h.Name, h.Features)
		}
	}

	// After a restart of the node they are the same ones, for containers that start again and against pods that are new.
	c.stop()
	c.start()
	c.create(podOfItsUsers("d"))
	c.await("d", "ready", isReady)
	r.Exit("a", "c", 1)
	c.await("a", "running again", running(1))
	if again := mapped(t, r, "a"); again != a {
		t.Errorf("pod a had the IDs from %d, has those from %d on", a, again)
	}
	if d := mapped(t, r, "d"); d == a || d == b {
		t.Errorf("a new pod has another's IDs from %d on", d)
	}

	// What a pod had is free when nothing is left of it.
	if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await("a", "gone", func(p *corev1.Pod) bool { return p == nil })
	if left, err := filepath.Glob(filepath.Join(c.options.Host.RootDir, "pods", string(first.UID), "userns")); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

func TestUsersThatCannotBeHad(t *testing.T) {
	c, r := newFake(t, nil)
	c.create(podOfItsUsers("silent"))
	c.awaitEvent("silent", "FailedCreatePodSandBox: Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does not support user namespaces")
	if n := r.Calls("RunPodSandbox"); n != 0 {
		t.Errorf("%d sandboxes were made", n)
	}

	// A range that nobody can read is not given to another: the node says whose it is.
	c.stop()
	dir := filepath.Join(c.options.Host.RootDir, "pods", "some")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "userns"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := Run(t.Context(), c.options)
	if want := `record pod mappings for existing pod "some": invalid user namespace mappings file: unexpected end of JSON input`; err == nil ||
		err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	c.start()
}
