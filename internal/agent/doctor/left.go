// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// namespacesDir is where runtimes keep the network namespaces of sandboxes, with this name prefix.
const (
	namespacesDir    = "/run/netns"
	namespacesPrefix = "cni-"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// peopled reports whether a process is in the network namespace at a path.
func peopled(path string) bool {
	var at unix.Stat_t
	if path == "" || unix.Stat(path, &at) != nil {
		return false
	}
	all, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return true
	}
	return slices.ContainsFunc(all, func(ns string) bool {
		var its unix.Stat_t
		return unix.Stat(ns, &its) == nil && its.Ino == at.Ino && its.Dev == at.Dev
	})
}

func checkNamespaces(_ context.Context, e *examination) []Finding {
	if e.runtime == nil || !e.runtime.told {
		return []Finding{unread("network namespaces", errNoRuntime)}
	}
	entries, err := os.ReadDir(namespacesDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return []Finding{unread("network namespaces", err)}
	}
	var out []Finding
	for _, entry := range entries {
		path := filepath.Join(namespacesDir, entry.Name())
		// The modification time of a namespace is its creation time.
		if !strings.HasPrefix(entry.Name(), namespacesPrefix) || e.runtime.namespaces[entry.Name()] || !e.oldFile(path) || peopled(path) {
			continue
		}
		out = append(out, Finding{
			State: Wrong, What: path + " belongs to no sandbox, and no process is in it", Do: "--fix removes it",
			fix: func(context.Context) error {
				if err := unmount(path); err != nil {
					return err
				}
				return gone(os.Remove(path))
			},
		})
	}
	if len(out) == 0 {
		out = append(out,
			Finding{State: OK, What: fmt.Sprintf("%d sandboxes have a network namespace, and there is no stale one", len(e.runtime.namespaces))})
	}
	return out
}

func unmount(path string) error {
	err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil // nothing is mounted there any more
	}
	return os.NewSyscallError("umount", err)
}

// unescape decodes the escapes of mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// mountPoints returns the mount points in a mountinfo text, in the order of mounting.
func mountPoints(mountinfo string) []string {
	var out []string
	for line := range strings.Lines(mountinfo) {
		if f := strings.Fields(line); len(f) > 4 {
			out = append(out, unescape.Replace(f[4]))
		}
	}
	return out
}

// ownerBelow returns the first path element below a directory, which names the owner of a mount; empty: the path is elsewhere.
func ownerBelow(dir, path string) string {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/")
	if !ok {
		return ""
	}
	owner, _, _ := strings.Cut(rest, "/")
	return owner
}

// leftMounts returns the mounts below a directory with unknown owners, by owner.
func leftMounts(mountinfo, dir string, known map[string]bool) map[string][]string {
	out := map[string][]string{}
	for _, path := range mountPoints(mountinfo) {
		if owner := ownerBelow(dir, path); owner != "" && !known[owner] {
			out[owner] = append(out[owner], path)
		}
	}
	return out
}

func checkMounts(_ context.Context, e *examination) []Finding {
	if e.runtime == nil {
		return []Finding{unread("mounts", errNoRuntime)}
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return []Finding{unread("mounts", err)}
	}
	r := e.runtime
	tasks := map[string]bool{}
	maps.Copy(tasks, r.sandboxes)
	maps.Copy(tasks, r.containers)
	type directory struct {
		dir   string
		known map[string]bool
		owner string
	}
	directories := []directory{{filepath.Join(e.RootDir, "pods"), r.pods, "pod"}}
	if r.stateDir != "" {
		directories = append(directories,
			directory{filepath.Join(r.stateDir, "io.containerd.grpc.v1.cri/sandboxes"), r.sandboxes, "sandbox"},
			directory{filepath.Join(r.stateDir, "io.containerd.runtime.v2.task/k8s.io"), tasks, "container"})
	}
	var out []Finding
	for _, p := range directories {
		left := leftMounts(string(text), p.dir, p.known)
		for _, owner := range sortedKeys(left) {
			mounts := left[owner]
			f := Finding{State: Wrong, What: fmt.Sprintf("%d mounts of %s %s, which the runtime does not know", len(mounts), p.owner, owner)}
			switch {
			case !e.oldFile(filepath.Join(p.dir, owner)):
				continue
			case p.owner == "pod" && e.inUse:
				// Volumes exist before the sandbox, and the node removes them when the pod is gone.
				f.State, f.Do = Note, "none: the node still needs it, or removes it within a minute"
			default:
				f.Do = "--fix unmounts them"
				f.fix = func(context.Context) error {
					var errs []error
					for _, path := range slices.Backward(mounts) {
						errs = append(errs, unmount(path))
					}
					return errors.Join(errs...)
				}
			}
			out = append(out, f)
		}
	}
	if len(out) == 0 {
		out = append(out, Finding{State: OK, What: "all mounts of pods belong to a pod"})
	}
	return out
}

// podCgroup matches a pod's UID in the name of its cgroup, under kubelet's names with either driver.
var podCgroup = regexp.MustCompile(`^(?:.+-)?pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})(?:\.slice)?$`)

// podOf returns the UID of the pod that owns a cgroup; empty: none.
func podOf(name string) string {
	found := podCgroup.FindStringSubmatch(name)
	if found == nil {
		return ""
	}
	return strings.ReplaceAll(found[1], "_", "-")
}

// leftCgroups returns the cgroups below the roots that belong to unknown pods and have no processes, by pod.
func leftCgroups(roots []string, known map[string]bool, old func(path string) bool) map[string][]string {
	out := map[string][]string{}
	for _, root := range roots {
		// A cgroup may be removed meanwhile.
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil
			}
			uid := podOf(d.Name())
			if uid == "" {
				return nil
			}
			if !known[uid] && old(path) && deserted(path) {
				out[uid] = append(out[uid], path)
			}
			return fs.SkipDir
		})
	}
	return out
}

// deserted reports whether no process is in a cgroup or in one below.
func deserted(cgroup string) bool {
	empty := true
	_ = filepath.WalkDir(cgroup, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() == "cgroup.procs" {
			text, err := os.ReadFile(path)
			empty = empty && err == nil && len(text) == 0
		}
		return nil
	})
	return empty
}

// removeCgroup removes a cgroup with those below it; the files of a cgroup disappear with it.
func removeCgroup(cgroup string) error {
	var all []string
	_ = filepath.WalkDir(cgroup, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	var errs []error
	for _, path := range slices.Backward(all) {
		if err := unix.Rmdir(path); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove cgroup %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

func checkPodCgroups(_ context.Context, e *examination) []Finding {
	if e.runtime == nil {
		return []Finding{unread("pods' cgroups", errNoRuntime)}
	}
	left := leftCgroups(podCgroups(cgroupFS, e.CgroupRoot), e.runtime.pods, e.oldFile)
	var out []Finding
	for _, uid := range sortedKeys(left) {
		out = append(out, Finding{
			State: Wrong, What: fmt.Sprintf("%d empty cgroups of pod %s, which the runtime does not know", len(left[uid]), uid),
			Do: "--fix removes them",
			fix: func(context.Context) error {
				var errs []error
				for _, path := range left[uid] {
					errs = append(errs, removeCgroup(path))
				}
				return errors.Join(errs...)
			},
		})
	}
	if len(out) == 0 {
		out = append(out, Finding{State: OK, What: "all cgroups of pods belong to a pod"})
	}
	return out
}
