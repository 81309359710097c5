// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

//go:embed storage.yaml
var storageDriver string

// storageLabels leave out what is off by default, what ends the processes of nodes, and what measures many volumes.
const storageLabels = "!Disruptive && !(Feature: containsAny OffByDefault)"

// storagePrograms are the programs of CSI drivers' pods: sidecars, unmodified, and stand-ins for what cannot be fetched.
func storagePrograms() []string {
	return []string{"csi-attacher", "csi-provisioner", "csi-resizer", "csi-snapshotter", "csi-node-driver-registrar", "hostpathplugin",
		"livenessprobe"}
}

// storageImages are the images of Kubernetes 1.37.1's manifests that have a program.
func storageImages(program string) []string {
	tag := map[string]string{"csi-attacher": "v4.12.0", "csi-provisioner": "v6.3.0", "csi-resizer": "v2.2.0", "csi-snapshotter": "v8.6.0",
		"csi-node-driver-registrar": "v2.17.0", "hostpathplugin": "v1.17.1", "livenessprobe": "v2.19.0"}[program]
	return []string{"sig-storage/" + program + ":" + tag}
}

// storageFlags are the flags of a storage suite. Its drivers have kubelet's usual paths, where the node makes links to its own.
func storageFlags(out string) ([]string, error) {
	driver := filepath.Join(out, "storage.yaml")
	return []string{"--storage.testdriver", driver}, os.WriteFile(driver, []byte(storageDriver), 0o644)
}

// startSnapshots brings snapshots into a cluster, as its administrator does: their kinds and the snapshot controller, which runs beside the
// cluster until end is called.
func (s settings) startSnapshots(ctx context.Context, out, kubeconfig string) (end func() error, err error) {
	kubectl := filepath.Join(s.peers, "bin", "kubectl")
	apply := exec.CommandContext(ctx, kubectl, "--kubeconfig", kubeconfig, "apply", "--server-side", "-f", filepath.Join(s.peers, "snapshots"))
	if text, err := apply.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("create the kinds of snapshots: %w: %s", err, text)
	}
	log, err := os.Create(filepath.Join(out, "snapshot-controller.log"))
	if err != nil {
		return nil, err
	}
	controller := exec.Command(filepath.Join(s.peers, "bin", "snapshot-controller"), "--kubeconfig", kubeconfig, "-v", "5",
		"--feature-gates", "CSIVolumeGroupSnapshot=true")
	controller.Stdout, controller.Stderr = log, log
	controller.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := controller.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the snapshot controller: %w", err), log.Close())
	}
	return func() error {
		err := controller.Process.Signal(syscall.SIGTERM)
		_ = controller.Wait() // a signal ends it
		return errors.Join(err, log.Close())
	}, nil
}
