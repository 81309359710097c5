// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/cni"
	"github.com/mortise-dev/mortise/internal/agent/cri/fakecri"
	"github.com/mortise-dev/mortise/internal/agent/nodeaddress"
	"github.com/mortise-dev/mortise/internal/machine/images"
)

// cniPlugins makes a directory of what passes for CNI plug-ins.
func cniPlugins(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, plugin := range []string{"bridge", "host-local", "portmap", "loopback"} {
		if err := os.WriteFile(filepath.Join(dir, plugin), []byte("#!/bin/false\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRuntimeMissedTheNetwork: a runtime that did not hear of the network's configuration is told again, and the node becomes ready.
func TestRuntimeMissedTheNetwork(t *testing.T) {
	bin, conf := filepath.Join(t.TempDir(), "bin"), filepath.Join(t.TempDir(), "net.d")
	cniPlugins(t, bin)
	c, r := newConfigured(t, "nodeStatusUpdateFrequency: 1s", func(o *Options) {
		o.CNI.ConfDir, o.CNI.BinDirs, o.CNI.PodCIDR = conf, []string{bin}, "10.244.1.0/24"
	})
	missed, err := os.Stat(filepath.Join(conf, cni.FileName))
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan bool, 1024) // whether the runtime had heard of the configuration
	r.Network(func() error {
		now, err := os.Stat(filepath.Join(conf, cni.FileName))
		asked <- err == nil && !os.SameFile(missed, now)
		if err == nil && os.SameFile(missed, now) {
			return errors.New("cni plugin not initialized")
		}
		return err
	})
	heard := func(want bool) {
		t.Helper()
		for limit := time.After(20 * time.Second); ; {
			select {
			case got := <-asked:
				if got == want {
					return
				}
			case <-limit:
				t.Fatalf("the runtime is not asked for its network while it has heard of it (%t)", want)
			}
		}
	}
	heard(false)
	heard(true)
	c.create(onePod("p"))
	c.await("p", "ready", isReady)
}

// TestWaitsForItsRange starts a node where one before it left its network: no pod comes to run in that, the node is not ready until the
// range of its own is given, and then it is at once.
func TestWaitsForItsRange(t *testing.T) {
	dir := t.TempDir()
	conf, bin := filepath.Join(dir, "net.d"), filepath.Join(dir, "bin")
	if err := os.Mkdir(conf, 0o755); err != nil {
		t.Fatal(err)
	}
	cniPlugins(t, bin)
	path := filepath.Join(conf, cni.FileName)
	left, err := cni.Conflist(cni.Options{PodCIDRs: []string{"10.244.2.0/24"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, left, 0o644); err != nil {
		t.Fatal(err)
	}
	r := fakecri.New(dir, clock.RealClock{}.Now, images.Busybox)
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	c := newCluster(t, Options{
		NodeName: "n1", RuntimeEndpoint: r.Socket(), CNI: CNIOptions{ConfDir: conf, BinDirs: []string{bin}},
		Host:      HostOptions{RootDir: dir + "/kubelet", LogDir: dir + "/pods", Mounter: noMounts{}},
		Addresses: nodeaddress.Fixed("192.168.1.5"), Clock: clock.RealClock{},
	})
	nodes, err := c.client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer nodes.Stop()
	node, err := c.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ok, why := saysReady(node); ok || !strings.Contains(why, "the node has no podCIDR yet") {
		t.Errorf("ready: %t, %q", ok, why)
	}
	c.create(onePod("p"))
	c.awaitEvent("p", "NetworkNotReady")
	if n := r.Calls("RunPodSandbox"); n != 0 {
		t.Errorf("%d sandboxes were made in the network of another", n)
	}

	given := fmt.Appendf(nil, `{"spec":{"podCIDR":%[1]q,"podCIDRs":[%[1]q]}}`, "10.244.1.0/24")
	begun := time.Now()
	if _, err := c.client.CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType, given, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for limit := time.After(30 * time.Second); ; {
		select {
		case e := <-nodes.ResultChan():
			if now, ok := e.Object.(*corev1.Node); ok {
				node = now
			}
		case <-limit:
			t.Fatal("the node is not ready")
		}
		if ok, _ := saysReady(node); ok {
			break
		}
	}
	t.Logf("ready %v after its range was given", time.Since(begun))
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), `"subnet": "10.244.1.0/24"`) {
		t.Errorf("configuration: %v %s", err, text)
	}
	c.await("p", "ready", isReady)
}

func saysReady(n *corev1.Node) (bool, string) {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, c.Message
		}
	}
	return false, ""
}
