// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package cache is the scheduler's cache of the cluster: nodes and the pods on them, including pods that it has assigned
// and whose binding it has not seen yet (assumed pods).
//
// Informers' handlers and the scheduling loop write to a [Cache], each call under its lock. The loop reads from a
// [Snapshot], which it owns: [Cache.Update] updates it by copying the nodes that changed since, so the cost of a cycle
// depends on the changes since the last one, not on the size of the cluster.
package cache

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
)

// Cache is the cluster's state by the informers and the scheduler's own decisions.
type Cache struct {
	mu          sync.Mutex
	generations nodeinfo.Generations
	nodes       map[string]*entry
	pods        map[types.UID]*assigned
	images      map[string]*image
	changed     []*entry // since the last Update
	order       bool     // the list of nodes has changed since
	imagesMoved bool
	imageMoves  uint64 // counts the changes of the number of nodes with an image
}

type entry struct {
	info     *nodeinfo.NodeInfo
	name     string
	slot     int // its index in the snapshot's list
	told     bool
	imagesAt uint64 // the value of imageMoves at its last image count
}

// image is the set of nodes with an image; its size is the one that the first node reported.
type image struct {
	size  int64
	nodes sets.Set[string]
}

type assigned struct {
	info    *nodeinfo.PodInfo
	assumed bool
}

// New returns an empty cache.
func New() *Cache {
	return &Cache{nodes: map[string]*entry{}, pods: map[types.UID]*assigned{}, images: map[string]*image{}}
}

func (c *Cache) entry(name string) *entry {
	e := c.nodes[name]
	if e == nil {
		e = &entry{info: nodeinfo.New(nil, &c.generations), name: name, slot: -1}
		c.nodes[name] = e
	}
	return e
}

func (c *Cache) touch(e *entry) {
	if !e.told {
		e.told = true
		c.changed = append(c.changed, e)
	}
}

// SetNode adds or updates a node.
func (c *Cache) SetNode(node *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entry(node.Name)
	old := e.info.Node()
	if old == nil || zone(old) != zone(node) {
		c.order = true
	}
	e.info.SetNode(node)
	c.setImages(e, node.Status.Images)
	c.touch(e)
}

// setImages records a node's images.
func (c *Cache) setImages(e *entry, images []corev1.ContainerImage) {
	c.dropImages(e)
	if len(images) == 0 {
		e.info.SetImages(nil)
		return
	}
	states := make(map[string]*fwk.ImageStateSummary, len(images))
	for _, told := range images {
		for _, name := range told.Names {
			of := c.images[name]
			if of == nil {
				of = &image{size: told.SizeBytes, nodes: sets.New[string]()}
				c.images[name] = of
				c.imagesMoved = true
			}
			of.nodes.Insert(e.name)
			states[name] = nil
		}
	}
	c.imageMoves++
	e.info.SetImages(states)
}

// countImages updates, for the images of a changed node, how many nodes have them. As in kube-scheduler, an unchanged node gets the new
// counts later.
func (c *Cache) countImages(e *entry) {
	states := e.info.GetImageStates()
	if len(states) == 0 || e.imagesAt == c.imageMoves {
		return
	}
	e.imagesAt = c.imageMoves
	images := make(map[string]*fwk.ImageStateSummary, len(states))
	for name := range states {
		of := c.images[name]
		images[name] = &fwk.ImageStateSummary{Size: of.size, NumNodes: of.nodes.Len()}
	}
	e.info.SetImages(images)
}

func (c *Cache) dropImages(e *entry) {
	for name := range e.info.GetImageStates() {
		of := c.images[name]
		of.nodes.Delete(e.name)
		c.imageMoves++
		if of.nodes.Len() == 0 {
			delete(c.images, name)
		}
	}
}

// RemoveNode removes a node. Its pods stay until they are removed.
func (c *Cache) RemoveNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.nodes[name]
	if e == nil || e.info.Node() == nil {
		return
	}
	c.dropImages(e)
	e.info.SetImages(nil)
	e.info.RemoveNode()
	c.order = true
	c.touch(e)
	if len(e.info.GetPods()) == 0 {
		delete(c.nodes, name)
	}
}

