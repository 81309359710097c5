// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// CycleState holds the data of plug-ins for one pod's scheduling. It is safe for concurrent use.
type CycleState struct {
	mu              sync.RWMutex
	data            map[fwk.StateKey]fwk.StateData
	skipFilter      sets.Set[string]
	skipScore       sets.Set[string]
	skipPreBind     sets.Set[string]
	parallelPreBind sets.Set[string]
	sampled         bool
}

var _ fwk.CycleState = (*CycleState)(nil)

// NewCycleState returns an empty state.
func NewCycleState() *CycleState { return &CycleState{data: make(map[fwk.StateKey]fwk.StateData, 8)} }

// Sample enables the metrics of each plug-in for this attempt.
func (c *CycleState) Sample() { c.sampled = true }

// ShouldRecordPluginMetrics reports whether they are enabled.
func (c *CycleState) ShouldRecordPluginMetrics() bool                    { return c.sampled }
func (c *CycleState) GetSkipFilterPlugins() sets.Set[string]             { return c.skipFilter }
func (c *CycleState) SetSkipFilterPlugins(p sets.Set[string])            { c.skipFilter = p }
func (c *CycleState) GetSkipScorePlugins() sets.Set[string]              { return c.skipScore }
func (c *CycleState) SetSkipScorePlugins(p sets.Set[string])             { c.skipScore = p }
func (c *CycleState) GetSkipPreBindPlugins() sets.Set[string]            { return c.skipPreBind }
func (c *CycleState) SetSkipPreBindPlugins(p sets.Set[string])           { c.skipPreBind = p }
func (c *CycleState) GetParallelPreBindPlugins() sets.Set[string]        { return c.parallelPreBind }
func (c *CycleState) SetParallelPreBindPlugins(p sets.Set[string])       { c.parallelPreBind = p }
func (c *CycleState) ShouldSkipAllPostFilterPlugins() bool               { return false }
func (c *CycleState) IsPodGroupSchedulingCycle() bool                    { return false }
func (c *CycleState) GetPodGroupSchedulingCycle() fwk.PodGroupCycleState { return nil }
func (c *CycleState) GetPlacementCycleState() fwk.PlacementCycleState    { return nil }

// Read returns the value of the key, or [fwk.ErrNotFound].
func (c *CycleState) Read(key fwk.StateKey) (fwk.StateData, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if v, ok := c.data[key]; ok {
		return v, nil
	}
	return nil, fwk.ErrNotFound
}

// Write stores val.
func (c *CycleState) Write(key fwk.StateKey, val fwk.StateData) {
	c.mu.Lock()
	c.data[key] = val
	c.mu.Unlock()
}

// Delete deletes the value of the key.
func (c *CycleState) Delete(key fwk.StateKey) {
	c.mu.Lock()
	delete(c.data, key)
	c.mu.Unlock()
}

// Clone copies the state, and each value by its own Clone.
func (c *CycleState) Clone() fwk.CycleState {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := &CycleState{
		data: make(map[fwk.StateKey]fwk.StateData, len(c.data)), skipFilter: c.skipFilter, skipScore: c.skipScore,
		skipPreBind: c.skipPreBind, parallelPreBind: c.parallelPreBind, sampled: c.sampled,
	}
	for k, v := range c.data {
		out.data[k] = v.Clone()
	}
	return out
}
