// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/machine"
)

// realRuntime starts a containerd of the test's own, or says loudly why it cannot.
func realRuntime(t *testing.T) (socket, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: real containers need root")
	}
	dir = t.TempDir()
	before := machineFiles(t)
	t.Cleanup(func() {
		if after := machineFiles(t); !slices.Equal(before, after) {
			t.Errorf("files of the machine before the test: %q, after it: %q", before, after)
		}
	})
	socket, err := machine.Prepare(t.Context(), machineOptions(t, dir))
	if err != nil && strings.Contains(err.Error(), "not installed") {
		t.Skipf("SKIPPED: %v; make up installs it", err)
	}
	t.Cleanup(func() {
		if err := machine.Destroy(context.Background(), dir); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return socket, dir
}

// machineFiles are the machine's files that nodes, runtimes and networks keep: those that a test with its own containerd must not touch.
// Files of CNI's configuration are with their content.
func machineFiles(t *testing.T) (out []string) {
	t.Helper()
	for _, pattern := range []string{
		"/etc/cni/net.d/*", "/run/containerd/*.sock*", "/var/lib/containerd/*", "/var/lib/cni/networks/*", "/var/lib/kubelet/*",
		"/var/lib/mortise/*",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			text := path
			if strings.HasPrefix(path, "/etc/cni/") {
				content, err := os.ReadFile(path)
				text += fmt.Sprintf(": %s %v", content, err)
			}
			out = append(out, text)
		}
	}
	return out
}

func machineOptions(t *testing.T, dir string) machine.Options {
	return machine.Options{DataDir: dir, Private: true, NoInstall: true, Progress: t.Output()}
}

