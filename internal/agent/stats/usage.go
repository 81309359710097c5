// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"time"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// Options select measurements beyond the runtime's statistics of running containers.
type Options struct {
	Cgroups   bool // the kernel's accounting of the node, pods and containers; networks
	Files     bool // file systems, logs and volumes
	Processes bool // open files of processes
}

// Usage is the resource usage of a node and its containers.
type Usage struct {
	Time            time.Time
	Host            *Host    // the whole machine; nil: the caller measures it
	Node            []Cgroup // the root first, then the cgroups of all pods and of the pods of a QoS class
	Pods            []Pod
	Containers      []Container // running ones
	NodeFS, ImageFS *FileSystem // nil: unknown
	Images          *FileSystem // Used and Files are those of images
	Network         []Interface // of the machine
}

// Cgroup is the usage of a cgroup.
type Cgroup struct {
	Path  string // from the root of the cgroups
	Group *Group // nil: the kernel does not report it
}

// Pod is the usage of a pod with its sandbox.
type Pod struct {
	Cgroup
	Target    podspec.Target // without a container
	Started   time.Time
	SandboxID string
	Sandbox   Cgroup
	Network   []Interface // none for a pod in the node's network
	Volumes   []Volume
}

// Container is the usage of one container. Time, CPU and memory are the runtime's.
type Container struct {
	Cgroup
	Target                podspec.Target
	ID, Image             string
	Started               time.Time
	Time                  time.Time
	CPUNanoseconds        uint64 // since its start
	MemoryBytes           uint64 // usage
	MemoryWorkingSetBytes uint64
	SwapBytes             uint64
	SwapFreeBytes         uint64
	FilesystemBytes       uint64 // of the writable layer
	FilesystemInodes      uint64
	LogBytes, LogFiles    uint64
	Processes             uint64
	Files, Sockets        uint64 // open ones
}

// Volume is the usage of a pod's volume.
type Volume struct {
	Name, Claim string // Claim: of a persistent volume
	Time        time.Time
	FS          FileSystem
	Bytes       uint64 // used
	Files       uint64
	Own         bool // it shares no file system with the node
}

// FileSystem is the usage of a file system.
type FileSystem struct {
	Device           string // such as /dev/vda
	Bytes, Free      uint64 // free for users other than root
	Used             uint64
	Files, FilesFree uint64 // 0: allocated on demand
}
