// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/netlab"
)

// packageRoot is a copy of this machine's root, a Debian's, which the packages change: an overlay whose changes are in memory.
const packageRoot = "/mnt/root"

// packageContainerd is the configuration of containerd's package; not all machines that run tests let a process lower its OOM score. The
// disabled plug-in makes /opt/containerd, which purging Mortise's package leaves.
const packageContainerd = `version = 2
disabled_plugins = ["io.containerd.internal.v1.opt"]
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
`

// packagePods are what runs over the package's life.
const packagePods = `
apiVersion: v1
kind: Secret
metadata: {name: password}
stringData: {password: open sesame}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: mortise.local/web:1
        volumeMounts: [{name: password, mountPath: /password}, {name: memory, mountPath: /memory}]
      volumes:
      - {name: password, secret: {secretName: password}}
      - {name: memory, emptyDir: {medium: Memory}}
`

// TestPackage has the whole life of the Debian package while pods run: installed, configured, upgraded, removed, purged, in a copy of this
// machine's root with a stand-in for systemd. With MORTISE_TEST_SYSTEMD=1 systemd is the first process there, and the service is killed.
// Pods run over the kill, the upgrade and the removal, and purging leaves nothing.
func TestPackage(t *testing.T) {
	if !alone(t) {
		return
	}
	netlab.Outside(t)
	d := newDebian(t)
	first, second := d.build("9.8"), d.build("9.9")
	links, rules, others := d.links(), d.rules(), d.left()

	d.run("dpkg", "--install", "--force-unsafe-io", "--no-triggers", first)
	if begun := d.systemd.begun(); len(begun) > 0 {
		t.Errorf("installing the package started or enabled %q", begun)
	}
	if _, err := os.Lstat(packageRoot + "/var/lib/mortise"); err == nil {
		t.Error("installing the package made data")
	}
	config, err := os.OpenFile(packageRoot+"/etc/mortise/config.yaml", os.O_APPEND|os.O_WRONLY, 0)
	try(t, err)
	_, err = config.WriteString("# mine\n")
	try(t, err)
	try(t, config.Close())

	d.write("/etc/containerd/config.toml", packageContainerd)
	d.containerd()
	d.run("mortise", "machine", "prepare", "--no-install")
	d.systemd.start("mortise.service")
	d.write("/pods.yaml", packagePods)
	d.run("mortise", "kubectl", "apply", "-f", "/pods.yaml")
	d.run("mortise", "kubectl", "rollout", "status", "deployment/web", "--timeout=100s")
	pods, containers := d.pods(), d.tasks()
	if b, ok := d.systemd.(*booted); ok { // killed: systemd starts it again, and the pods run on
		b.restarts("mortise.service", "mortise: ready in ")
		d.run("mortise", "kubectl", "rollout", "status", "deployment/web", "--timeout=100s")
		if now := d.tasks(); now != containers {
			t.Errorf("the end of the service made of the containers\n%s\n\n%s", containers, now)
		}
	}

	// Upgraded: the service goes on with the new program, the containers as they are.
	process := d.systemd.pid("mortise.service")
	d.run("dpkg", "--install", "--force-unsafe-io", "--no-triggers", "--force-confdef", second)
	if now := d.systemd.pid("mortise.service"); now == process || now == 0 {
		t.Errorf("the upgrade left process %d of the service, which was %d", now, process)
	}
	if got := d.run("dpkg-query", "--show", "--showformat=${Version} ${db:Status-Status}", "mortise"); got != "9.9 installed" {
		t.Errorf("the package is %s", got)
	}
	d.run("mortise", "kubectl", "rollout", "status", "deployment/web", "--timeout=100s")
	if now := d.pods(); now != pods {
		t.Errorf("the upgrade made of the pods\n%s\n\n%s", pods, now)
	}
	if now := d.tasks(); now != containers {
		t.Errorf("the upgrade made of the containers\n%s\n\n%s", containers, now)
	}
	d.run("mortise", "kubectl", "scale", "deployment/web", "--replicas=3")
	d.run("mortise", "kubectl", "rollout", "status", "deployment/web", "--timeout=100s")
	containers = d.tasks()

	// Removed: the service stops, the pods run on.
	d.run("dpkg", "--remove", "--no-triggers", "mortise")
	if pid := d.systemd.pid("mortise.service"); pid != 0 {
		t.Errorf("removing the package left process %d of the service", pid)
	}
	if now := d.tasks(); now != containers {
		t.Errorf("removing the package made of the containers\n%s\n\n%s", containers, now)
	}
	if text, err := os.ReadFile(packageRoot + "/etc/mortise/config.yaml"); err != nil || !strings.Contains(string(text), "# mine\n") {
		t.Errorf("removing the package lost the configuration: %v\n%s", err, text)
	}

	// Purged: nothing is left.
	if out := d.run("dpkg", "--purge", "--no-triggers", "mortise"); strings.Contains(out, "could not be removed") {
		t.Errorf("purging says\n%s", out)
	}
	if left := d.run("ctr", "-n", "k8s.io", "containers", "ls", "-q"); left != "" {
		t.Errorf("purging left the containers\n%s", left)
	}
	if now := d.links(); now != links {
		t.Errorf("of the interfaces\n%s\npurging made\n%s", links, now)
	}
	if now := d.rules(); now != rules {
		t.Errorf("of the rules\n%s\npurging made\n%s", rules, now)
	}
	// The rest is what the machine made when it came up.
	left := slices.DeleteFunc(d.left(), func(file string) bool { return slices.Contains(others, file) })
	if len(left) > 0 {
		t.Errorf("purging left\n%s", strings.Join(left, "\n"))
	}
}

