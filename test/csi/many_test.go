// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkVolumes attaches and detaches a thousand volumes on ten simulated nodes, each by the pod that uses it. It reports what a volume
// costs the server in CPU: the whole server, and what is beyond the cost of a pod without a volume.
func BenchmarkVolumes(b *testing.B) {
	const nodes, volumes = 10, 1000
	c := newCluster(b, nodes)
	c.drive("csi-attacher", "csi-provisioner")
	var claims, pods, plain strings.Builder
	for i := range volumes {
		name, node := fmt.Sprintf("v%d", i), fmt.Sprintf("node-%d", i%nodes)
		fmt.Fprintf(&claims, "---\n%s", claim(name, "1Gi", ""))
		fmt.Fprintf(&pods, "---\n%s", pod(name, node, name))
		fmt.Fprintf(&plain, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: p%d}\nspec:\n  nodeSelector: {kubernetes.io/hostname: %s}\n"+
			"  terminationGracePeriodSeconds: 0\n  containers: [{name: c, image: i}]\n", i, node)
	}
	c.apply(claims.String())
	c.until(func() bool {
		return strings.Count(c.kubectl("get", "pvc", "-o", "jsonpath={.items[*].status.phase}"), "Bound") == volumes
	})

	measure := func(up, down func()) (attach, detach float64) {
		start := c.cpu()
		up()
		middle := c.cpu()
		down()
		return (middle - start).Seconds() * 1000 / volumes, (c.cpu() - middle).Seconds() * 1000 / volumes
	}
	for range b.N {
		plainUp, plainDown := measure(func() {
			c.create(plain.String())
			c.until(func() bool {
				return strings.Count(c.kubectl("get", "pods", "-o", "jsonpath={.items[*].status.phase}"), "Running") == volumes
			})
		}, c.deletePods)
		began := time.Now()
		var attached time.Duration
		up, down := measure(func() {
			c.create(pods.String())
			c.until(func() bool {
				return strings.Count(c.kubectl("get", "nodes", "-o", "jsonpath={.items[*].status.volumesAttached}"), `"name"`) == volumes
			})
			attached = time.Since(began)
		}, func() {
			c.deletePods()
			c.until(func() bool { return !strings.Contains(c.kubectl("get", "volumeattachments", "-o", "name"), "csi-") })
		})
		b.ReportMetric(up, "ms-attach/volume")
		b.ReportMetric(down, "ms-detach/volume")
		b.ReportMetric(up-plainUp, "ms-attach-beyond-pod/volume")
		b.ReportMetric(down-plainDown, "ms-detach-beyond-pod/volume")
		b.ReportMetric(attached.Seconds(), "s-until-attached")
	}
}

// create creates the objects of YAML documents, without a look at what exists.
func (c *cluster) create(documents string) {
	c.t.Helper()
	_, err := c.try(documents, "create", "-f", "-")
	must(c.t, err)
}

// deletePods deletes all pods, and waits until they are gone.
func (c *cluster) deletePods() {
	c.t.Helper()
	c.kubectl("delete", "pod", "--all", "--wait=false")
	c.until(func() bool { return !strings.Contains(c.kubectl("get", "pods", "-o", "name"), "pod/") })
}

// until asks every second until something is so.
func (c *cluster) until(so func() bool) {
	c.t.Helper()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for late := time.After(5 * time.Minute); !so(); {
		select {
		case <-tick.C:
		case <-late:
			c.t.Fatal("it took more than five minutes")
		}
	}
}

// cpu returns the CPU time that the server has used.
func (c *cluster) cpu() time.Duration {
	c.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.server.cmd.Process.Pid))
	must(c.t, err)
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+2:]))
	var ticks int
	for _, i := range []int{11, 12} { // utime, stime
		n, err := strconv.Atoi(fields[i])
		must(c.t, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
