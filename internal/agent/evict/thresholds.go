// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package evict

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Signal is an eviction signal.
type Signal string

// The signals. The last but one is internal: the memory that pods may still use of the node's allocatable.
const (
	MemoryAvailable            Signal = "memory.available"
	NodeFSAvailable            Signal = "nodefs.available"
	NodeFSInodesFree           Signal = "nodefs.inodesFree"
	ImageFSAvailable           Signal = "imagefs.available"
	ImageFSInodesFree          Signal = "imagefs.inodesFree"
	ContainerFSAvailable       Signal = "containerfs.available"
	ContainerFSInodesFree      Signal = "containerfs.inodesFree"
	AllocatableMemoryAvailable Signal = "allocatableMemory.available"
	PIDAvailable               Signal = "pid.available"
)

// The messages of pods that exceed their own limits, whatever the node has left.
const (
	emptyDirLimit  Signal = "emptydirfs.limit"
	podLimit       Signal = "ephemeralpodfs.limit"
	containerLimit Signal = "ephemeralcontainerfs.limit"
)

// The internal names of resources.
const (
	inodes corev1.ResourceName = "inodes"
	pids   corev1.ResourceName = "pids"
)

// meaning describes a signal.
type meaning struct {
	resource  corev1.ResourceName
	condition corev1.NodeConditionType
}

func meaningOf(s Signal) (meaning, bool) {
	switch s {
	case MemoryAvailable, AllocatableMemoryAvailable:
		return meaning{corev1.ResourceMemory, corev1.NodeMemoryPressure}, true
	case NodeFSAvailable, ImageFSAvailable, ContainerFSAvailable:
		return meaning{corev1.ResourceEphemeralStorage, corev1.NodeDiskPressure}, true
	case NodeFSInodesFree, ImageFSInodesFree, ContainerFSInodesFree:
		return meaning{inodes, corev1.NodeDiskPressure}, true
	case PIDAvailable:
		return meaning{pids, corev1.NodePIDPressure}, true
	}
	return meaning{}, false
}

// Amount is a quantity, or a fraction of the capacity.
type Amount struct {
	Quantity *resource.Quantity
	Part     float32 // without a quantity: 0.1 for ten percent
}

// Of returns the amount for a capacity.
func (a Amount) Of(capacity int64) resource.Quantity {
	if a.Quantity != nil {
		return a.Quantity.DeepCopy()
	}
	return *resource.NewQuantity(int64(float64(capacity)*float64(a.Part)), resource.BinarySI)
}

// Threshold is met while the signal's measurement is below Value.
type Threshold struct {
	Signal Signal
	Value  Amount
	// Grace is how long it must be met before pods are evicted; zero for a hard threshold.
	Grace time.Duration
	// MinReclaim is the amount above Value that must be reached before it is no longer met.
	MinReclaim *Amount
}

// Hard reports whether pods are evicted immediately.
func (t Threshold) Hard() bool { return t.Grace == 0 }

// Settings are the fields of a KubeletConfiguration.
type Settings struct {
	Hard, Soft, SoftGracePeriod, MinimumReclaim map[string]string
	// Pods means that pods are limited to the node's allocatable.
	Pods bool
}

// Parse reads thresholds, hard ones first.
func Parse(s Settings) ([]Threshold, error) {
	out, err := statements(s.Hard)
	if err != nil {
		return nil, err
	}
	soft, err := statements(s.Soft)
	if err != nil {
		return nil, err
	}
	graces, err := graces(s.SoftGracePeriod)
	if err != nil {
		return nil, err
	}
	reclaims, err := reclaims(s.MinimumReclaim)
	if err != nil {
		return nil, err
	}
	for i := range soft {
		grace, ok := graces[soft[i].Signal]
		if !ok {
			return nil, fmt.Errorf("grace period must be specified for the soft eviction threshold %v", soft[i].Signal)
		}
		soft[i].Grace = grace
	}
	out = append(out, soft...)
	for i := range out {
		if r, ok := reclaims[out[i].Signal]; ok {
			out[i].MinReclaim = &r
		}
	}
	if s.Pods {
		for _, t := range out {
			if t.Signal == MemoryAvailable && t.Hard() {
				t.Signal = AllocatableMemoryAvailable
				out = append(out, t)
			}
		}
	}
	return out, nil
}

func known(name string) (Signal, error) {
	if _, ok := meaningOf(Signal(name)); !ok {
		return "", fmt.Errorf("unsupported eviction signal %v", name) // upstream's words
	}
	return Signal(name), nil
}

func statements(list map[string]string) ([]Threshold, error) {
	var out []Threshold
	for _, name := range slices.Sorted(maps.Keys(list)) {
		signal, err := known(name)
		if err != nil {
			return nil, err
		}
		text := list[name]
		if text == "0%" || text == "100%" {
			continue // never met
		}
		if strings.HasSuffix(text, "%") {
			part, err := percentage(text)
			switch {
			case err != nil:
				return nil, fmt.Errorf("read eviction threshold %s: %w", signal, err)
			case part < 0:
				return nil, fmt.Errorf("eviction percentage threshold %v must be >= 0%%: %s", signal, text) // upstream's words
			case part > 1:
				return nil, fmt.Errorf("eviction percentage threshold %v must be <= 100%%: %s", signal, text) // upstream's words
			}
			out = append(out, Threshold{Signal: signal, Value: Amount{Part: part}})
			continue
		}
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			return nil, fmt.Errorf("read eviction threshold %s: %w", signal, err)
		}
		if quantity.Sign() <= 0 {
			return nil, fmt.Errorf("eviction threshold %v must be positive: %s", signal, &quantity) // upstream's words
		}
		out = append(out, Threshold{Signal: signal, Value: Amount{Quantity: &quantity}})
	}
	return out, nil
}

// percentage parses 10% as 0.1.
func percentage(text string) (float32, error) {
	value, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 32)
	if err != nil {
		return 0, err
	}
	if value != value {
		return 0, fmt.Errorf("%q is no number", text)
	}
	return float32(value) / 100, nil
}

func graces(list map[string]string) (map[Signal]time.Duration, error) {
	out := map[Signal]time.Duration{}
	for name, text := range list {
		signal, err := known(name)
		if err != nil {
			return nil, err
		}
		grace, err := time.ParseDuration(text)
		if err != nil {
			return nil, fmt.Errorf("read eviction grace period of %s: %w", signal, err)
		}
		if grace < 0 {
			return nil, fmt.Errorf("invalid eviction grace period specified: %v, must be a positive value", text) // upstream's words
		}
		out[signal] = grace
	}
	return out, nil
}

func reclaims(list map[string]string) (map[Signal]Amount, error) {
	out := map[Signal]Amount{}
	for name, text := range list {
		signal, err := known(name)
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(text, "%") {
			part, err := percentage(text)
			if err != nil {
				return nil, fmt.Errorf("read minimum reclaim of %s: %w", signal, err)
			}
			if part <= 0 {
				return nil, fmt.Errorf("eviction percentage minimum reclaim %v must be positive: %s", signal, text) // upstream's words
			}
			out[signal] = Amount{Part: part}
			continue
		}
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			return nil, fmt.Errorf("read minimum reclaim of %s: %w", signal, err)
		}
		if quantity.Sign() < 0 {
			return nil, fmt.Errorf("negative eviction minimum reclaim specified for %v", signal) // upstream's words
		}
		out[signal] = Amount{Quantity: &quantity}
	}
	return out, nil
}