// debian is the root of a Debian that packages are installed in. Its processes are in a mount namespace of their own, of which it is
// the root, as on a machine: a process that lives as long as the test has it.
type debian struct {
	t       *testing.T
	pid     int
	systemd serviceRunner
	enters  []string // further namespaces that commands are in
}

// enterRoot makes the root that of a mount namespace.
const enterRoot = `mount --rbind ` + packageRoot + ` ` + packageRoot + ` && cd ` + packageRoot +
	` && pivot_root . mnt && cd / && umount -l /mnt`

// enter makes that namespace, without systemd.
const enter = enterRoot + ` && mount --make-rshared / && echo ready && exec cat`

// newDebian makes the root, with mounts of this process's namespace. It is in memory, and ends with the namespace: nothing removes it.
func newDebian(t *testing.T) *debian {
	t.Helper()
	d := &debian{t: t}
	try(t, unix.Mount("tmpfs", "/mnt", "tmpfs", 0, "mode=755"))
	for _, dir := range []string{packageRoot, "/mnt/changes", "/mnt/work", "/mnt/containerd"} {
		try(t, os.MkdirAll(dir, 0o755))
	}
	try(t, unix.Mount("overlay", packageRoot, "overlay", 0, "lowerdir=/,upperdir=/mnt/changes,workdir=/mnt/work"))
	// This machine's own Mortise, and the policy of machines without systemd that no service is started.
	for _, name := range []string{"/var/lib/mortise", "/var/lib/kubelet", "/etc/mortise", "/usr/sbin/policy-rc.d"} {
		try(t, os.RemoveAll(packageRoot+name))
	}
	for _, dir := range []string{"/sys", "/dev"} {
		try(t, unix.Mount(dir, packageRoot+dir, "", unix.MS_BIND|unix.MS_REC, ""))
	}
	try(t, unix.Mount("proc", packageRoot+"/proc", "proc", 0, ""))
	for _, dir := range []string{"/run", "/tmp", "/etc/cni", "/var/lib/cni", "/var/log/pods"} {
		try(t, os.MkdirAll(packageRoot+dir, 0o755))
		try(t, unix.Mount("tmpfs", packageRoot+dir, "tmpfs", 0, "mode=755"))
	}
	try(t, os.MkdirAll(packageRoot+"/etc/containerd", 0o755))
	try(t, os.MkdirAll(packageRoot+"/var/lib/containerd", 0o755))
	try(t, unix.Mount("/mnt/containerd", packageRoot+"/var/lib/containerd", "", unix.MS_BIND, ""))
	d.write("/mortise-program", "")
	try(t, unix.Mount(built(t), packageRoot+"/mortise-program", "", unix.MS_BIND, ""))
	if boots(t) {
		d.systemd = d.boot()
		return d
	}
	c := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", enter)
	c.Stderr = t.Output()
	lives, err := c.StdinPipe()
	try(t, err)
	out, err := c.StdoutPipe()
	try(t, err)
	try(t, c.Start())
	t.Cleanup(func() {
		lives.Close()
		_ = c.Wait() // the namespace ends with the test anyway
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the root says %q, %v", line, err)
	}
	d.pid = c.Process.Pid
	d.systemd = newStandInSystemd(t, d)
	return d
}

// build makes the package of a version, whose program is a launcher of the one that the tests have built, and returns its path in the root.
func (d *debian) build(version string) string {
	d.t.Helper()
	work := d.t.TempDir()
	program := filepath.Join(work, "linux_"+runtime.GOARCH, "mortise")
	for _, args := range [][]string{
		{"build", "-o", program, "./testdata/launcher"},
		{"run", "-C", "..", "-tags", "grpcnotrace", "./scripts/release", "-version", version, "-binaries", work, "-level", "0",
			"-platforms", "linux/" + runtime.GOARCH, "-out", filepath.Join(work, "dist")},
	} {
		c := exec.CommandContext(d.t.Context(), "go", args...)
		c.Env = append(os.Environ(), "CGO_ENABLED=0", "MORTISE_PROGRAM="+built(d.t))
		if out, err := c.CombinedOutput(); err != nil {
			d.t.Fatalf("go %q: %v\n%s", args, err, out)
		}
	}
	name := "mortise_" + version + "_" + runtime.GOARCH + ".deb"
	data, err := os.ReadFile(filepath.Join(work, "dist", name))
	try(d.t, err)
	try(d.t, os.WriteFile(packageRoot+"/tmp/"+name, data, 0o644))
	return "/tmp/" + name
}

// command returns a command in the root, as an administrator's.
func (d *debian) command(args ...string) *exec.Cmd {
	line := slices.Concat([]string{"--target", strconv.Itoa(d.pid), "--mount", "--root", "--wd=/"}, d.enters, []string{"--"}, args)
	c := exec.CommandContext(d.t.Context(), "nsenter", line...)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	c.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C",
		"HOME=/root", "KUBECONFIG=/var/lib/mortise/kubeconfig"}
	return c
}

