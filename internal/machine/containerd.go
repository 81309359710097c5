// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/cni"
	"github.com/mortise-dev/mortise/internal/machine/images"
)

// daemon is the containerd of a data directory.
type daemon struct {
	dir    string // DIR/containerd
	socket string
}

// at returns the containerd of a data directory, whether it runs or not.
func at(dataDir string) (daemon, error) {
	abs, err := filepath.Abs(dataDir)
	if err != nil {
		return daemon{}, fmt.Errorf("resolve data directory: %w", err)
	}
	d := daemon{dir: filepath.Join(abs, "containerd")}
	d.socket = filepath.Join(d.dir, "containerd.sock")
	// The kernel accepts 107 bytes, and containerd appends ".ttrpc" for its second socket.
	if len(d.socket)+len(".ttrpc") > 107 {
		sum := sha256.Sum256([]byte(abs))
		d.socket = fmt.Sprintf("/run/mortise-%x/containerd.sock", sum[:6])
	}
	return d, nil
}

func (d daemon) path(name string) string { return filepath.Join(d.dir, name) }

// cniConfDir is its own directory of network configurations.
func (d daemon) cniConfDir() string { return d.path("cni") }

// facts are what the configuration depends on.
type facts struct {
	dir, socket        string
	cniBin, cniConf    string
	snapshotter        string
	restrictOOMScore   bool
	disableApparmor    bool
	runc, sandboxImage string
	crun               string // empty: not installed
}

// config returns containerd's configuration. Versions from 1.6 on read version 2.
//
// A container's program binds ports below 1024 as any user, as with containerd from 2.0 on: stock ingress controllers do. A pod on the
// machine's network does not.
//
// If crun is installed, it gets a handler of its own, which a RuntimeClass can name.
func config(f facts) string {
	out := fmt.Sprintf(`# Written by mortise at each start of this containerd.
version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]

[grpc]
  address = %q

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  restrict_oom_score_adj = %t
  disable_apparmor = %t
  disable_tcp_service = true
  enable_cdi = true
  enable_unprivileged_ports = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q

  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = %q

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = %q
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = %q
        SystemdCgroup = false
`, filepath.Join(f.dir, "root"), filepath.Join(f.dir, "state"), f.socket, f.sandboxImage, f.restrictOOMScore,
		f.disableApparmor, f.cniBin, f.cniConf, filepath.Join(f.dir, "certs.d"), f.snapshotter, f.runc)
	if f.crun != "" {
		out += fmt.Sprintf(`
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
        BinaryName = %q
        SystemdCgroup = false
`, f.crun)
	}
	return out
}

// find determines the facts.
func (d daemon) find(o Options) (facts, error) {
	f := facts{
		dir: d.dir, socket: d.socket, cniBin: cniBinDir(), cniConf: o.CNIConfDir,
		runc: lookPath("runc"), crun: lookPath("crun"), sandboxImage: images.Pause, snapshotter: "overlayfs",
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return f, fmt.Errorf("read own capabilities: %w", err)
	}
	f.restrictOOMScore = !hasCapability(status, unix.CAP_SYS_RESOURCE)
	// AppArmor profiles can be loaded only with its parser; without it every container would fail to start.
	f.disableApparmor = lookPath("apparmor_parser") == ""
	if !overlayWorks(d.dir) {
		f.snapshotter = "native"
	}
	return f, nil
}

// hasCapability reports whether a bit is in the effective set of a /proc/PID/status.
func hasCapability(status []byte, bit uint) bool {
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("CapEff:")); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(string(rest)), 16, 64)
			return err == nil && set&(1<<bit) != 0
		}
	}
	return false
}

// overlayWorks mounts an overlay in dir, which is the only reliable test: it depends on the file system below.
func overlayWorks(dir string) bool {
	tmp, err := os.MkdirTemp(dir, "overlay-")
	if err != nil {
		return false
	}
	defer os.RemoveAll(tmp)
	for _, sub := range []string{"l", "u", "w", "m"} {
		if os.Mkdir(filepath.Join(tmp, sub), 0o700) != nil {
			return false
		}
	}
	m := filepath.Join(tmp, "m")
	opts := fmt.Sprintf("lowerdir=%s/l,upperdir=%s/u,workdir=%s/w", tmp, tmp, tmp)
	if unix.Mount("overlay", m, "overlay", 0, opts) != nil {
		return false
	}
	return unix.Unmount(m, 0) == nil
}

