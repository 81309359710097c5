// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mortise-dev/mortise/internal/agent/program"
)

// cgroupFS is the mount point of the cgroup file systems.
const cgroupFS = "/sys/fs/cgroup"

// unified reports whether the machine uses cgroups v2.
func unified(root string) bool {
	_, err := os.Stat(filepath.Join(root, "cgroup.controllers"))
	return err == nil
}

// podCgroups returns the directories with the cgroups of all pods: one, or one for each controller.
func podCgroups(root, above string) []string {
	var out []string
	for _, pattern := range []string{filepath.Join(root, above), filepath.Join(root, "*", above)} {
		for _, name := range []string{"kubepods", "kubepods.slice", "*-kubepods.slice"} {
			found, err := filepath.Glob(filepath.Join(pattern, name))
			if err == nil {
				out = append(out, found...)
			}
		}
	}
	return out
}

// wanted are the controllers that limit pods, with the consequence if one is missing.
func wanted() []struct{ name, without string } {
	return []struct{ name, without string }{
		{"cpu", "CPU requests and limits are not enforced"},
		{"memory", "memory limits are not enforced"},
		{"pids", "podPidsLimit is not enforced"},
	}
}

// cgroupFacts describe the machine's cgroups.
type cgroupFacts struct {
	unified     bool
	controllers []string
	systemd     bool   // runs the machine
	runtime     string // driver; empty: not reported
	node        string // configured driver
}

func checkCgroups(_ context.Context, e *examination) []Finding {
	f := cgroupFacts{unified: unified(cgroupFS), node: cmp.Or(e.CgroupDriver, "cgroupfs")}
	if e.runtime != nil {
		f.runtime = e.runtime.driver
	}
	_, err := os.Stat("/run/systemd/system")
	f.systemd = err == nil
	if f.unified {
		text, err := os.ReadFile(filepath.Join(cgroupFS, "cgroup.controllers"))
		if err != nil {
			return []Finding{unread("cgroups", err)}
		}
		f.controllers = strings.Fields(string(text))
	} else {
		text, err := os.ReadFile("/proc/cgroups")
		if err != nil {
			return []Finding{unread("cgroups", err)}
		}
		for _, c := range enabledControllers(string(text)) {
			if _, err := os.Stat(filepath.Join(cgroupFS, c)); err == nil {
				f.controllers = append(f.controllers, c)
			}
		}
	}
	return f.judge()
}

// enabledControllers returns the enabled controllers in /proc/cgroups.
func enabledControllers(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 4 && f[3] == "1" {
			out = append(out, f[0])
		}
	}
	return out
}

func (f cgroupFacts) judge() []Finding {
	var out []Finding
	if f.unified {
		out = append(out, Finding{State: OK, What: "cgroups v2"})
	} else {
		out = append(out,
			Finding{State: Note, What: "cgroups v1: LimitedSwap and other features of v2 do not work",
				Do: "start the kernel with systemd.unified_cgroup_hierarchy=1"})
	}
	for _, w := range wanted() {
		if !slices.Contains(f.controllers, w.name) {
			out = append(out, Finding{State: Wrong, What: fmt.Sprintf("no cgroup controller %s: %s", w.name, w.without),
				Do: "enable it (kernel parameter cgroup_enable=" + w.name + ")"})
		}
	}
	switch {
	case f.runtime == "":
		out = append(out,
			Finding{State: Note, What: "the runtime does not report its cgroup driver; the node's is " + f.node,
				Do: "make sure that both are the same"})
	case f.runtime != f.node:
		out = append(out, Finding{
			State: Wrong, What: fmt.Sprintf("the runtime's cgroup driver is %s, the node's %s", f.runtime, f.node),
			Do: "cgroupDriver: " + f.runtime + " in the node's configuration (--kubelet-config), or SystemdCgroup in the runtime's",
		})
	default:
		out = append(out, Finding{State: OK, What: "runtime and node use the cgroup driver " + f.node})
	}
	if f.runtime == "systemd" && !f.systemd {
		out = append(out,
			Finding{State: Wrong, What: "the cgroup driver is systemd, but systemd does not run this machine", Do: "set cgroupDriver: cgroupfs"})
	}
	return out
}

func checkKernel(context.Context, *examination) []Finding {
	filesystems, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return []Finding{unread("kernel", err)}
	}
	namespaces, err := os.ReadDir("/proc/self/ns")
	if err != nil {
		return []Finding{unread("kernel", err)}
	}
	var names []string
	for _, n := range namespaces {
		names = append(names, n.Name())
	}
	return judgeKernel(string(filesystems), names)
}

