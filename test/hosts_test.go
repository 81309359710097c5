// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/internal/agent/netlab"
	"github.com/mortise-dev/mortise/internal/machine/unshare"
)

// lan is a switch in the network namespace of a test that is alone. The test itself has an address there.
type lan struct {
	t      *testing.T
	bridge netlink.Link
	prefix string // of its addresses: 192.168.70.
	six    string // of those of IPv6: fd00:70::
}

// newLAN makes the switch NAME; the test is PREFIX254, in IPv6 too.
func newLAN(t *testing.T, name, prefix string) *lan {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	l := &lan{t: t, bridge: &netlink.Bridge{LinkAttrs: attrs}, prefix: prefix, six: "fd00:" + strings.Split(prefix, ".")[2] + "::"}
	try(t, netlink.LinkAdd(l.bridge))
	try(t, addAddress(l.bridge, prefix+"254/24"))
	try(t, addAddress(l.bridge, l.six+"254/64"))
	try(t, netlink.LinkSetUp(l.bridge))
	return l
}

func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func addAddress(l netlink.Link, text string) error {
	a, err := netlink.ParseAddr(text)
	if err != nil {
		return err
	}
	a.Flags = unix.IFA_F_NODAD // it is good at once
	return netlink.AddrAdd(l, a)
}

// host is a machine on the switch, as far as namespaces make one: its network, its name, and the directories that are the machine's
// (unshare.Dirs) are its own. Processes, and what is on disk, it shares with the test.
type host struct {
	t             *testing.T
	lan           *lan
	name, address string
	six           string // its address of IPv6
	pid           int
}

// newHost makes one with the address .NUMBER.
func (l *lan) newHost(name string, number int) *host {
	l.t.Helper()
	h := &host{t: l.t, lan: l, name: name, address: l.prefix + strconv.Itoa(number), six: l.six + strconv.Itoa(number)}
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), aloneTest+"=host", hostName+"="+name)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS}
	c.Stderr = l.t.Output()
	lives, err := c.StdinPipe() // it lives as long as this is open
	try(l.t, err)
	out, err := c.StdoutPipe()
	try(l.t, err)
	try(l.t, c.Start())
	l.t.Cleanup(func() {
		_ = lives.Close()
		if err := c.Wait(); err != nil {
			l.t.Errorf("host %s: %v", name, err)
		}
	})
	h.pid = c.Process.Pid
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		l.t.Fatalf("host %s says %q, %v", name, line, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = name, l.bridge.Attrs().Index
	try(l.t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsPid(h.pid)}))
	port, err := netlink.LinkByName(name)
	try(l.t, err)
	try(l.t, netlink.LinkSetUp(port))
	try(l.t, h.within(func() error {
		eth, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(lo), netlink.LinkSetUp(eth), addAddress(eth, h.address+"/24"), addAddress(eth, h.six+"/64"),
			netlink.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Gw: net.ParseIP(l.prefix + "254")}),
			netlink.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}, Gw: net.ParseIP(l.six + "254")}))
	}))
	return h
}

// hostName tells such a process its name.
const hostName = "MORTISE_TEST_HOST"

// runHost is the process that a host's namespaces are made with, and live by.
func runHost() int {
	if err := errors.Join(unshare.Arrange(), unix.Sethostname([]byte(os.Getenv(hostName)))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// within runs f in the host's network, on a thread of its own; f must not leave its work to other goroutines.
func (h *host) within(f func() error) error {
	done := make(chan error)
	netlab.Apart(func() {
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", h.pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			done <- fmt.Errorf("open network of %s: %w", h.name, err)
			return
		}
		defer unix.Close(fd)
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter network of %s: %w", h.name, err)
			return
		}
		done <- f()
	})
	return <-done
}

// where is the command that runs others on the host.
func (h *host) where() []string {
	return []string{"nsenter", "--target", strconv.Itoa(h.pid), "--mount", "--net", "--uts", "--"}
}

// run runs a command there, and returns what it prints.
func (h *host) run(args ...string) string {
	h.t.Helper()
	line := append(h.where(), args...)
	c := exec.CommandContext(h.t.Context(), line[0], line[1:]...)
	var errs strings.Builder
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		h.t.Fatalf("on %s, %s: %v\n%s%s", h.name, strings.Join(args, " "), err, out, errs.String())
	}
	return string(out)
}