// TestEndToEnd runs pods as real containers. One containerd serves all of it.
func TestEndToEnd(t *testing.T) {
	socket, dir := realRuntime(t)
	t.Cleanup(func() {
		if link, err := netlink.LinkByName("mortise-test0"); err == nil {
			if err := netlink.LinkDel(link); err != nil {
				t.Error(err)
			}
		}
	})
	paged := reservePages(t, 8)
	c := newCluster(t, Options{
		NodeName: "n1", RuntimeEndpoint: socket,
		Host: HostOptions{RootDir: filepath.Join(dir, "kubelet"), LogDir: filepath.Join(dir, "pods")},
		CNI: CNIOptions{
			ConfDir: filepath.Join(dir, "containerd", "cni"), DataDir: filepath.Join(dir, "networks"),
			PodCIDR: "10.213.0.0/24", Bridge: "mortise-test0",
		},
	})

	t.Run("web", func(t *testing.T) {
		begin := time.Now()
		c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "httpd", Command: sh("mkdir /www; echo hello from $NAME > /www/index.html; exec httpd -f -p 80 -h /www"),
				Env: []corev1.EnvVar{{Name: "NAME", ValueFrom: &corev1.EnvVarSource{
					FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
				ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(80)}},
					PeriodSeconds: 1},
			}},
		}})
		pod := c.await("web", "ready", isReady)
		t.Logf("ready after %v", time.Since(begin))
		response, err := http.Get("http://" + pod.Status.PodIP + "/")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil || string(body) != "hello from web\n" {
			t.Errorf("answer: %q, %v", body, err)
		}
	})

	t.Run("huge pages", func(t *testing.T) {
		if !paged {
			t.Skip("SKIPPED: the kernel has no huge pages to give")
		}
		hugePagesEndToEnd(t, c)
	})

	t.Run("devices", func(t *testing.T) { devicesEndToEnd(t, c) })

	t.Run("image volume", func(t *testing.T) { imageVolumeEndToEnd(t, c) })

	t.Run("all containers start again", func(t *testing.T) { allAgainEndToEnd(t, c) })

	t.Run("cgroups", func(t *testing.T) { cgroupsEndToEnd(t, c) })

	t.Run("logs", func(t *testing.T) {
		c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "talk"}, Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "c", Command: sh("echo out; echo err >&2; echo last words > /dev/termination-log; exit 3")}},
		}})
		pod := c.await("talk", "failed", func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodFailed })
		end := pod.Status.ContainerStatuses[0].State.Terminated
		if end == nil || end.ExitCode != 3 || end.Message != "last words\n" || end.Reason != "Error" {
			t.Errorf("end: %+v", end)
		}
		var out, errs bytes.Buffer
		if err := c.node.ContainerLogs(t.Context(), podspec.Target{Namespace: "default", Pod: "talk", Container: "c"}, &corev1.PodLogOptions{},
			&out, &errs); err != nil {
			t.Error(err)
		}
		if out.String() != "out\n" || errs.String() != "err\n" {
			t.Errorf("logs: %q, %q", out.String(), errs.String())
		}
	})

	t.Run("environment and volumes", func(t *testing.T) {
		core := c.client.CoreV1()
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "conf"},
			Data: map[string]string{"a": "one", "b": "two"}}
		if _, err := core.ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "key"}, Data: map[string][]byte{"k": []byte("hidden")}}
		if _, err := core.Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "vol", Labels: map[string]string{"tier": "x"}}, Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{FSGroup: new(int64(4242)), RunAsUser: new(int64(1000))},
			Volumes: []corev1.Volume{
				{Name: "conf", VolumeSource: corev1.VolumeSource{
					ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}}}},
				{Name: "key", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "key", DefaultMode: new(int32(0o400))}}},
				{Name: "mem", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
				{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "info", VolumeSource: corev1.VolumeSource{
					DownwardAPI: &corev1.DownwardAPIVolumeSource{
						Items: []corev1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}}},
			},
			InitContainers: []corev1.Container{{Name: "init", Command: sh("echo from init > /disk/f"),
				VolumeMounts: []corev1.VolumeMount{{Name: "disk", MountPath: "/disk"}}}},
			Containers: []corev1.Container{{
				Name: "c", Command: sh("cat /conf/a /sub/k /disk/f; cat /info/labels; echo; id -G; mount | grep ' /mem ' | cut -d' ' -f5; echo $(A)-$B; while true; do cat /conf/a > /disk/now; sleep 0.1; done"),
				EnvFrom: []corev1.EnvFromSource{{Prefix: "P_",
					ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}}}},
				Env: []corev1.EnvVar{{Name: "A", Value: "x"}, {Name: "B", Value: "$(A)$(P_b)"}},
				VolumeMounts: []corev1.VolumeMount{
					{Name: "conf", MountPath: "/conf"}, {Name: "key", MountPath: "/sub/k", SubPath: "k"}, {Name: "mem", MountPath: "/mem"},
					{Name: "disk", MountPath: "/disk"}, {Name: "info", MountPath: "/info"},
				},
			}},
		}})
		pod := c.await("vol", "ready", isReady)
		c.awaitLog("vol", "c", "x-xtwo\n")
		var out bytes.Buffer
		if err := c.node.ContainerLogs(t.Context(), podspec.Target{Namespace: "default", Pod: "vol", Container: "c"}, &corev1.PodLogOptions{},
			&out, nil); err != nil {
			t.Fatal(err)
		}
		want := "onehiddenfrom init\ntier=\"x\"\n0 4242\ntmpfs\nx-xtwo\n"
		if out.String() != want {
			t.Errorf("log %q, want %q", out.String(), want)
		}
		cm.Data["a"] = "three"
		if _, err := core.ConfigMaps("default").Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.awaitFile(filepath.Join(dir, "kubelet", "pods", string(pod.UID), "volumes", "kubernetes.io~empty-dir", "disk", "now"), "three")
	})

	t.Run("restart with back-off", func(t *testing.T) {
		c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "crash"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Command: sh("exit 7")}}}})
		pod := c.await("crash", "backing off", func(p *corev1.Pod) bool {
			return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
				p.Status.ContainerStatuses[0].State.Waiting.Reason == "CrashLoopBackOff"
		})
		s := pod.Status.ContainerStatuses[0]
		if s.RestartCount != 1 || s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ExitCode != 7 ||
			pod.Status.Phase != corev1.PodRunning {
			t.Errorf("status: %+v", pod.Status)
		}
		if want := "back-off 10s restarting failed container=c pod=crash_default(" + string(pod.UID) + ")"; s.State.Waiting.Message != want {
			t.Errorf("message %q, want %q", s.State.Waiting.Message, want)
		}
	})

	t.Run("liveness", func(t *testing.T) {
		c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "live"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Command: sh("trap 'exit 0' TERM; sleep 3600 & wait"),
			LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"false"}}}, PeriodSeconds: 1,
				FailureThreshold: 1, TimeoutSeconds: 5},
		}}}})
		c.await("live", "restarted", func(p *corev1.Pod) bool {
			return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount >= 1
		})
		c.awaitEvent("live", "Unhealthy: Liveness probe failed")
		c.awaitEvent("live", "Killing: Container c failed liveness probe, will be restarted")
	})

	t.Run("missing image", func(t *testing.T) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "noimage"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "mortise.local/none:1"}}}}
		c.create(p)
		pod := c.await("noimage", "failing to pull", func(p *corev1.Pod) bool {
			return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting.Reason == "ImagePullBackOff"
		})
		if !strings.HasPrefix(pod.Status.ContainerStatuses[0].State.Waiting.Message,
			`Back-off pulling image "mortise.local/none:1": ErrImagePull: `) {
			t.Errorf("message: %s", pod.Status.ContainerStatuses[0].State.Waiting.Message)
		}
	})

	t.Run("sidecar and hooks", func(t *testing.T) {
		always := corev1.ContainerRestartPolicyAlways
		c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "side"}, Spec: corev1.PodSpec{
			RestartPolicy:  corev1.RestartPolicyNever,
			InitContainers: []corev1.Container{{Name: "s", RestartPolicy: &always, Command: sh("trap 'exit 0' TERM; sleep 3600 & wait")}},
			Containers: []corev1.Container{{
				Name: "c", Command: sh("while [ ! -e /started ]; do sleep 0.1; done; exit 0"),
				Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: sh("touch /started")}}},
			}},
		}})
		pod := c.await("side", "done", func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodSucceeded })
		if s := pod.Status.InitContainerStatuses[0]; s.State.Terminated == nil {
			t.Errorf("sidecar: %+v", s)
		}
	})

	t.Run("adoption", func(t *testing.T) {
		before := c.await("web", "ready", isReady)
		c.stop()
		c.start()
		after := c.await("web", "ready", isReady)
		if before.Status.ContainerStatuses[0].ContainerID != after.Status.ContainerStatuses[0].ContainerID {
			t.Error("the container was started again")
		}
		list, err := c.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list.Items {
			if e.InvolvedObject.Name == "web" && e.Reason == "Started" && e.Count > 1 {
				t.Error("started twice")
			}
		}
	})

	t.Run("killed container", func(t *testing.T) {
		before := c.await("web", "ready", isReady)
		if pid := containerPID(t, socket, before.Status.ContainerStatuses[0].ContainerID); pid != "" {
			kill(t, pid)
		}
		c.await("web", "restarted", func(p *corev1.Pod) bool { return isReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
	})

	t.Run("containerd is killed", func(t *testing.T) {
		before := c.await("vol", "ready", isReady)
		pid, err := machine.PID(dir)
		if err != nil {
			t.Fatal(err)
		}
		kill(t, strconv.Itoa(pid))
		c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "after"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Command: sh("sleep 3600")}}}})
		if _, err := machine.Prepare(t.Context(), machineOptions(t, dir)); err != nil {
			t.Fatal(err)
		}
		c.await("after", "ready", isReady)
		after := c.await("vol", "ready", isReady)
		if before.Status.ContainerStatuses[0].ContainerID != after.Status.ContainerStatuses[0].ContainerID {
			t.Error("the container was started again")
		}
	})

	t.Run("delete", func(t *testing.T) {
		if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.await("web", "gone", func(p *corev1.Pod) bool { return p == nil })
	})

	t.Run("nothing is left", func(t *testing.T) {
		pods, err := c.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pods.Items {
			if err := c.client.CoreV1().Pods("default").Delete(t.Context(), p.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			c.await(p.Name, "gone", func(p *corev1.Pod) bool { return p == nil })
		}
		for _, path := range []string{filepath.Join(dir, "kubelet", "pods"), filepath.Join(dir, "pods")} {
			entries, err := os.ReadDir(path)
			if err != nil || len(entries) > 0 {
				t.Errorf("%s: %v, %v", path, entries, err)
			}
		}
		leases, err := os.ReadDir(filepath.Join(dir, "networks", "mortise"))
		if err != nil {
			t.Error(err)
		}
		for _, l := range leases {
			if strings.HasPrefix(l.Name(), "10.") {
				t.Errorf("address %s is left", l.Name())
			}
		}
		mounts, err := os.ReadFile("/proc/mounts")
		if err != nil || strings.Contains(string(mounts), filepath.Join(dir, "kubelet")) {
			t.Errorf("mounts are left: %v", err)
		}
		for _, p := range pods.Items {
			if left, _ := filepath.Glob("/sys/fs/cgroup/*/kubepods/*/pod" + string(p.UID)); len(left) > 0 {
				t.Errorf("cgroups are left: %v", left)
			}
		}
	})
}

