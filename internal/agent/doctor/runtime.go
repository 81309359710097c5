// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// runtime is what the container runtime reports.
type runtime struct {
	name, version string
	driver        string // of cgroups; empty: not reported
	stateDir      string // empty: not reported
	confDir       string
	binDirs       []string

	sandboxes  map[string]bool // by ID
	containers map[string]bool
	pods       map[string]bool // UIDs
	namespaces map[string]bool // names of the network namespaces of sandboxes
	told       bool            // the runtime reported the namespaces of all sandboxes
}

// settingsOf are the relevant parts of a runtime's own configuration; containerd reports its own.
type settingsOf struct {
	StateDir string `json:"stateDir"`
	CNI      struct {
		BinDir  string   `json:"binDir"`
		BinDirs []string `json:"binDirs"`
		ConfDir string   `json:"confDir"`
	} `json:"cni"`
	Containerd struct {
		Default  string `json:"defaultRuntimeName"`
		Runtimes map[string]struct {
			Options map[string]any `json:"options"`
		} `json:"runtimes"`
	} `json:"containerd"`
}

// read takes the configuration that a runtime reports.
func (r *runtime) read(text string) error {
	if text == "" {
		return nil
	}
	var s settingsOf
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return fmt.Errorf("read runtime's configuration: %w", err)
	}
	r.confDir, r.binDirs = s.CNI.ConfDir, s.CNI.BinDirs
	if s.CNI.BinDir != "" {
		r.binDirs = append(r.binDirs, s.CNI.BinDir)
	}
	if s.StateDir != "" {
		r.stateDir = filepath.Dir(s.StateDir)
	}
	if usual, ok := s.Containerd.Runtimes[s.Containerd.Default]; ok {
		r.driver = "cgroupfs"
		if systemd, _ := usual.Options["SystemdCgroup"].(bool); systemd {
			r.driver = "systemd"
		}
	}
	return nil
}

// ignoresCDI reports whether the runtime passes over the field of CDI devices: containerd before 1.7 does not know it.
func (r *runtime) ignoresCDI() bool {
	v, err := version.ParseGeneric(r.version)
	return r.name == "containerd" && err == nil && v.LessThan(version.MajorMinor(1, 7))
}

func checkRuntime(ctx context.Context, e *examination) []Finding {
	wrong := func(err error) []Finding {
		return []Finding{{State: Wrong, What: err.Error(),
			Do: "start the runtime (`mortise machine prepare` does), or name its socket with --cri-socket"}}
	}
	// The client would wait for a missing socket.
	if _, err := os.Stat(strings.TrimPrefix(e.Socket, "unix://")); err != nil {
		return wrong(fmt.Errorf("find runtime's socket: %w", err))
	}
	client, err := cri.Dial(ctx, e.Socket)
	if err != nil {
		return wrong(err)
	}
	defer client.Close(ctx)
	r := &runtime{name: client.Name, version: client.Version, sandboxes: map[string]bool{}, containers: map[string]bool{},
		pods: map[string]bool{}, namespaces: map[string]bool{}, told: true}
	out := []Finding{{State: OK, What: fmt.Sprintf("%s %s answers at %s", r.name, r.version, e.Socket)}}
	status, err := client.Runtime.Status(ctx, true)
	if err != nil {
		return append(out, wrong(fmt.Errorf("get the runtime's status: %w", err))...)
	}
	out = append(out, conditions(status.GetStatus().GetConditions())...)
	if r.ignoresCDI() {
		out = append(out, Finding{State: Note, What: fmt.Sprintf("%s %s ignores the CDI devices of device plug-ins and DRA drivers: containers "+
			"start without them and without an error", r.name, r.version), Do: "install containerd 1.7 or newer"})
	}
	if err := r.read(status.GetInfo()["config"]); err != nil {
		out = append(out, Finding{State: Note, What: err.Error()})
	}
	config, err := client.Runtime.RuntimeConfig(ctx)
	switch {
	case err == nil && config.GetLinux() != nil:
		r.driver = strings.ToLower(config.GetLinux().GetCgroupDriver().String())
	case err != nil && !cri.IsUnimplemented(err):
		out = append(out, Finding{State: Note, What: "get the runtime's configuration: " + err.Error()})
	}
	if err := r.census(ctx, client); err != nil {
		return append(out, wrong(err)...)
	}
	e.runtime = r
	return out
}

// conditions returns a finding for each condition of the runtime.
func conditions(list []*runtimeapi.RuntimeCondition) []Finding {
	var out []Finding
	for _, c := range list {
		f := Finding{State: OK, What: c.Type}
		if !c.Status {
			f.State, f.What = Wrong, fmt.Sprintf("%s is false: %s: %s", c.Type, c.Reason, c.Message)
			f.Do = "see the runtime's log"
			if c.Type == runtimeapi.NetworkReady {
				f.Do = "add a CNI configuration, or restart the node, which writes one if there is none"
			}
		}
		out = append(out, f)
	}
	return out
}

// census collects all sandboxes and containers of the runtime.
func (r *runtime) census(ctx context.Context, client *cri.Client) error {
	containers, err := client.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, c := range containers {
		r.containers[c.Id] = true
		r.pods[c.Labels[podstate.LabelPodUID]] = true
	}
	sandboxes, err := client.Runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	for _, s := range sandboxes {
		r.sandboxes[s.Id] = true
		r.pods[s.GetMetadata().GetUid()] = true
		status, err := client.Runtime.PodSandboxStatus(ctx, s.Id, true)
		if cri.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("get status of sandbox %s: %w", s.Id, err)
		}
		if status.GetStatus().GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE {
			continue
		}
		path, err := namespacePath(status.GetInfo()["info"])
		if err != nil {
			r.told = false
			continue
		}
		if path != "" {
			r.namespaces[filepath.Base(path)] = true
		}
	}
	return nil
}

// namespacePath returns the path of a sandbox's network namespace from the runtime's information; empty: it is closed.
func namespacePath(info string) (string, error) {
	var s struct {
		Closed bool `json:"netNamespaceClosed"`
		Spec   struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		} `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(info), &s); err != nil {
		return "", fmt.Errorf("read sandbox's description: %w", err)
	}
	for _, n := range s.Spec.Linux.Namespaces {
		if n.Type == "network" && n.Path != "" {
			return n.Path, nil
		}
	}
	if s.Closed {
		return "", nil
	}
	return "", errors.New("the runtime does not report the sandbox's network namespace")
}
