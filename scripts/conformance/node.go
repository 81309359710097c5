// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

//go:embed units.sh
var unitsScript string

// nodeConfig is the KubeletConfiguration from which the suite starts: as in a cluster of the other runs, with what the suite sets if it
// has no file.
const nodeConfig = kubeletConfig + `failCgroupV1: false
failSwapOn: false
cgroupRoot: /
volumeStatsAggPeriod: 10s
serializeImagePulls: false
fileCheckFrequency: 10s
podCIDR: 10.100.0.0/24
evictionPressureTransitionPeriod: 30s
`

// nodeNetwork is the CNI configuration of the node's pods: with kubelet, the network is not the node's.
const nodeNetwork = `{
  "cniVersion": "0.4.0", "name": "conformance",
  "plugins": [
    {"type": "bridge", "bridge": "conformance0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
      "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.100.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`

// area is a part of the node's suite that is counted by itself.
type area struct{ name, match string }

// nodeAreas are the parts of the suite that concern plug-ins and resource managers. match is the beginning of the tests' names.
func nodeAreas() []area {
	return []area{
		{"device plug-ins", "[sig-node] Device "},
		{"pod resources", "[sig-node] POD Resources API"},
		{"pod resources of whole pods", "[sig-node] Pod Resources API"},
		{"DRA", "[sig-node] [DRA]"},
		{"CPU manager", "[sig-node] CPU Manager"},
		{"memory manager", "[sig-node] Memory Manager"},
		{"topology manager", "[sig-node] Topology Manager"},
		{"pods API", "[sig-node] Kubelet Pods API"},
		{"image credentials", "[sig-node] Ensure Credential Pulled Images"},
	}
}

// kubeletDir is kubelet's directory, which the suite has built in.
const kubeletDir = "/var/lib/kubelet"

// node runs the suite of nodes, which starts its own etcd and kube-apiserver, and the program under the name kubelet. A directory of the
// run's own is mounted at /var/lib/kubelet meanwhile.
func (s settings) node(ctx context.Context, r run, out string) (err error) {
	binary, err := filepath.Abs(s.binary)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "conformance-")
	if err != nil {
		return err
	}
	c := &cluster{binary: binary, dir: dir, containers: true}
	defer func() { err = errors.Join(err, c.stop()) }()
	if _, err := c.prepareContainers(ctx, s.peers, "127.0.0.1"); err != nil {
		return err
	}
	state := filepath.Join(dir, "kubelet")
	if err := errors.Join(os.MkdirAll(kubeletDir, 0o755), os.Mkdir(state, 0o755)); err != nil {
		return err
	}
	if err := unix.Mount(state, kubeletDir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount the run's own %s: %w", kubeletDir, err)
	}
	defer func() { err = errors.Join(err, unmountAll(kubeletDir)) }()
	network := filepath.Join(dir, "data", "containerd", "cni")
	for path, text := range map[string]string{
		filepath.Join(network, "10-conformance.conflist"): fmt.Sprintf(nodeNetwork, filepath.Join(dir, "networks")),
		filepath.Join(dir, "kubelet.yaml"):                nodeConfig,
		filepath.Join(dir, "system.yaml"):                 "os: Linux\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	programs, err := nodePrograms(dir, binary)
	if err != nil {
		return err
	}
	return s.nodeSuite(ctx, r, out, programs, dir)
}

// nodePrograms makes a directory with the program under the name kubelet, and with what stands in for systemd.
func nodePrograms(dir, binary string) (string, error) {
	programs := filepath.Join(dir, "bin")
	if err := errors.Join(os.Mkdir(programs, 0o755), os.Symlink(binary, filepath.Join(programs, "kubelet"))); err != nil {
		return "", err
	}
	for _, name := range []string{"systemd-run", "systemctl", "sudo", "journalctl"} {
		if err := os.WriteFile(filepath.Join(programs, name), []byte(unitsScript), 0o755); err != nil {
			return "", err
		}
	}
	return programs, nil
}

// nodeSuite runs the suite. That tests fail is no error: the report tells it.
func (s settings) nodeSuite(ctx context.Context, r run, out, programs, dir string) error {
	log, err := os.Create(filepath.Join(out, "ginkgo.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	focus, err := r.focus(s.focus)
	if err != nil {
		return err
	}
	args := []string{"--ginkgo.no-color", "--ginkgo.timeout", s.timeout.String(), "--ginkgo.label-filter", r.labels,
		"--ginkgo.focus", focus, "--ginkgo.json-report", filepath.Join(out, "report.json"), "--report-dir", out,
		"--kubelet-config-file", filepath.Join(dir, "kubelet.yaml"),
		"--system-spec-file", filepath.Join(dir, "system.yaml"), "--prepull-images=false",
		"--container-runtime-endpoint", "unix://" + filepath.Join(dir, "data", "containerd", "containerd.sock"),
		"--container-runtime-process-name", "containerd"}
	if s.skip != "" {
		args = append(args, "--ginkgo.skip", s.skip)
	}
	suite := filepath.Join(programs, "e2e_node.test") // it finds kubelet beside itself
	if err := os.Symlink(filepath.Join(s.peers, "bin", "e2e_node.test"), suite); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, suite, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, out
	cmd.Env = append(os.Environ(), "PATH="+programs+string(os.PathListSeparator)+os.Getenv("PATH"),
		"CONFORMANCE_UNITS="+filepath.Join(dir, "units"))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	err = cmd.Run()
	var failed *exec.ExitError
	if errors.As(err, &failed) && ctx.Err() == nil {
		err = nil
	}
	return errors.Join(err, stopUnits(filepath.Join(dir, "units"), programs))
}

// stopUnits stops what the suite has left running.
func stopUnits(units, programs string) error {
	left, err := filepath.Glob(filepath.Join(units, "*"))
	for _, unit := range left {
		stop := exec.Command(filepath.Join(programs, "systemctl"), "stop", filepath.Base(unit))
		stop.Env = append(os.Environ(), "CONFORMANCE_UNITS="+units)
		if out, failed := stop.CombinedOutput(); failed != nil {
			err = errors.Join(err, fmt.Errorf("stop %s: %w: %s", filepath.Base(unit), failed, out))
		}
	}
	return err
}

// unmountAll unmounts what is mounted at and below a directory, the deepest first.
func unmountAll(dir string) error {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if f := strings.Fields(lines[i]); len(f) > 1 && (f[1] == dir || strings.HasPrefix(f[1], dir+"/")) {
			err = errors.Join(err, unix.Unmount(f[1], unix.MNT_DETACH))
		}
	}
	return err
}

// printAreas writes how many tests of each area passed.
func (rs results) printAreas(w io.Writer, areas []area) {
	for _, a := range areas {
		counts := map[string]int{}
		for _, r := range rs {
			if strings.HasPrefix(r.name, a.match) {
				counts[r.state]++
			}
		}
		fmt.Fprintf(w, "  %-28s %d passed, %d failed, %d skipped\n", a.name, counts["passed"], counts["failed"], counts["skipped"])
	}
}