// cutOff takes the host's cable out of the switch: what it sends, and what is sent to it, is lost without a word.
func (h *host) cutOff() {
	h.t.Helper()
	port, err := netlink.LinkByName(h.name)
	try(h.t, err)
	try(h.t, netlink.LinkSetNoMaster(port))
}

// plugIn puts it back.
func (h *host) plugIn() {
	h.t.Helper()
	port, err := netlink.LinkByName(h.name)
	try(h.t, err)
	try(h.t, netlink.LinkSetMaster(port, h.lan.bridge))
}

// thisRun is of this process of the tests alone: others may run on the machine at the same time.
var thisRun = strings.ToLower(rand.Text()[:8])

// cgroups is where its pods' cgroups are, beside those of the machine's own and of other tests: a host shares them all.
func (h *host) cgroups() string {
	name := "alone"
	if h != nil {
		name = h.name
	}
	return "/mortise-test-" + thisRun + "-" + name
}

// removeCgroups removes those that the node's pods were in, the innermost first.
func (h *host) removeCgroups(t *testing.T) {
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		roots, err := filepath.Glob(pattern + h.cgroups())
		try(t, err)
		for _, root := range roots {
			var all []string
			try(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					all = append(all, path)
				}
				return nil
			}))
			for _, path := range slices.Backward(all) {
				_ = unix.Rmdir(path) // a process that is being killed keeps it for a moment longer
			}
		}
	}
}

// newNode is a node that is about to be on the host, with a containerd of its own.
func (h *host) newNode(pods map[string]bool) *realNode {
	h.t.Helper()
	return h.newNodeIn(filepath.Join(h.t.TempDir(), "data"), pods)
}

// newNodeIn is newNode with a data directory.
func (h *host) newNodeIn(dir string, pods map[string]bool) *realNode {
	h.t.Helper()
	path := built(h.t)
	n := &realNode{t: h.t, path: path, host: h, dir: dir, pods: pods}
	try(h.t, os.MkdirAll(n.dir, 0o755))
	said := strings.Split(strings.TrimSpace(h.run(path, "machine", "prepare", "--no-install", "--data-dir", n.dir)), "\n")
	n.socket = said[len(said)-1]
	h.t.Cleanup(func() {
		line := append(h.where(), path, "machine", "destroy", "--data-dir", n.dir)
		if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
			h.t.Errorf("machine destroy: %v\n%s", err, out)
		}
		h.removeCgroups(h.t)
	})
	config := filepath.Join(filepath.Dir(n.dir), "kubelet.yaml")
	n.write(h.t, config, `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupRoot: `+h.cgroups()+`
evictionHard: {memory.available: "50Mi"}
imageGCHighThresholdPercent: 100
nodeLeaseDurationSeconds: 4
nodeStatusUpdateFrequency: 1s
shutdownGracePeriod: 0s
`)
	n.args = []string{"--node", "cri", "--cri-socket", n.socket, "--no-kubelet-links", "--kubelet-config", config, "--log-level", "info"}
	return n
}

// podRanges are those of the clusters of several nodes, in both IP families.
const podRanges = "10.244.0.0/16,fd00:244::/56"

// serve starts the server of a cluster there, with its node.
func (n *realNode) serve(args ...string) {
	n.t.Helper()
	n.program = launchIn(n.t, n.host.where(), n.dir, append(append(n.args, "--listen", n.host.address+":0", "--pod-cidr", podRanges,
		"--service-cidr", "10.96.0.0/16,fd00:96::/112"), args...)...)
	n.comesUp()
	n.c = n.client()
}

// joins makes it a node of a server's cluster.
func (n *realNode) joins(server *realNode, args ...string) {
	n.t.Helper()
	line, err := server.mortise("token", "create", "--kubeconfig", server.kubeconfig, "--print-join-command")
	if err != nil {
		n.t.Fatalf("token create: %v\n%s", err, line)
	}
	n.program = joinedIn(n.t, n.host.where(), n.dir, append(append(append(strings.Fields(line)[2:], n.args...), "--pod-cidr", podRanges),
		args...)...)
	n.c = kubernetes.Interface(server.c)
}
