// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/machine"
	"github.com/mortise-dev/mortise/internal/machine/images"
	"github.com/mortise-dev/mortise/internal/machine/unshare"
)

// The arguments that make the program the first process of a node's namespaces, and the one that measures in them.
const (
	podsChild    = "pods"
	podsMeasurer = "pods-measurer"
)

const (
	podsInTurn = 30
	podsAtOnce = 30
	podsLong   = 50 // that run while memory and rest are measured
	podsRest   = 20 // seconds of it
)

// podsKubelet is the node's configuration: a disk that others have filled is not what is measured.
const podsKubelet = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
evictionHard: {nodefs.available: "1%", imagefs.available: "1%"}
imageGCHighThresholdPercent: 100
`

// podsMeasured is what that process measured; CPU is mortise's alone.
type podsMeasured struct {
	Ready, Alone                        []time.Duration // one after another, each after one by the runtime alone
	ReadyCPU, DeletedCPU, Idle          time.Duration
	AtOnce, AtOnceCPU                   time.Duration
	Resident, Anonymous, Share, Settled int64
}

// realPods are pods of real containers.
func realPods(ctx context.Context, b *bench, add adder) error {
	var p podsMeasured
	if err := onRealNode(ctx, b, podsChild, &p); err != nil {
		return err
	}
	add(fmt.Sprintf("a pod of one container, image there: create → Ready as a watch sees it, %d one after another", podsInTurn),
		report.Value{Name: "p50", Unit: "ms", Number: load.Quantile(p.Ready, 50), Bound: report.AtMost(180)},
		report.Value{Name: "p99", Unit: "ms", Number: load.Quantile(p.Ready, 99)},
		report.Value{Name: "mortise's CPU", Unit: "ms", Number: load.Ms(p.ReadyCPU) / podsInTurn, Bound: report.AtMost(25)})
	add("  the runtime alone for as much, before them: sandbox, container, start",
		report.Value{Name: "p50", Unit: "ms", Number: load.Quantile(p.Alone, 50)},
		report.Value{Name: "p99", Unit: "ms", Number: load.Quantile(p.Alone, 99)})
	add(fmt.Sprintf("  deleted, %d at once: mortise's CPU a pod", podsInTurn),
		report.Value{Unit: "ms", Number: load.Ms(p.DeletedCPU) / podsInTurn})
	add(fmt.Sprintf("%d pods at once, until all are Ready", podsAtOnce),
		report.Value{Unit: "s", Number: p.AtOnce.Seconds(), Bound: report.AtMost(3.5)},
		report.Value{Name: "mortise's CPU a pod", Unit: "ms", Number: load.Ms(p.AtOnceCPU) / podsAtOnce, Bound: report.AtMost(25)})
	add(fmt.Sprintf("memory of mortise with %d pods running, at once", podsLong),
		report.Value{Name: "resident", Unit: "MB", Number: float64(p.Resident >> 20)})
	add(fmt.Sprintf("  after %d s of rest", podsRest),
		report.Value{Name: "resident", Unit: "MB", Number: float64(p.Settled >> 20), Bound: report.AtMost(120)},
		report.Value{Name: "proportional", Unit: "MB", Number: float64(p.Share >> 20)},
		report.Value{Name: "its own", Unit: "MB", Number: float64(p.Anonymous >> 20)})
	add(fmt.Sprintf("CPU at rest with %d pods running, %d s", podsLong, podsRest),
		report.Value{Unit: "ms/s", Number: load.Ms(p.Idle) / podsRest, Bound: report.AtMost(20)})
	return nil
}

// onRealNode runs this program with the argument child, which measures on a node with a containerd of its own, in namespaces of their own,
// so that nothing of them is left. It reads what the child has measured.
func onRealNode(ctx context.Context, b *bench, child string, measured any) error {
	if os.Geteuid() != 0 {
		return errors.New("real containers need root")
	}
	remove, err := unshare.Make()
	if err != nil {
		return err
	}
	defer remove()
	dir, err := os.MkdirTemp("", "b") // short: sockets of drivers below it have at most 107 bytes in their paths
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary, err := filepath.Abs(b.binary)
	if err != nil {
		return err
	}
	c, err := ownProgram(ctx, child)
	if err != nil {
		return err
	}
	c.Env = append(os.Environ(), "TMPDIR="+dir)
	c.Stdin = strings.NewReader(binary)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	// The death that is signalled is the thread's.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, err := c.Output()
	if err != nil {
		return fmt.Errorf("run a node in namespaces of its own: %w", err)
	}
	if err := json.Unmarshal(out, measured); err != nil {
		return fmt.Errorf("read what was measured: %w", err)
	}
	return nil
}

// beNodesInit is the first process of the namespaces. It runs this program with the argument measurer.
func beNodesInit(measurer string) error {
	if err := unshare.Arrange(); err != nil {
		return err
	}
	c := exec.Command("/proc/self/exe", measurer)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	if code := unshare.Init(c); code != 0 {
		return fmt.Errorf("process that measures ended with code %d", code)
	}
	return nil
}

// podsNode is a cluster of one real node.
type podsNode struct {
	*load.Server
	client  kubernetes.Interface
	runtime *cri.Client
	watched watch.Interface // its pods
}

// bePods is the process that measures pods.
func bePods(ctx context.Context, in io.Reader, out io.Writer) error {
	return withRealNode(ctx, in, out, func(ctx context.Context, n *podsNode) (any, error) { return n.measure(ctx) })
}

// withRealNode measures on a node of its own, and writes what was measured.
func withRealNode(ctx context.Context, in io.Reader, out io.Writer, measure func(context.Context, *podsNode) (any, error)) (err error) {
	binary, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	dir := filepath.Join(os.TempDir(), "machine")
	config := filepath.Join(os.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(config, []byte(podsKubelet), 0o600); err != nil {
		return err
	}
	if err := makeUplink(); err != nil {
		return fmt.Errorf("give the node an address: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, load.Patience)
	defer cancel()
	socket, err := machine.Prepare(ctx, machine.Options{DataDir: dir, Private: true, NoInstall: true, Progress: os.Stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, machine.Destroy(context.WithoutCancel(ctx), dir)) }()
	s, err := load.Start(ctx, string(binary), "--node", "cri", "--cri-socket", socket, "--kubelet-config", config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	n := &podsNode{Server: s}
	s.Config.QPS = -1
	if n.client, err = kubernetes.NewForConfig(s.Config); err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	if n.runtime, err = cri.Dial(ctx, socket); err != nil {
		return err
	}
	defer n.runtime.Close(ctx)
	if err := n.awaitNode(ctx); err != nil {
		return err
	}
	if n.watched, err = n.client.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	defer n.watched.Stop()
	measured, err := measure(ctx, n)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(measured)
}

// makeUplink gives the namespace a link with an address that is the node's.
func makeUplink() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "up0"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "up1"}); err != nil {
		return err
	}
	for _, name := range []string{"lo", "up0", "up1"} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		if name != "up0" {
			continue
		}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 168, 50, 1), Mask: net.CIDRMask(24, 32)}}); err != nil {
			return err
		}
		if err := netlink.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)},
			Gw: net.IPv4(192, 168, 50, 2)}); err != nil {
			return err
		}
	}
	return nil
}

func (n *podsNode) awaitNode(ctx context.Context) error {
	w, err := n.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if node, ok := e.Object.(*corev1.Node); ok && len(node.Spec.Taints) == 0 && len(node.Status.Conditions) > 0 {
			return nil
		}
	}
	return errors.New("the node was not ready in time")
}

func (n *podsNode) measure(ctx context.Context) (p *podsMeasured, err error) {
	p = &podsMeasured{}
	// The first makes the bridge, and the kernel's rules.
	if _, err := n.atOnce(ctx, "first", 1); err != nil {
		return nil, err
	}
	if err := n.rest(ctx, 3); err != nil {
		return nil, err
	}
	for i := range podsInTurn { // before the pods, not between them: the node hears of these sandboxes too, and has to look whose they are
		took, err := n.alone(ctx, fmt.Sprint(i))
		if err != nil {
			return nil, err
		}
		p.Alone = append(p.Alone, took)
	}
	if err := n.rest(ctx, 1); err != nil {
		return nil, err
	}
	p.ReadyCPU, err = n.cpuOf(ctx, func() error {
		for i := range podsInTurn {
			took, err := n.atOnce(ctx, fmt.Sprintf("turn-%d", i), 1)
			if err != nil {
				return err
			}
			p.Ready = append(p.Ready, took)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if p.DeletedCPU, err = n.cpuOf(ctx, func() error { return n.deleteAll(ctx, podsInTurn+1) }); err != nil {
		return nil, err
	}
	if p.AtOnceCPU, err = n.cpuOf(ctx, func() error {
		p.AtOnce, err = n.atOnce(ctx, "once", podsAtOnce)
		return err
	}); err != nil {
		return nil, err
	}
	if _, err := n.atOnce(ctx, "more", podsLong-podsAtOnce); err != nil {
		return nil, err
	}
	if p.Resident, _, err = n.Memory(); err != nil {
		return nil, err
	}
	if err := n.rest(ctx, podsRest); err != nil {
		return nil, err
	}
	if p.Idle, err = n.cpuOf(ctx, func() error { return n.rest(ctx, podsRest-1) }); err != nil {
		return nil, err
	}
	if p.Settled, p.Anonymous, err = n.Memory(); err != nil {
		return nil, err
	}
	if p.Share, err = load.Rollup(n.Pids[0], "Pss"); err != nil {
		return nil, err
	}
	return p, n.deleteAll(ctx, podsLong)
}

// cpuOf is mortise's CPU while something is done and in the second after, when what was done is heard of.
func (n *podsNode) cpuOf(ctx context.Context, do func() error) (time.Duration, error) {
	before, err := n.Cpu()
	if err != nil {
		return 0, err
	}
	if err := errors.Join(do(), n.rest(ctx, 1)); err != nil {
		return 0, err
	}
	after, err := n.Cpu()
	return after - before, err
}

// rest is a watch that the server itself ends after so many seconds.
func (n *podsNode) rest(ctx context.Context, seconds int64) error {
	w, err := n.client.CoreV1().ConfigMaps("default").Watch(ctx,
		metav1.ListOptions{TimeoutSeconds: &seconds, FieldSelector: "metadata.name=none"})
	if err != nil {
		return fmt.Errorf("watch nothing: %w", err)
	}
	defer w.Stop()
	for range w.ResultChan() {
	}
	return ctx.Err()
}

// atOnce creates pods side by side, and says how long it took until all were ready.
func (n *podsNode) atOnce(ctx context.Context, name string, count int) (time.Duration, error) {
	began := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	for i := range count {
		g.Go(func() error {
			_, err := n.client.CoreV1().Pods("default").Create(gctx, longPod(fmt.Sprintf("%s-%d", name, i)), metav1.CreateOptions{})
			return err
		})
	}
	err := n.until(name+" ready", count, func(e watch.Event, pod *corev1.Pod) bool {
		return podReady(pod) && strings.HasPrefix(pod.Name, name+"-")
	})
	took := time.Since(began)
	return took, errors.Join(g.Wait(), err)
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// alone asks the runtime for a pod of which the node knows nothing, and says how long it took until its container was started.
func (n *podsNode) alone(ctx context.Context, name string) (took time.Duration, err error) {
	ctx = cri.Quiet(ctx)
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Uid: name, Namespace: "alone"}, LogDirectory: os.TempDir(),
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
	c := longPod(name).Spec.Containers[0]
	began := time.Now()
	id, err := n.runtime.Runtime.RunPodSandbox(ctx, sandbox, "")
	if err != nil {
		return 0, fmt.Errorf("make a sandbox: %w", err)
	}
	defer func() {
		err = errors.Join(err, n.runtime.Runtime.StopPodSandbox(ctx, id), n.runtime.Runtime.RemovePodSandbox(ctx, id))
	}()
	made, err := n.runtime.Runtime.CreateContainer(ctx, id, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: c.Name}, Image: &runtimeapi.ImageSpec{Image: c.Image}, Command: c.Command, LogPath: name,
		Linux: &runtimeapi.LinuxContainerConfig{},
	}, sandbox)
	if err == nil {
		err = n.runtime.Runtime.StartContainer(ctx, made)
	}
	return time.Since(began), err
}

// until reads the watch until so many pods were as wanted.
func (n *podsNode) until(what string, count int, is func(e watch.Event, pod *corev1.Pod) bool) error {
	seen := map[string]bool{}
	for e := range n.watched.ResultChan() {
		if pod, ok := e.Object.(*corev1.Pod); ok && is(e, pod) {
			seen[pod.Name] = true
		}
		if len(seen) == count {
			return nil
		}
	}
	return fmt.Errorf("%d of %d pods %s, then the watch ended", len(seen), count, what)
}

func (n *podsNode) deleteAll(ctx context.Context, count int) error {
	if err := n.client.CoreV1().Pods("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("delete pods: %w", err)
	}
	return n.until("gone", count, func(e watch.Event, _ *corev1.Pod) bool { return e.Type == watch.Deleted })
}

// longPod runs until it is asked to end.
func longPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Image: images.Busybox, ImagePullPolicy: corev1.PullNever,
			Command: []string{"sh", "-c", "trap 'exit 0' TERM\n(while :; do sleep 3600; done) & wait $!"},
		}}},
	}
}