// start starts containerd in a session of its own and returns when CRI answers.
func (d daemon) start(ctx context.Context, o Options) error {
	f, err := d.find(o)
	if err != nil {
		return err
	}
	for _, dir := range []string{filepath.Dir(d.socket), o.CNIConfDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	if err := os.WriteFile(d.path("config.toml"), []byte(config(f)), 0o600); err != nil {
		return fmt.Errorf("write containerd's configuration: %w", err)
	}
	log, err := os.OpenFile(d.path("containerd.log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("open containerd's log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(lookPath("containerd"), "--config", d.path("config.toml"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Env = append(os.Environ(), "PATH="+path())
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with containerd or with this process
	pid := strconv.Itoa(cmd.Process.Pid)
	if err := os.WriteFile(d.path("containerd.pid"), []byte(pid+"\n"), 0o600); err != nil {
		return fmt.Errorf("write containerd's pid: %w", err)
	}

	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	// Another program's readiness gives no event to wait for: ask again until it answers.
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		err := Answers(ctx, d.socket)
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-ended:
			out, _ := os.ReadFile(d.path("containerd.log"))
			return fmt.Errorf("start containerd: it ended: %s (see %s)", lastLine(out), d.path("containerd.log"))
		case <-ctx.Done():
			return fmt.Errorf("start containerd: no answer at %s: %w (see %s)", d.socket, err, d.path("containerd.log"))
		}
	}
}

// path returns PATH with the directories of root's programs, where containerd looks for its shim.
func path() string {
	return os.Getenv("PATH") + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

// dial returns a connection to a CRI socket, which the first call opens.
func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix:"+strings.TrimPrefix(socket, "unix://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// Answers asks the runtime at a socket for its CRI version; nil means that it can run pods.
func Answers(ctx context.Context, socket string) error {
	if _, err := os.Stat(strings.TrimPrefix(socket, "unix://")); err != nil {
		return err
	}
	conn, err := dial(socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err = runtimeapi.NewRuntimeServiceClient(conn).Version(ctx, &runtimeapi.VersionRequest{})
	return err
}

// SandboxImage returns the image of the runtime's pod sandboxes; "" if the runtime does not report it.
func SandboxImage(ctx context.Context, socket string) (string, error) {
	conn, err := dial(socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	s, err := runtimeapi.NewRuntimeServiceClient(conn).Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return "", fmt.Errorf("read status of container runtime: %w", err)
	}
	c, err := parseConfig(s.GetInfo()["config"])
	if err != nil {
		return "", fmt.Errorf("read configuration of container runtime: %w", err)
	}
	return c.SandboxImage, nil
}

// CNIConfDir is the directory in which the runtime looks for network configurations; the usual one if it does not say.
func CNIConfDir(ctx context.Context, socket string) (string, error) {
	conn, err := dial(socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	s, err := runtimeapi.NewRuntimeServiceClient(conn).Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return "", fmt.Errorf("read status of container runtime: %w", err)
	}
	if c, err := parseConfig(s.GetInfo()["config"]); err == nil && filepath.IsAbs(c.CNI.ConfDir) {
		return filepath.Clean(c.CNI.ConfDir), nil
	}
	return cni.DefaultDir, nil // other runtimes than containerd describe themselves in their own ways
}

// runtimeConfig is what of containerd's configuration counts here.
type runtimeConfig struct {
	SandboxImage string
	CNI          struct{ ConfDir string }
}

// parseConfig reads the configuration that a runtime shows in its status; empty: it shows none.
func parseConfig(text string) (c runtimeConfig, err error) {
	if text != "" {
		err = json.Unmarshal([]byte(text), &c)
	}
	return c, err
}

// pid is the process that runs from this directory; os.ErrNotExist if none does.
func (d daemon) pid() (int, error) {
	data, err := os.ReadFile(d.path("containerd.pid"))
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("read containerd's pid: %w", err)
	}
	// Another process may have the number by now.
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !bytes.Contains(cmdline, []byte(d.path("config.toml"))) {
		return 0, os.ErrNotExist
	}
	return pid, nil
}

// PID returns the process ID of the data directory's containerd; os.ErrNotExist if none runs.
func PID(dataDir string) (int, error) {
	d, err := at(dataDir)
	if err != nil {
		return 0, err
	}
	return d.pid()
}

// Stop stops the data directory's containerd and waits until it has ended. Its pods keep running. It returns no error if no containerd
// runs.
func Stop(ctx context.Context, dataDir string) error {
	pid, err := PID(dataDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open containerd's process: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
		return fmt.Errorf("end containerd: %w", err)
	}
	wait := 10 * time.Second
	if deadline, ok := ctx.Deadline(); ok {
		wait = time.Until(deadline)
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(wait.Milliseconds()))
	if err == nil && n == 0 {
		err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end containerd: %w", err)
	}
	return nil
}

// Destroy stops the data directory's pods and its containerd, and removes its mounts, so that the directory can be removed. For tests and
// for cleaning up.
func Destroy(ctx context.Context, dataDir string) error {
	d, err := at(dataDir)
	if err != nil {
		return err
	}
	var errs []error
	if Answers(ctx, d.socket) == nil {
		errs = append(errs, d.removePods(ctx))
	}
	errs = append(errs, Stop(ctx, dataDir), unmountBelow(filepath.Dir(d.dir)), removeIdleBridge(ctx), cni.Remove(d.cniConfDir()))
	return errors.Join(errs...)
}

func (d daemon) removePods(ctx context.Context) error {
	conn, err := dial(d.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	c := runtimeapi.NewRuntimeServiceClient(conn)
	list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for _, pod := range list.GetItems() {
		if _, err := c.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod.GetId()}); err != nil {
			return fmt.Errorf("stop pod: %w", err)
		}
		if _, err := c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod.GetId()}); err != nil {
			return fmt.Errorf("remove pod: %w", err)
		}
	}
	return nil
}

// unmountBelow unmounts everything below dir, the newest mount first.
func unmountBelow(dir string) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	lines := strings.Split(string(data), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if f := strings.Fields(lines[i]); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			if err := unix.Unmount(f[4], unix.MNT_DETACH); err != nil {
				return fmt.Errorf("unmount %s: %w", f[4], err)
			}
		}
	}
	return nil
}
