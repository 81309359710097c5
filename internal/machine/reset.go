// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/rootlinks"
	"github.com/mortise-dev/mortise/internal/datadir"
)

// usualRoot is kubelet's directory, in which a node has links to its own.
const usualRoot = "/var/lib/kubelet"

// podLogs is the directory of pods' logs, as kubelet's: NAMESPACE_NAME_UID.
const podLogs = "/var/log/pods"

// podUID is the label of a sandbox with the UID of its pod, as kubelet's.
const podUID = "io.kubernetes.pod.uid"

// ResetOptions select what Reset removes. DataDir and RootDir, the parent directory of pods' volumes, are required.
type ResetOptions struct {
	DataDir, RootDir string
	Socket           string // of the runtime that ran the pods, if it is not the one below DataDir; empty: HostSocket
	Data             bool   // the data directory, with all objects, too
}

// Reset removes what a node with the data directory has made on this machine, and nothing else: its pods with their sandboxes and logs,
// network rules, interfaces, mounts and links, and the containerd that Prepare has started. It refuses while a process uses the data
// directory, or a node with real containers runs. In a runtime that others use too, a pod is the node's if the node has a directory for it.
// It returns a line for each thing that it has removed; it goes on after an error, and calling it again continues.
func Reset(ctx context.Context, o ResetOptions) (removed []string, err error) {
	claim, err := Claim(ctx)
	if err != nil {
		return nil, err
	}
	defer claim.Close()
	note := func(what string, err error) error {
		if err == nil && what != "" {
			removed = append(removed, what)
		}
		return err
	}
	switch _, err := os.Stat(o.DataDir); {
	case errors.Is(err, fs.ErrNotExist):
		return removed, note("network rules and interfaces", errors.Join(removeIdleBridge(ctx), RemoveNetwork(ctx)))
	case err != nil:
		return nil, fmt.Errorf("find data directory: %w", err)
	}
	dir, err := datadir.Open(o.DataDir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var errs []error
	socket := o.Socket
	if socket == "" {
		socket = HostSocket
	}
	if Answers(ctx, socket) == nil {
		pods, err := removePodsOf(ctx, socket, filepath.Join(o.RootDir, "pods"))
		for _, p := range pods {
			errs = append(errs, note("pod "+p, nil))
		}
		errs = append(errs, err)
	}
	logs, err := removeLogs(podLogs, filepath.Join(o.RootDir, "pods"))
	for _, log := range logs {
		errs = append(errs, note("logs "+log, nil))
	}
	errs = append(errs, err,
		note("pods and processes of the data directory's containerd, and mounts", errors.Join(Destroy(ctx, o.DataDir), unmountBelow(o.RootDir))),
		note("network rules and interfaces", RemoveNetwork(ctx)),
	)
	for _, name := range rootlinks.Names() {
		link := filepath.Join(usualRoot, name)
		if to, err := os.Readlink(link); err == nil && to == filepath.Join(o.RootDir, name) {
			errs = append(errs, note("link "+link, os.Remove(link)))
		}
	}
	if err := errors.Join(errs...); err != nil || !o.Data {
		return removed, err
	}
	if left, err := mountsBelow(o.DataDir, o.RootDir); err != nil || len(left) > 0 {
		return removed, errors.Join(err,
			fmt.Errorf("keep %s: %d file systems are mounted in it: %s", o.DataDir, len(left), strings.Join(left, ", ")))
	}
	return removed, errors.Join(note("directory "+o.RootDir, os.RemoveAll(o.RootDir)), note("directory "+o.DataDir, os.RemoveAll(o.DataDir)))
}

// removePodsOf removes the sandboxes of a runtime whose pods have a directory below dir.
func removePodsOf(ctx context.Context, socket, dir string) (removed []string, err error) {
	conn, err := dial(socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	c := runtimeapi.NewRuntimeServiceClient(conn)
	list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	var errs []error
	for _, pod := range list.GetItems() {
		uid := pod.GetLabels()[podUID]
		if uid == "" || uid != filepath.Base(uid) || uid == ".." || uid == "." {
			continue
		}
		if info, err := os.Stat(filepath.Join(dir, uid)); err != nil || !info.IsDir() {
			continue // another node's
		}
		name := pod.GetMetadata().GetNamespace() + "/" + pod.GetMetadata().GetName()
		if _, err := c.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod.GetId()}); err != nil {
			errs = append(errs, fmt.Errorf("stop pod %s: %w", name, err))
			continue
		}
		if _, err := c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod.GetId()}); err != nil {
			errs = append(errs, fmt.Errorf("remove pod %s: %w", name, err))
			continue
		}
		removed = append(removed, name)
	}
	return removed, errors.Join(errs...)
}

// removeLogs removes the logs of the pods that have a directory below dir.
func removeLogs(logs, dir string) (removed []string, err error) {
	pods, err := entries(dir)
	if err != nil {
		return nil, fmt.Errorf("list pods' directories: %w", err)
	}
	kept, err := entries(logs)
	if err != nil {
		return nil, fmt.Errorf("list pods' logs: %w", err)
	}
	var errs []error
	for _, log := range kept {
		parts := strings.Split(log.Name(), "_")
		uid := parts[len(parts)-1]
		if len(parts) != 3 || !slices.ContainsFunc(pods, func(e fs.DirEntry) bool { return e.IsDir() && e.Name() == uid }) {
			continue // another node's
		}
		path := filepath.Join(logs, log.Name())
		if err := os.RemoveAll(path); err != nil {
			errs = append(errs, fmt.Errorf("remove logs of a pod: %w", err))
			continue
		}
		removed = append(removed, path)
	}
	return removed, errors.Join(errs...)
}

// entries lists a directory, which may be absent.
func entries(dir string) ([]fs.DirEntry, error) {
	out, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return out, err
}

// mountsBelow returns the mount points below directories.
func mountsBelow(dirs ...string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		for _, dir := range dirs {
			if len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
				out = append(out, f[4])
				break
			}
		}
	}
	return out, nil
}
