// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podstate represents the runtime's state of a pod: its sandboxes and containers, with the labels and annotations that the node
// wrote when it created them.
//
// The node keeps no state of its own. Everything that it must know about a container after a restart (its pod, the hash of its definition,
// the number of restarts, how to stop it) is in the container's labels and annotations, exactly as kubelet writes them, so that either can
// adopt the other's containers.
//
// Values of this package are plain, immutable data: Observe in package cri makes them, and the pure packages decide and podstatus read
// them.
package podstate

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pod is one pod as the runtime reports it. Sandboxes are sorted newest first, and so are the instances of each container among Containers:
// the latest attempt first, whatever the clock was when they were created.
type Pod struct {
	UID             types.UID
	Namespace, Name string
	Sandboxes       []Sandbox
	Containers      []Container
}

// Sandbox is one sandbox of a pod.
type Sandbox struct {
	ID          string
	Attempt     uint32
	Created     time.Time
	Ready       bool
	HostNetwork bool
	IPs         []string
	// Networked means that the runtime reported the network.
	Networked bool
}

// State is a container's state.
type State string

// The states of a container, as CRI has them.
const (
	Created State = "created"
	Running State = "running"
	Exited  State = "exited"
	Unknown State = "unknown"
)

// Container is one instance of a container of a pod: each restart creates a new one.
type Container struct {
	ID        string // the runtime's, without its scheme
	Name      string
	SandboxID string
	Attempt   uint32 // the number of instances before it
	State     State

	Created, Started, Finished time.Time

	ExitCode int32
	Reason   string
	Message  string

	Image    string // the name in the pod
	ImageRef string // the digest
	ImageID  string
	LogPath  string

	Note   Note
	User   *runtimeapi.LinuxContainerUser
	Mounts []*runtimeapi.Mount
}

// Newest returns the newest instance of the named container, or nil.
func (p *Pod) Newest(name string) *Container {
	for i := range p.Containers {
		if p.Containers[i].Name == name {
			return &p.Containers[i]
		}
	}
	return nil
}

// NewestExited returns the newest instance of the named container that has ended, or nil.
func (p *Pod) NewestExited(name string) *Container {
	for i := range p.Containers {
		if p.Containers[i].Name == name && p.Containers[i].State == Exited {
			return &p.Containers[i]
		}
	}
	return nil
}

// Running returns the running containers.
func (p *Pod) Running() []*Container {
	var out []*Container
	for i := range p.Containers {
		if s := p.Containers[i].State; s == Running || s == Unknown {
			out = append(out, &p.Containers[i])
		}
	}
	return out
}

// ReadySandbox returns the newest sandbox if it is ready, or nil.
func (p *Pod) ReadySandbox() *Sandbox {
	if len(p.Sandboxes) > 0 && p.Sandboxes[0].Ready {
		return &p.Sandboxes[0]
	}
	return nil
}

// IPs returns the addresses of the newest sandbox.
func (p *Pod) IPs() []string {
	if s := p.ReadySandbox(); s != nil {
		return s.IPs
	}
	return nil
}
