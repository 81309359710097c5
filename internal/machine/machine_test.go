// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/machine/images"
)

func TestHasCapability(t *testing.T) {
	for _, c := range []struct {
		status string
		want   bool
	}{
		{"Name:\tx\nCapEff:\t000001fffeffffff\n", false},
		{"CapEff:\t000001ffffffffff\n", true},
		{"CapEff:\tnonsense\n", false},
		{"", false},
	} {
		if got := hasCapability([]byte(c.status), 24); got != c.want {
			t.Errorf("%q: %v, want %v", c.status, got, c.want)
		}
	}
}

func FuzzHasCapability(f *testing.F) {
	f.Add([]byte("CapEff:\t000001fffeffffff\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if hasCapability(b, 24) && !bytes.Contains(b, []byte("CapEff:")) {
			t.Error("a capability out of nothing")
		}
	})
}

func TestConfigSaysTheFacts(t *testing.T) {
	got := config(facts{
		dir: "/d/containerd", socket: "/d/containerd/containerd.sock", cniBin: "/opt/cni/bin", cniConf: "/etc/cni/net.d",
		snapshotter: "native", restrictOOMScore: true, runc: "/usr/sbin/runc", sandboxImage: "mortise.local/pause:1",
	})
	for _, want := range []string{
		`root = "/d/containerd/root"`, `state = "/d/containerd/state"`, `address = "/d/containerd/containerd.sock"`,
		`sandbox_image = "mortise.local/pause:1"`, `restrict_oom_score_adj = true`, `bin_dir = "/opt/cni/bin"`,
		`conf_dir = "/etc/cni/net.d"`, `config_path = "/d/containerd/certs.d"`, `enable_unprivileged_ports = true`,
		`snapshotter = "native"`, `SystemdCgroup = false`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}

func TestCrunIsAHandlerWhereItIs(t *testing.T) {
	const handler = `.containerd.runtimes.crun]`
	if got := config(facts{runc: "/usr/sbin/runc"}); strings.Contains(got, handler) {
		t.Errorf("without crun:\n%s", got)
	}
	got := config(facts{runc: "/usr/sbin/runc", crun: "/usr/bin/crun"})
	for _, want := range []string{handler, `BinaryName = "/usr/bin/crun"`, `BinaryName = "/usr/sbin/runc"`, `default_runtime_name = "runc"`} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}

func TestSocketFitsTheKernel(t *testing.T) {
	short, err := at("/var/lib/mortise")
	if err != nil {
		t.Fatal(err)
	}
	if want := "/var/lib/mortise/containerd/containerd.sock"; short.socket != want {
		t.Errorf("socket %s, want %s", short.socket, want)
	}
	long, err := at("/" + strings.Repeat("x", 100))
	if err != nil {
		t.Fatal(err)
	}
	if len(long.socket) > 100 {
		t.Errorf("socket %s is too long", long.socket)
	}
}

func TestStepSpeaksOnlyWhenSlow(t *testing.T) {
	var b bytes.Buffer
	if err := step(&b, "nothing much", func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	if b.Len() != 0 {
		t.Errorf("said %q", b.String())
	}
}

func TestErrorsAreOneLine(t *testing.T) {
	if got := lastLine([]byte("Reading lists\nE: Unable to locate package x\n\n")); got != "E: Unable to locate package x" {
		t.Errorf("last line %q", got)
	}
	if p := lookPath("sh"); !filepath.IsAbs(p) {
		t.Errorf("sh is at %q", p)
	}
	if p := lookPath("no-such-program"); p != "" {
		t.Errorf("no-such-program is at %q", p)
	}
}

func TestMissingSocketIsAnError(t *testing.T) {
	_, err := Prepare(t.Context(), Options{DataDir: t.TempDir(), Socket: filepath.Join(t.TempDir(), "no.sock")})
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
	if _, err := Prepare(t.Context(), Options{}); err == nil {
		t.Error("no data directory is no error")
	}
}

// TestLacking is what is installed of what is missing, and what is missed.
func TestLacking(t *testing.T) {
	is := func(name string, present, optional bool) need {
		return need{name: name, pkg: name, present: func() bool { return present }, optional: optional}
	}
	runtime, without, nft, noNFT := is("runtime", true, false), is("runtime", false, false), is("nft", true, true), is("nft", false, true)
	for _, c := range []struct {
		name         string
		needs        []need
		allowed, apt bool
		want, says   string
	}{
		{"nothing is missing", []need{runtime, nft}, true, true, "", ""},
		{"all is", []need{without, noNFT}, true, true, "runtime, nft", ""},
		{"what is optional, and may be installed", []need{runtime, noNFT}, true, true, "nft", ""},
		{"what is optional, and may not", []need{runtime, noNFT}, false, true, "", ""},
		{"what is optional, without apt-get", []need{runtime, noNFT}, true, false, "", ""},
		{"what is required, and may not", []need{without, noNFT}, false, true, "", "not installed: runtime"},
		{"what is required, without apt-get", []need{without, noNFT}, true, false, "", "not installed: runtime; there is no apt-get"},
	} {
		got, err := lacking(c.needs, c.allowed, c.apt)
		said := ""
		if err != nil {
			said = err.Error()
		}
		if names(got) != c.want || (err == nil) != (c.says == "") || !strings.Contains(said, c.says) || strings.Contains(said, "nft") {
			t.Errorf("%s: %q, and %q; want %q and %q", c.name, names(got), said, c.want, c.says)
		}
	}
}

// TestPrepare makes a containerd of the test's own, runs a pod in it, leaves and finds it again.
func TestPrepare(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: a real containerd needs root")
	}
	for _, n := range needs() {
		if !n.present() {
			t.Skipf("SKIPPED: %s is not installed; make up installs it", n.name)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dir := t.TempDir()
	o := Options{DataDir: dir, Private: true, NoInstall: true, CNIConfDir: filepath.Join(dir, "cni"), Progress: t.Output()}
	socket, err := Prepare(ctx, o)
	t.Cleanup(func() {
		if err := Destroy(context.Background(), dir); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	pid, err := PID(dir)
	if err != nil {
		t.Fatal(err)
	}

	r, err := images.Open(socket)
	if err != nil {
		t.Fatal(err)
	}
	have, err := r.Has(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range images.Names() {
		if !slices.Contains(have, n) {
			t.Errorf("no image %s", n)
		}
	}

	conn, err := dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := runtimeapi.NewRuntimeServiceClient(conn)
	pod := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "default", Uid: "u"},
		LogDirectory: filepath.Join(dir, "logs"),
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE},
		}},
	}
	sandbox, err := c.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod})
	if err != nil {
		t.Fatal(err)
	}
	created, err := c.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandbox.PodSandboxId, SandboxConfig: pod,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c"},
			Image:    &runtimeapi.ImageSpec{Image: images.Busybox},
			Command:  []string{"sleep", "1000"},
			LogPath:  "c.log",
			Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE},
			}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: created.ContainerId}); err != nil {
		t.Fatal(err)
	}
	out, err := c.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: created.ContainerId, Cmd: []string{"echo", "hello"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(out.Stdout); got != "hello\n" {
		t.Errorf("exec said %q", got)
	}

	again, err := Prepare(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	pid2, err := PID(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]any{socket, pid}, []any{again, pid2}); diff != "" {
		t.Errorf("the second time: %s", diff)
	}

	// A containerd that ended takes nothing with it.
	if err := Stop(ctx, dir); err != nil {
		t.Fatal(err)
	}
	if _, err := Prepare(ctx, o); err != nil {
		t.Fatal(err)
	}
	s, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: created.ContainerId})
	if err != nil {
		t.Fatal(err)
	}
	if s.Status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("container is %s after a restart of containerd", s.Status.State)
	}
}