// awaitLog follows a container's log until it holds the text.
func (c *cluster) awaitLog(pod, container, text string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
	defer cancel()
	found := &finder{text: text, found: cancel}
	err := c.node.ContainerLogs(ctx, podspec.Target{Namespace: "default", Pod: pod, Container: container}, &corev1.PodLogOptions{Follow: true},
		found, found)
	if !strings.Contains(found.seen.String(), text) {
		c.t.Fatalf("log of %s: %q, %v", pod, found.seen.String(), err)
	}
}

type finder struct {
	text  string
	seen  bytes.Buffer
	found func()
}

func (f *finder) Write(p []byte) (int, error) {
	f.seen.Write(p)
	if strings.Contains(f.seen.String(), f.text) {
		f.found()
	}
	return len(p), nil
}

// awaitFile watches a directory until a file in it holds the text.
func (c *cluster) awaitFile(path, text string) {
	c.t.Helper()
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		c.t.Fatal(err)
	}
	defer watcher.Close()
	if err := watcher.Add(filepath.Dir(path)); err != nil {
		c.t.Fatal(err)
	}
	limit := time.After(20 * time.Second)
	for {
		if got, err := os.ReadFile(path); err == nil && string(got) == text {
			return
		}
		select {
		case <-watcher.Events:
		case <-limit:
			c.t.Fatalf("%s does not become %q", path, text)
		}
	}
}

// containerPID is the process of a container, as containerd's own tool says.
func containerPID(t *testing.T, socket, id string) string {
	t.Helper()
	_, id, _ = strings.Cut(id, "://")
	out, err := exec.Command("ctr", "-a", socket, "-n", "k8s.io", "tasks", "ls").Output()
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(out)) {
		if f := strings.Fields(l); len(f) > 1 && f[0] == id {
			return f[1]
		}
	}
	return ""
}

func kill(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
