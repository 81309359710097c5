// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/cri/fakecri"
	"github.com/mortise-dev/mortise/internal/machine/images"
)

// moving are addresses that a test changes.
type moving struct {
	mu   sync.Mutex
	now  []string
	told []func()
}

func (m *moving) Texts() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.now)
}

func (m *moving) Tell(f func()) { m.told = append(m.told, f) }

func (m *moving) become(ips ...string) {
	m.mu.Lock()
	m.now = ips
	m.mu.Unlock()
	for _, f := range m.told {
		f()
	}
}

// TestAddressesChange: the node is reached at others. The Node says so at once, and each pod's status; a pod in the node's network has
// for its own addresses what it had, and the second that came, until something happens to it.
func TestAddressesChange(t *testing.T) {
	dir := t.TempDir()
	r := fakecri.New(dir, time.Now, images.Busybox)
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	at := &moving{now: []string{"192.168.1.5"}}
	c := newCluster(t, Options{
		NodeName: "n1", RuntimeEndpoint: r.Socket(), CNI: CNIOptions{ConfDir: "-"},
		Host:      HostOptions{RootDir: dir + "/kubelet", LogDir: dir + "/pods", CgroupFS: t.TempDir(), Mounter: noMounts{}},
		Addresses: at, Kubelet: configured(t, "nodeStatusUpdateFrequency: 5m\nevictionHard: {}\n"),
	})
	variable := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1",
			FieldPath: path}}}
	}
	own, host := onePod("own"), onePod("host")
	host.Spec.HostNetwork = true
	host.Spec.Containers[0].Env = []corev1.EnvVar{variable("HOST", "status.hostIP"), variable("HOSTS", "status.hostIPs"),
		variable("PODS", "status.podIPs")}
	c.create(own)
	c.create(host)
	podIP := c.await("own", "ready", isReady).Status.PodIP
	shows := func(hosts, pods string) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			var has, is []string
			for _, ip := range p.Status.HostIPs {
				has = append(has, ip.IP)
			}
			for _, ip := range p.Status.PodIPs {
				is = append(is, ip.IP)
			}
			return strings.Join(has, " ") == hosts && strings.Join(is, " ") == pods && p.Status.HostIP == has[0] && p.Status.PodIP == is[0]
		}
	}
	c.await("host", "ready", isReady)
	c.await("host", "at the node's address", shows("192.168.1.5", "192.168.1.5"))

	at.become("192.168.1.9", "fd00::9")
	c.awaitAddresses("192.168.1.9", "fd00::9") // it does not wait for as long as the node's next heartbeat takes
	c.await("own", "on the node of other addresses", shows("192.168.1.9 fd00::9", podIP))
	c.await("host", "where it was, and at the second address", shows("192.168.1.9 fd00::9", "192.168.1.5 fd00::9"))
	if !r.Exit("host", "c", 1) {
		t.Fatal("nothing runs")
	}
	c.await("host", "running again at the node's addresses", func(p *corev1.Pod) bool {
		return running(1)(p) && shows("192.168.1.9 fd00::9", "192.168.1.9 fd00::9")(p)
	})
	_, made := r.Made("host", "c")
	var env []string
	for _, e := range made.Envs {
		if slices.Contains([]string{"HOST", "HOSTS", "PODS"}, e.Key) {
			env = append(env, e.Key+"="+string(e.Value))
		}
	}
	slices.Sort(env)
	if got := strings.Join(env, " "); got != "HOST=192.168.1.9 HOSTS=192.168.1.9,fd00::9 PODS=192.168.1.9,fd00::9" {
		t.Errorf("its container knows %s", got)
	}
	at.become("192.168.1.9")
	c.awaitAddresses("192.168.1.9")
}

// awaitAddresses waits until others reach the node at these.
func (c *cluster) awaitAddresses(want ...string) {
	c.t.Helper()
	c.awaitNode(fmt.Sprintf("at %q", want), func(node *corev1.Node) bool {
		var has []string
		for _, a := range node.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				has = append(has, a.Address)
			}
		}
		return slices.Equal(has, want)
	})
}
