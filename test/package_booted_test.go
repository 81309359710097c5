// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// serviceRunner is what runs the services of a package: systemd, or a stand-in for it.
type serviceRunner interface {
	// begun returns what the package's scripts had started or enabled.
	begun() []string
	// start starts a service, and returns when it is ready.
	start(unit string)
	// pid returns the main process of a service; 0: it does not run.
	pid(unit string) int
}

const (
	// systemdProgram is where Debian has systemd.
	systemdProgram = "/lib/systemd/systemd"
	// withSystemd has TestPackage run services under systemd, if it is 1.
	withSystemd = "MORTISE_TEST_SYSTEMD"
)

// booted is systemd as the first process of the root of TestPackage.
type booted struct {
	t    *testing.T
	root *debian
}

// hierarchy is a tree of cgroups, as it is mounted.
type hierarchy struct{ at, kind, options string }

// hierarchies returns the trees of cgroups of this machine, the upper mounts first.
func hierarchies(t *testing.T) (out []hierarchy) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	try(t, err)
	for line := range strings.Lines(string(text)) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		f, super := strings.Fields(before), strings.Fields(after)
		if len(f) < 5 || len(super) < 3 || super[0] != "cgroup" && super[0] != "cgroup2" || !strings.HasPrefix(f[4], "/sys/fs/cgroup") {
			continue
		}
		options := slices.DeleteFunc(strings.Split(super[2], ","), func(o string) bool {
			return o == "rw" || o == "xattr" || o == "clone_children" || strings.HasPrefix(o, "release_agent=") || super[0] == "cgroup2"
		})
		if slices.Contains(options, "name=systemd") {
			options = append(options, "none")
		}
		out = append(out, hierarchy{f[4], super[0], strings.Join(options, ",")})
	}
	slices.SortFunc(out, func(a, b hierarchy) int { return strings.Compare(a.at, b.at) })
	return out
}

// boots reports whether systemd is asked for, and this machine has it, and a tree of cgroups for it.
func boots(t *testing.T) bool {
	t.Helper()
	if os.Getenv(withSystemd) != "1" {
		return false
	}
	if _, err := os.Stat(systemdProgram); err != nil {
		t.Logf("a stand-in runs the services: %v", err)
		return false
	}
	if !slices.ContainsFunc(hierarchies(t), func(h hierarchy) bool {
		return h.at == "/sys/fs/cgroup" || strings.Contains(h.options, "name=systemd")
	}) {
		t.Log("a stand-in runs the services: this machine has no cgroups for systemd")
		return false
	}
	return true
}

// maskedUnits are the services of a machine that the root must not have: they would change what it shares with this machine.
var maskedUnits = []string{"systemd-sysctl.service", "systemd-modules-load.service", "modprobe@.service", "systemd-udevd.service",
	"systemd-udevd-control.socket", "systemd-udevd-kernel.socket", "systemd-udev-trigger.service", "systemd-remount-fs.service",
	"systemd-random-seed.service", "systemd-timesyncd.service", "systemd-networkd.service", "systemd-resolved.service",
	"dev-hugepages.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-fs-fuse-connections.mount"}