// Assume adds a pod to its node before the informer shows the binding. The pod's spec names the node.
func (c *Cache) Assume(p *nodeinfo.PodInfo) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.pods[p.Pod.UID]; ok {
		return fmt.Errorf("assume pod: %s/%s is placed already", p.Pod.Namespace, p.Pod.Name)
	}
	c.assign(p, true)
	return nil
}

// Forget removes an assumed pod whose binding failed.
func (c *Cache) Forget(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[pod.UID]; p != nil && p.assumed {
		c.unassign(p)
	}
}

// IsAssumed reports whether the pod is assumed to be on a node.
func (c *Cache) IsAssumed(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[uid]
	return p != nil && p.assumed
}

// SetPod adds or updates a bound pod, and so confirms an assumption.
func (c *Cache) SetPod(pod *corev1.Pod) {
	// A pod with an unreadable affinity term still uses its node's resources.
	info, _ := nodeinfo.NewPodInfo(pod)
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[pod.UID]; p != nil {
		c.unassign(p)
	}
	c.assign(info, false)
}

// RemovePod removes a pod.
func (c *Cache) RemovePod(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[uid]; p != nil {
		c.unassign(p)
	}
}

func (c *Cache) assign(p *nodeinfo.PodInfo, assumed bool) {
	e := c.entry(p.Pod.Spec.NodeName)
	e.info.AddPodInfo(p)
	c.pods[p.Pod.UID] = &assigned{info: p, assumed: assumed}
	c.touch(e)
}

func (c *Cache) unassign(p *assigned) {
	e := c.nodes[p.info.Pod.Spec.NodeName]
	if err := e.info.Remove(p.info.Pod); err != nil {
		panic(err) // the pod and its node were recorded under one lock
	}
	delete(c.pods, p.info.Pod.UID)
	c.touch(e)
	if e.info.Node() == nil && len(e.info.GetPods()) == 0 {
		delete(c.nodes, e.name)
	}
}

// Counts returns the number of nodes and pods.
func (c *Cache) Counts() (nodes, pods int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.nodes {
		if e.info.Node() != nil {
			nodes++
		}
	}
	return nodes, len(c.pods)
}

// Cached returns the number of nodes, pods and assumed pods, for metrics.
func (c *Cache) Cached() (nodes, pods, assumed int) {
	nodes, pods = c.Counts()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pods {
		if p.assumed {
			assumed++
		}
	}
	return nodes, pods, assumed
}

// Update updates a snapshot. A cache has one snapshot.
func (c *Cache) Update(s *Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.order || c.imagesMoved {
		s.epoch++
	}
	for _, e := range c.changed {
		c.countImages(e)
	}
	if c.order {
		c.relist(s)
	} else {
		for _, e := range c.changed {
			if e.slot >= 0 && e.info.Node() != nil {
				s.set(e.slot, e.info.Copy())
			}
		}
	}
	for _, e := range c.changed {
		e.told = false
	}
	clear(c.changed)
	c.changed, c.order, c.imagesMoved = c.changed[:0], false, false
}

// relist lists the nodes again, one of each zone in turn.
func (c *Cache) relist(s *Snapshot) {
	byZone := map[string][]*entry{}
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		e := c.nodes[name]
		e.slot = -1
		if n := e.info.Node(); n != nil {
			byZone[zone(n)] = append(byZone[zone(n)], e)
		}
	}
	zones := slices.Sorted(maps.Keys(byZone))
	s.reset()
	for i, more := 0, true; more; i++ {
		more = false
		for _, z := range zones {
			if i < len(byZone[z]) {
				more = true
				e := byZone[z][i]
				e.slot = len(s.list)
				s.append(e.info.Copy())
			}
		}
	}
}

func zone(n *corev1.Node) string {
	region, zone := n.Labels[corev1.LabelTopologyRegion], n.Labels[corev1.LabelTopologyZone]
	if region == "" && zone == "" {
		return ""
	}
	return region + ":\x00:" + zone
}