// run runs a command in the root, and returns what it prints.
func (d *debian) run(args ...string) string {
	d.t.Helper()
	out, err := d.command(args...).CombinedOutput()
	if err != nil {
		d.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (d *debian) write(path, text string) {
	d.t.Helper()
	try(d.t, os.WriteFile(packageRoot+path, []byte(text), 0o755))
}

// containerd starts containerd as its own package does, and returns when it answers.
func (d *debian) containerd() {
	d.t.Helper()
	if b, ok := d.systemd.(*booted); ok {
		b.start("containerd.service")
		return
	}
	c := d.command("containerd")
	c.Stdout, c.Stderr = d.t.Output(), d.t.Output()
	try(d.t, c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	for d.command("ctr", "version").Run() != nil {
		select {
		case err := <-ended:
			d.t.Fatalf("containerd ended: %v", err)
		default:
		}
	}
}

// pods returns what an upgrade leaves as it is.
func (d *debian) pods() string {
	d.t.Helper()
	var list corev1.PodList
	try(d.t, json.Unmarshal([]byte(d.run("mortise", "kubectl", "get", "pods", "-o", "json")), &list))
	var out []string
	for _, p := range list.Items {
		s := p.Status.ContainerStatuses[0]
		out = append(out, fmt.Sprintln(p.Name, p.UID, p.Status.PodIP, s.ContainerID, s.RestartCount))
	}
	return strings.Join(out, "")
}

// tasks returns the containers that run, with their processes.
func (d *debian) tasks() string {
	d.t.Helper()
	lines := strings.Split(d.run("ctr", "-n", "k8s.io", "tasks", "ls"), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// links returns the network interfaces.
func (d *debian) links() string {
	d.t.Helper()
	all, err := netlink.LinkList()
	try(d.t, err)
	var names []string
	for _, l := range all {
		names = append(names, l.Attrs().Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// rules returns the rules of packet filters.
func (d *debian) rules() string {
	d.t.Helper()
	return d.run("nft", "list", "ruleset")
}

// left returns the files that this machine's root does not have, or has otherwise, and the mounts below the package's directories.
func (d *debian) left() (out []string) {
	d.t.Helper()
	others := []string{"var/lib/dpkg", "var/log", "var/cache", "var/lib/systemd", "etc/containerd", "mortise-program", "pods.yaml",
		"usr/local/bin/systemctl", "etc/ld.so.cache", "root/.kube"}
	try(d.t, filepath.WalkDir("/mnt/changes", func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == "/mnt/changes" {
			return err
		}
		name := strings.TrimPrefix(path, "/mnt/changes/")
		if slices.Contains(others, name) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		_, missing := os.Lstat("/" + name)
		if now, err := os.Lstat(packageRoot + "/" + name); err != nil || now.IsDir() && missing == nil {
			return nil // it is gone, or a folder that was there
		}
		for _, mounted := range []string{"etc/cni", "var/lib/cni", "var/lib/containerd"} {
			if name == mounted {
				return nil
			}
		}
		out = append(out, name)
		return nil
	}))
	for _, dir := range []string{"/etc/cni", "/var/lib/cni", "/var/log/pods", "/run"} { // mounts of their own
		try(d.t, filepath.WalkDir(packageRoot+dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() && !strings.Contains(path, "containerd") && !strings.Contains(path, "systemctl") &&
				!strings.HasPrefix(path, packageRoot+"/run/systemd/") && !strings.HasPrefix(path, packageRoot+"/run/log/") {
				out = append(out, strings.TrimPrefix(path, packageRoot+"/"))
			}
			return err
		}))
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", d.pid))
	try(d.t, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "/var/lib/mortise/") || strings.Contains(line, "/var/lib/kubelet/") {
			out = append(out, "mount "+strings.TrimSpace(line))
		}
	}
	return out
}