// boot starts systemd with the root, in process, mount and cgroup namespaces of its own, and returns when the machine is up.
func (d *debian) boot() *booted {
	t := d.t
	t.Helper()
	try(t, os.MkdirAll(packageRoot+"/run/systemd/system", 0o755))
	for _, unit := range maskedUnits {
		try(t, os.Symlink("/dev/null", packageRoot+"/run/systemd/system/"+unit))
	}
	try(t, os.RemoveAll(packageRoot+"/etc/fstab"))
	const socket = "/run/boot.notify"
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: packageRoot + socket, Net: "unixgram"})
	try(t, err)
	defer l.Close()

	// The trees of cgroups begin for systemd at cgroups of its own.
	own := fmt.Sprintf("mortise-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	var move, mount strings.Builder
	all := hierarchies(t)
	if all[0].at != "/sys/fs/cgroup" {
		mount.WriteString("mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup\n")
	}
	var made []string
	for _, h := range all {
		dir := filepath.Join(h.at, own)
		try(t, os.Mkdir(dir, 0o755))
		made = append(made, dir)
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} { // without them no process may enter
			if text, err := os.ReadFile(filepath.Join(h.at, name)); err == nil && h.kind == "cgroup" {
				try(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
			}
		}
		fmt.Fprintf(&move, "echo $$ >%s/cgroup.procs\n", dir)
		fmt.Fprintf(&mount, "mkdir -p %s && mount -t %s ", h.at, h.kind)
		if h.options != "" {
			mount.WriteString("-o " + h.options + " ")
		}
		mount.WriteString("cgroup " + h.at + "\n")
	}
	script := "set -e\n" + move.String() + "exec unshare --cgroup sh -c '" + enterRoot +
		" && mount -t proc proc /proc && umount -R /sys/fs/cgroup\nset -e\n" + mount.String() + "mount --make-rshared /\nexec " +
		systemdProgram + " --unit=basic.target --log-target=journal --show-status=0'"
	c := exec.Command("sh", "-c", script)
	c.Env = []string{"container=test", "NOTIFY_SOCKET=" + socket, "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	c.Stdout, c.Stderr = t.Output(), t.Output()
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC}
	try(t, c.Start())
	ended := make(chan struct{})
	go func() {
		_ = c.Wait()
		l.Close()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		<-ended // with all processes of the namespace
		for _, dir := range made {
			removeCgroups(t, dir)
		}
	})
	d.pid, d.enters = c.Process.Pid, []string{"--pid", "--cgroup"}
	for said := make([]byte, 4096); ; {
		n, err := l.Read(said)
		if err != nil {
			t.Fatalf("systemd ended before the machine was up")
		}
		if slices.Contains(strings.Split(string(said[:n]), "\n"), "READY=1") {
			break
		}
	}
	return &booted{t, d}
}

// removeCgroups removes a cgroup with those below it.
func removeCgroups(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Errorf("list cgroups: %v", err)
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			removeCgroups(t, filepath.Join(dir, e.Name()))
		}
	}
	if err := os.Remove(dir); err != nil {
		t.Errorf("remove cgroup: %v", err)
	}
}

func (b *booted) begun() (out []string) {
	for line := range strings.Lines(b.root.run("systemctl", "list-unit-files", "--no-legend", "--plain", "mortise*")) {
		if f := strings.Fields(line); len(f) > 1 && f[1] != "disabled" {
			out = append(out, strings.TrimSpace(line))
		}
	}
	for line := range strings.Lines(b.root.run("systemctl", "list-units", "--all", "--no-legend", "--plain", "mortise*")) {
		if f := strings.Fields(line); len(f) > 2 && f[2] != "inactive" {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

func (b *booted) start(unit string) { b.root.run("systemctl", "start", unit) }

func (b *booted) pid(unit string) int {
	n, err := strconv.Atoi(strings.TrimSpace(b.root.run("systemctl", "show", "--property=MainPID", "--value", unit)))
	try(b.t, err)
	return n
}

// restarts kills the main process of a service, and returns when systemd has started another which says the words.
func (b *booted) restarts(unit, words string) {
	b.t.Helper()
	before := b.pid(unit)
	_, cursor, ok := strings.Cut(b.root.run("journalctl", "--lines=1", "--quiet", "--show-cursor"), "-- cursor: ")
	if !ok {
		b.t.Fatal("the journal has no cursor")
	}
	b.root.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", unit)
	c := b.root.command("journalctl", "--follow", "--output=cat", "--unit="+unit, "--after-cursor="+strings.TrimSpace(cursor))
	out, err := c.StdoutPipe()
	try(b.t, err)
	try(b.t, c.Start())
	said := false
	for lines := bufio.NewScanner(out); !said && lines.Scan(); {
		said = strings.Contains(lines.Text(), words)
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	if now := b.pid(unit); !said || now == before || now == 0 {
		b.t.Errorf("after its end %s has process %d, which was %d; it said %q: %t", unit, now, before, words, said)
	}
}
