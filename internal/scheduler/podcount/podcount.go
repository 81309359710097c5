// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podcount counts pods on nodes by a criterion, and keeps the counts: a node whose generation has not moved is not
// counted again. Spreading and affinity stand on it, so that a decision costs one look at each node, not at each pod.
package podcount

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// most is how many criteria are kept.
const most = 256

// Counter keeps counts. The zero value is ready; its methods may be called concurrently.
type Counter struct {
	mu      sync.Mutex
	columns map[string]*column
	clock   uint64
}

type column struct {
	generation []int64
	count      []int32
	used       uint64
}

// Count returns how many pods of each node match, in the order of nodes. Key names the criterion: equal keys mean the same
// match. The slice is the caller's until the next call with that key.
func (c *Counter) Count(nodes []fwk.NodeInfo, key string, match func(*corev1.Pod) bool) []int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock++
	col := c.columns[key]
	if col == nil || len(col.count) != len(nodes) {
		if c.columns == nil {
			c.columns = map[string]*column{}
		}
		c.evict()
		// Generations are unique to a node's state, so counts of another list of nodes can never be taken for these.
		col = &column{generation: make([]int64, len(nodes)), count: make([]int32, len(nodes))}
		c.columns[key] = col
	}
	col.used = c.clock
	for i, n := range nodes {
		if g := n.GetGeneration(); col.generation[i] != g {
			col.generation[i], col.count[i] = g, of(n, match)
		}
	}
	return col.count
}

func of(n fwk.NodeInfo, match func(*corev1.Pod) bool) (total int32) {
	for _, p := range n.GetPods() {
		if match(p.GetPod()) {
			total++
		}
	}
	return total
}

func (c *Counter) evict() {
	if len(c.columns) < most {
		return
	}
	oldest := ""
	for key, col := range c.columns {
		if oldest == "" || col.used < c.columns[oldest].used {
			oldest = key
		}
	}
	delete(c.columns, oldest)
}
