// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"time"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// Options say what is measured beside what the runtime itself measures of running containers.
type Options struct {
	Cgroups   bool // what the kernel counts: of the node, of pods, of containers; and networks
	Files     bool // file systems, logs and volumes
	Processes bool // what processes have open
}

// Usage is what a node, and what runs on it, uses.
type Usage struct {
	Time            time.Time
	Host            *Host    // the whole machine; nil: the caller measures it
	Node            []Cgroup // the root, and those that hold all pods and the pods of a class; the root first
	Pods            []Pod
	Containers      []Container // that run
	NodeFS, ImageFS *FileSystem // nil: not known
	Images          *FileSystem // Used and Files are what images take
	Network         []Interface // the machine's
}

// Cgroup are what a cgroup uses.
type Cgroup struct {
	Path  string // from the root of the cgroups
	Group *Group // nil: the kernel does not tell
}

// Pod are what a pod uses, with its sandbox.
type Pod struct {
	Cgroup
	Target    podspec.Target // without a container
	Started   time.Time
	SandboxID string
	Sandbox   Cgroup
	Network   []Interface // none for a pod of the node's network
	Volumes   []Volume
}

// Container are what one container uses. Time, processor and memory are as the runtime has them.
type Container struct {
	Cgroup
	Target                podspec.Target
	ID, Image             string
	Started               time.Time
	Time                  time.Time
	CPUNanoseconds        uint64 // used since it started
	MemoryBytes           uint64 // usage
	MemoryWorkingSetBytes uint64
	SwapBytes             uint64
	SwapFreeBytes         uint64
	FilesystemBytes       uint64 // writable layer
	FilesystemInodes      uint64
	LogBytes, LogFiles    uint64
	Processes             uint64
	Files, Sockets        uint64 // that processes have open
}

// Volume are what a volume of a pod uses.
type Volume struct {
	Name, Claim string // Claim: of a persistent volume
	Time        time.Time
	FS          FileSystem
	Bytes       uint64 // that it takes
	Files       uint64
	Own         bool // it shares its room with nothing that lies on the node's own file system
}