func judgeKernel(filesystems string, namespaces []string) []Finding {
	var out []Finding
	for _, name := range []string{"ipc", "mnt", "net", "pid", "uts"} {
		if !slices.Contains(namespaces, name) {
			out = append(out, Finding{State: Wrong, What: "the kernel has no " + name + " namespaces", Do: "use a kernel with them"})
		}
	}
	if !slices.Contains(namespaces, "user") {
		out = append(out,
			Finding{State: Note, What: "the kernel has no user namespaces: pods with hostUsers: false do not start",
				Do: "use a kernel with CONFIG_USER_NS"})
	}
	has := strings.Fields(filesystems)
	if !slices.Contains(has, "tmpfs") {
		out = append(out,
			Finding{State: Wrong, What: "the kernel has no tmpfs: pods with Secret volumes or volumes in memory do not start",
				Do: "use a kernel with CONFIG_TMPFS"})
	}
	if !slices.Contains(has, "overlay") {
		out = append(out,
			Finding{State: Note, What: "the kernel has no overlayfs: the runtime copies the image for each container", Do: "modprobe overlay"})
	}
	if len(out) == 0 {
		out = append(out, Finding{State: OK, What: "the kernel has all namespaces and file systems"})
	}
	return out
}

// setting is a sysctl with its required value.
type setting struct {
	name    string
	least   int64
	state   State // if the value is lower
	without string
}

func settings() []setting {
	return []setting{
		{"net.ipv4.ip_forward", 1, Wrong, "pods reach only their own node"},
		{"net.bridge.bridge-nf-call-iptables", 1, Note, "on a bridge, a pod does not reach itself or pods of the same node by a Service"},
		{"fs.inotify.max_user_instances", 256, Note, "many pods may exhaust them"},
		{"user.max_user_namespaces", 1, Note, "pods with hostUsers: false do not start"},
	}
}

func checkSettings(context.Context, *examination) []Finding {
	var out []Finding
	for _, s := range settings() {
		path := filepath.Join("/proc/sys", strings.ReplaceAll(s.name, ".", "/"))
		text, err := os.ReadFile(path)
		if f := s.judge(string(text), err); f != nil {
			if f.State == Wrong && err == nil {
				f.fix = func(context.Context) error {
					if err := os.WriteFile(path, []byte(strconv.FormatInt(s.least, 10)), 0o644); err != nil {
						return fmt.Errorf("write setting: %w", err)
					}
					return nil
				}
			}
			out = append(out, *f)
		}
	}
	if len(out) == 0 {
		out = append(out, Finding{State: OK, What: "the kernel's settings are correct"})
	}
	return out
}

// judge checks a setting's text; nil: it is as required.
func (s setting) judge(text string, err error) *Finding {
	has, number := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	switch {
	case err != nil:
		return &Finding{State: s.state, What: fmt.Sprintf("%s does not exist: %s", s.name, s.without),
			Do: "load the module that provides it (br_netfilter for bridges)"}
	case number != nil || has < s.least:
		return &Finding{State: s.state, What: fmt.Sprintf("%s is %s: %s", s.name, strings.TrimSpace(text), s.without),
			Do: fmt.Sprintf("sysctl -w %s=%d", s.name, s.least)}
	}
	return nil
}

// find finds a program in root's usual directories, whatever PATH is.
func find(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	return ""
}

func checkPrograms(ctx context.Context, _ *examination) []Finding {
	var out []Finding
	for _, p := range []struct {
		name, without, pkg string
		state              State
	}{
		{"nft", "the node writes rules for Services and pods by iptables, which is slower with many Services", "nftables", Note},
		{"iptables", "CNI plug-ins set up neither host ports nor masquerading", "iptables", Wrong},
		{"iptables-restore", "Services do not work if nft does not", "iptables", Note},
		{"iptables-save", "the doctor does not find stale rules", "iptables", Note},
		{"modprobe", "the node cannot load br_netfilter", "kmod", Note},
	} {
		if find(p.name) == "" {
			out = append(out, Finding{State: p.state, What: fmt.Sprintf("no program %s: %s", p.name, p.without), Do: "apt-get install " + p.pkg})
		}
	}
	if nft := find("nft"); nft != "" {
		if _, err := (program.Command{Name: nft, Args: []string{"list", "tables"}}).Run(ctx); err != nil {
			out = append(out,
				Finding{State: Wrong, What: fmt.Sprintf("nft does not work, the node uses iptables: %v", err),
					Do: "run as root, on a kernel with nf_tables"})
		}
	}
	if len(out) == 0 {
		out = append(out, Finding{State: OK, What: "nft and iptables work"})
	}
	return out
}
