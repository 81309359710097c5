// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/internal/machine/images"
)

// stays is a container that ends when it is asked to.
const stays = "trap 'exit 0' TERM; sleep 3600 & wait"

// TestPodLife goes through what a pod may ask for, with real containers.
func TestPodLife(t *testing.T) {
	socket, dir := realRuntime(t)
	const bridge = "mortise-test1"
	t.Cleanup(func() {
		if link, err := netlink.LinkByName(bridge); err == nil {
			if err := netlink.LinkDel(link); err != nil {
				t.Error(err)
			}
		}
	})
	manifests := filepath.Join(dir, "manifests")
	if err := os.Mkdir(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, Options{
		NodeName: "n1", RuntimeEndpoint: socket,
		Host: HostOptions{RootDir: filepath.Join(dir, "kubelet"), LogDir: filepath.Join(dir, "pods")},
		CNI: CNIOptions{
			ConfDir: filepath.Join(dir, "containerd", "cni"), DataDir: filepath.Join(dir, "networks"), PodCIDR: "10.214.0.0/24", Bridge: bridge,
		},
		Kubelet: configured(t, "staticPodPath: "+manifests+
			"\nallowedUnsafeSysctls: ['kernel.msg*']\npodPidsLimit: 40\nevictionHard: {}\npodLogsDir: "+filepath.Join(dir, "pods")+"\n"),
		DecodePods: upstream.StaticPods,
	})
	// said runs a pod to its end and returns what it said.
	said := func(t *testing.T, name string, spec corev1.PodSpec) string {
		t.Helper()
		spec.RestartPolicy = corev1.RestartPolicyNever
		c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
		pod := c.await(name, "over", func(p *corev1.Pod) bool {
			return p != nil && (p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed)
		})
		var out bytes.Buffer
		if err := c.node.ContainerLogs(t.Context(), podspec.Target{Namespace: "default", Pod: name, Container: spec.Containers[0].Name},
			&corev1.PodLogOptions{}, &out, &out); err != nil {
			t.Error(err)
		}
		if pod.Status.Phase != corev1.PodSucceeded {
			t.Errorf("%s failed: %s, %+v", name, out.String(), pod.Status)
		}
		return out.String()
	}
	one := func(script string) []corev1.Container { return []corev1.Container{{Name: "c", Command: sh(script)}} }

	t.Run("names and hosts", func(t *testing.T) {
		got := said(t, "names", corev1.PodSpec{
			Hostname: "me", Subdomain: "family", SetHostnameAsFQDN: new(true),
			HostAliases: []corev1.HostAlias{{IP: "10.9.8.7", Hostnames: []string{"far", "away"}}},
			DNSPolicy:   corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"10.1.2.3"}, Searches: []string{"example.org"},
				Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: new("3")}}},
			Containers: one("hostname; grep far /etc/hosts; grep family /etc/hosts | cut -f2-; cat /etc/resolv.conf"),
		})
		want := "me.family.default.svc.cluster.local\n10.9.8.7\tfar\taway\nme.family.default.svc.cluster.local\tme\nsearch example.org\nnameserver 10.1.2.3\noptions ndots:3\n"
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})

	t.Run("sysctls", func(t *testing.T) {
		got := said(t, "sysctls", corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "kernel.msgmax", Value: "4321"},
				{Name: "net.ipv4.ip_local_port_range", Value: "20000 30000"}}},
			Containers: one("cat /proc/sys/kernel/msgmax /proc/sys/net/ipv4/ip_local_port_range"),
		})
		if got != "4321\n20000\t30000\n" {
			t.Errorf("%q", got)
		}
	})

	t.Run("security contexts", func(t *testing.T) {
		spec := corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{RunAsUser: new(int64(1234)), RunAsGroup: new(int64(2345)), SupplementalGroups: []int64{99}},
			Containers:      one("id -u; id -g; id -G; touch /x 2>&1 | grep -c Read-only; grep CapEff /proc/self/status; grep NoNewPrivs /proc/self/status"),
		}
		spec.Containers[0].SecurityContext = &corev1.SecurityContext{
			ReadOnlyRootFilesystem: new(true), AllowPrivilegeEscalation: new(false),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}
		if got, want := said(t, "secure", spec), "1234\n2345\n2345 99\n1\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})

	t.Run("users of its own are refused", func(t *testing.T) {
		c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "users"}, Spec: corev1.PodSpec{HostUsers: new(false), Containers: one("true")}})
		c.awaitEvent("users", "FailedCreatePodSandBox: Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does not support user namespaces")
	})

	t.Run("shared processes and ephemeral containers", func(t *testing.T) {
		made := c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "shared"}, Spec: corev1.PodSpec{
			ShareProcessNamespace: new(true), Containers: []corev1.Container{{Name: "c", Command: sh(stays)}},
		}})
		pod := c.await("shared", "ready", isReady).DeepCopy()
		pod.Spec = *made.Spec.DeepCopy()
		pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "debug", Image: images.Busybox, ImagePullPolicy: corev1.PullIfNotPresent, Command: sh("ps | grep -q 'sleep 360[0]' && echo seen"),
		}}}
		if _, err := c.client.CoreV1().Pods("default").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.await("shared", "debugged", func(p *corev1.Pod) bool {
			return len(p.Status.EphemeralContainerStatuses) == 1 && p.Status.EphemeralContainerStatuses[0].State.Terminated != nil
		})
		c.awaitLog("shared", "debug", "seen\n")
		c.await("shared", "still ready", isReady)
	})

	t.Run("restart rules", func(t *testing.T) {
		spec := corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Volumes:       []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
			Containers: []corev1.Container{{
				Name: "c", Command: sh("echo x >> /v/count; [ $(wc -l < /v/count) = 1 ] && exit 42; exit 7"),
				VolumeMounts:  []corev1.VolumeMount{{Name: "v", MountPath: "/v"}},
				RestartPolicy: new(corev1.ContainerRestartPolicyNever),
				RestartPolicyRules: []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart,
					ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}}}},
			}},
		}
		c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "rules"}, Spec: spec})
		pod := c.await("rules", "failed", failed)
		if s := pod.Status.ContainerStatuses[0]; s.RestartCount != 1 || s.State.Terminated == nil || s.State.Terminated.ExitCode != 7 {
			t.Errorf("status: %+v", s)
		}
	})

	t.Run("hooks wait", func(t *testing.T) {
		c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "hooks"}, Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(20)),
			Containers: []corev1.Container{{
				Name: "c", Command: sh(stays),
				Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}},
					PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: sh("echo bye > /proc/1/fd/1")}}},
			}},
		}})
		c.await("hooks", "ready", isReady)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		heard := make(chan string, 1)
		go func() {
			var out bytes.Buffer
			c.node.ContainerLogs(ctx, podspec.Target{Namespace: "default", Pod: "hooks", Container: "c"}, &corev1.PodLogOptions{Follow: true}, &out,
				&out) //nolint:errcheck // what was said counts
			heard <- out.String()
		}()
		if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "hooks", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.await("hooks", "gone", func(p *corev1.Pod) bool { return p == nil })
		cancel()
		<-heard
		if got := strings.Join(c.events("hooks"), "\n"); strings.Contains(got, "FailedPreStopHook") ||
			strings.Contains(got, "FailedPostStartHook") {
			t.Errorf("events: %s", got)
		}
	})

	t.Run("runtime class", func(t *testing.T) {
		if _, err := c.client.NodeV1().RuntimeClasses().Create(t.Context(),
			&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "usual"}, Handler: "runc"}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := said(t, "classed", corev1.PodSpec{RuntimeClassName: new("usual"), Containers: one("echo here")}); got != "here\n" {
			t.Errorf("%q", got)
		}
		c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "noclass"},
			Spec: corev1.PodSpec{RuntimeClassName: new("none"), Containers: one("true")}})
		c.awaitEvent("noclass", "FailedCreatePodSandBox")
	})

	t.Run("the host's namespaces", func(t *testing.T) {
		own, err := os.Readlink("/proc/self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		got := said(t, "host", corev1.PodSpec{HostNetwork: true, HostIPC: true, Containers: one("readlink /proc/self/ns/net")})
		if got != own+"\n" {
			t.Errorf("%q, want %q", got, own)
		}
	})

	t.Run("bounds", func(t *testing.T) {
		spec := corev1.PodSpec{Containers: one("cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null; true")}
		spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi"),
			corev1.ResourceCPU: resource.MustParse("500m")}
		if got := said(t, "bounds", spec); !strings.HasPrefix(got, "67108864\n") {
			t.Errorf("%q", got)
		}
	})

	t.Run("processes are bounded", func(t *testing.T) {
		// The pod's own cgroup is above what the container sees.
		c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "many"},
			Spec: corev1.PodSpec{Containers: one("i=0; while [ $i -lt 100 ]; do sleep 3600 & i=$((i+1)); done; wait")}})
		c.await("many", "started", func(p *corev1.Pod) bool {
			return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting == nil
		})
		c.awaitLog("many", "c", "can't fork")
	})

	t.Run("resize in place", func(t *testing.T) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "grow"}, Spec: corev1.PodSpec{Containers: one(stays)}}
		p.Spec.Containers[0].Resources = asking("500m")
		c.create(p)
		c.await("grow", "running", has("500m", "", ""))
		c.resized("grow", "700m")
		pod := c.await("grow", "resized", has("700m", "", ""))
		out, code, err := c.node.Run(t.Context(), podspec.Target{Namespace: "default", Pod: "grow", Container: "c"},
			sh("cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max 2>/dev/null; true"), 20*time.Second)
		if err != nil || code != 0 || !strings.HasPrefix(string(out), "70000") || pod.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("%q, %d, %v, %+v", out, code, err, pod.Status.ContainerStatuses)
		}
	})

	t.Run("static pod", func(t *testing.T) {
		manifest(t, manifests, "web.yaml", round("1"))
		pod := c.await("web-n1", "shown", isReady)
		if err := os.Remove(filepath.Join(manifests, "web.yaml")); err != nil {
			t.Fatal(err)
		}
		c.await("web-n1", "gone", func(p *corev1.Pod) bool { return p == nil })
		if left, err := os.ReadDir(filepath.Join(dir, "kubelet", "pods", pod.Annotations["kubernetes.io/config.hash"])); err == nil {
			t.Errorf("its directory is left: %v", left)
		}
	})

	t.Run("too much local storage", func(t *testing.T) {
		size := resource.MustParse("1Mi")
		c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "full"}, Spec: corev1.PodSpec{
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &size}}}},
			Containers: []corev1.Container{{Name: "c", Command: sh("dd if=/dev/zero of=/v/f bs=1M count=3; " + stays),
				VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
		}})
		pod := c.await("full", "evicted", failed)
		if pod.Status.Reason != "Evicted" || !strings.HasPrefix(pod.Status.Message, `Usage of EmptyDir volume "v" exceeds the limit "1Mi". `) {
			t.Errorf("status: %+v", pod.Status)
		}
	})

	list, err := c.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Items {
		if err := c.client.CoreV1().Pods("default").Delete(t.Context(), p.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.await(p.Name, "gone", func(p *corev1.Pod) bool { return p == nil })
	}
}
