// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/cni"
)

// holdClaim is the variable that has a process hold the claim of the address in it, until it is killed.
const holdClaim = "MORTISE_TEST_CLAIM"

// TestClaimEndsWithItsProcess: a second node is refused, by an error that names the process of the first, until that ends, even by SIGKILL.
func TestClaimEndsWithItsProcess(t *testing.T) {
	if address := os.Getenv(holdClaim); address != "" {
		_, err := claim(t.Context(), address)
		fmt.Println("claimed:", err)
		select {}
	}
	address := fmt.Sprintf("@mortise-test-%d", os.Getpid())
	first := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestClaimEndsWithItsProcess$")
	first.Env = append(os.Environ(), holdClaim+"="+address)
	out, err := first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "claimed: <nil>\n" {
		t.Fatalf("the first says %q, %v", line, err)
	}
	_, err = claim(t.Context(), address)
	var taken *ClaimError
	if !errors.As(err, &taken) || taken.PID != first.Process.Pid || !strings.Contains(taken.Command, "TestClaimEndsWithItsProcess") {
		t.Errorf("while the first runs: %#v", err)
	}
	if want := fmt.Sprintf("another Mortise node with real containers runs on this machine (process %d: ", first.Process.Pid); err == nil ||
		!strings.HasPrefix(err.Error(), want) {
		t.Errorf("the error is %q, want %q", err, want)
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait() // it was killed
	again, err := claim(t.Context(), address)
	if err != nil {
		t.Fatalf("after the first was killed: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	third, err := claim(t.Context(), address)
	if err != nil {
		t.Fatalf("after the second has ended: %v", err)
	}
	third.Close()
}

func TestClaimErrorWithoutItsProcess(t *testing.T) {
	for e, want := range map[*ClaimError]string{
		{}:                       "on this machine: two",
		{Command: "x"}:           "on this machine: two",
		{PID: 7}:                 "on this machine (process 7): two",
		{PID: 7, Command: "a b"}: "on this machine (process 7: a b): two",
	} {
		if !strings.Contains(e.Error(), want) {
			t.Errorf("%+v: %s", e, e)
		}
	}
}

// describer is a runtime that shows a configuration.
type describer struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	config string
}

func (d describer) Status(_ context.Context, r *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	if !r.Verbose {
		return &runtimeapi.StatusResponse{}, nil
	}
	return &runtimeapi.StatusResponse{Info: map[string]string{"config": d.config}}, nil
}

// TestCNIConfDirIsTheRuntimes: the node writes its network configuration where the runtime looks for it.
func TestCNIConfDirIsTheRuntimes(t *testing.T) {
	for config, want := range map[string]string{
		`{"cni":{"binDir":"/opt/cni/bin","confDir":"/data/containerd/cni"},"sandboxImage":"p"}`: "/data/containerd/cni",
		`{"cni":{"confDir":"/data//cni/"}}`:                                                     "/data/cni",
		`{"cni":{"confDir":"relative"}}`:                                                        cni.DefaultDir,
		`{"cni":{}}`:                                                                            cni.DefaultDir,
		``:                                                                                      cni.DefaultDir,
		"[crio]\n  root = \"/var/lib/containers\"\n":                                            cni.DefaultDir,
	} {
		socket := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		runtimeapi.RegisterRuntimeServiceServer(s, describer{config: config})
		go s.Serve(l) //nolint:errcheck // it ends with Stop
		if got, err := CNIConfDir(t.Context(), socket); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", config, got, err, want)
		}
		s.Stop()
	}
}

// TestContainerdHasItsOwnNetworks: the containerd of a data directory looks for networks below it, whatever others have in /etc/cni/net.d.
func TestContainerdHasItsOwnNetworks(t *testing.T) {
	d, err := at("/var/lib/mortise")
	if err != nil {
		t.Fatal(err)
	}
	f := facts{dir: d.dir, cniConf: d.cniConfDir()}
	if want := `conf_dir = "/var/lib/mortise/containerd/cni"`; !strings.Contains(config(f), want+"\n") {
		t.Errorf("no %s in\n%s", want, config(f))
	}
}
