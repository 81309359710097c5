// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// bound gives the cgroup of a pod that has a sandbox its bounds, and that of all pods theirs, before containers are started: how
// many processes a pod may have, and what is left to pods of what the system and the node keep for themselves. It is told in
// every round; a bound that is there already is not written again.
func (n *node) bound(pod *corev1.Pod) error {
	if n.config.Flat {
		return nil
	}
	parent := n.config.CgroupParent(pod)
	if most := *n.Kubelet.PodPidsLimit; most >= 0 {
		if err := writeBound(parent, "pids", most, "pids.max"); err != nil {
			return err
		}
	}
	if !slices.Contains(n.Kubelet.EnforceNodeAllocatable, "pods") {
		return nil
	}
	all := allPods(parent)
	if memory := n.reserved(corev1.ResourceMemory); !memory.IsZero() {
		if err := writeBound(all, "memory", n.machine.memory-memory.Value(), "memory.limit_in_bytes", "memory.max"); err != nil {
			return err
		}
	}
	if kept := n.reserved("pid"); !kept.IsZero() {
		if _, most, ok := processes(); ok {
			return writeBound(all, "pids", most-kept.Value(), "pids.max")
		}
	}
	return nil
}

// allPods is the cgroup of all pods, of which the given one is of a pod.
func allPods(parent string) string {
	for dir := parent; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if name := strings.TrimSuffix(filepath.Base(dir), ".slice"); name == "kubepods" || strings.HasSuffix(name, "-kubepods") {
			return dir
		}
	}
	return parent
}

// writeBound writes a bound of a cgroup, where the machine has its controller: v1 in a tree of its own, v2 in the one.
func writeBound(cgroup, controller string, value int64, names ...string) error {
	for _, root := range []string{filepath.Join(cgroupAll, controller), cgroupAll} {
		for _, name := range names {
			path, text := filepath.Join(root, cgroup, name), strconv.FormatInt(max(value, 0), 10)
			have := line(path)
			if have == text {
				return nil
			}
			err := os.WriteFile(path, []byte(text), 0o600)
			if errors.Is(err, fs.ErrNotExist) || err != nil && have == "" {
				continue // not of this version
			}
			if err != nil {
				return fmt.Errorf("bound cgroup: %w", err)
			}
			return nil
		}
	}
	return fmt.Errorf("bound cgroup %s: the machine has no controller for %s", cgroup, controller)
}
