// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// shared is a runtime with sandboxes of several nodes, by UID of their pods.
type shared struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	uids    []string
	stopped []string
}

func (s *shared) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	out := &runtimeapi.ListPodSandboxResponse{}
	for _, uid := range s.uids {
		out.Items = append(out.Items, &runtimeapi.PodSandbox{
			Id: "sandbox-" + uid, Labels: map[string]string{podUID: uid},
			Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "default", Name: "pod-" + uid},
		})
	}
	return out, nil
}

func (s *shared) StopPodSandbox(_ context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	s.stopped = append(s.stopped, "stop "+r.PodSandboxId)
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (s *shared) RemovePodSandbox(_ context.Context, r *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	s.stopped = append(s.stopped, "remove "+r.PodSandboxId)
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// TestPodsOfOthersStay: in a runtime that others use too, only pods that the node has a directory for are removed.
func TestPodsOfOthersStay(t *testing.T) {
	dir := t.TempDir()
	pods := filepath.Join(dir, "pods")
	if err := os.MkdirAll(filepath.Join(pods, "ours"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(pods, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	runtime := &shared{uids: []string{"theirs", "ours", "", "..", ".", "../pods/ours", "file"}}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, runtime)
	go server.Serve(l) //nolint:errcheck // it ends with Stop
	defer server.Stop()
	removed, err := removePodsOf(t.Context(), socket, pods)
	if err != nil || !slices.Equal(removed, []string{"default/pod-ours"}) {
		t.Errorf("removed %q, %v", removed, err)
	}
	if want := []string{"stop sandbox-ours", "remove sandbox-ours"}; !slices.Equal(runtime.stopped, want) {
		t.Errorf("the runtime was asked to %q, want %q", runtime.stopped, want)
	}
}

// TestLogsOfOthersStay: logs are removed of pods that the node has a directory for.
func TestLogsOfOthersStay(t *testing.T) {
	dir := t.TempDir()
	pods, logs := filepath.Join(dir, "pods"), filepath.Join(dir, "logs")
	for _, path := range []string{
		"pods/ours", "pods/late", "logs/default_web_ours/web", "logs/default_web_theirs/web", "logs/ours", "logs/a_ours",
	} {
		if err := os.MkdirAll(filepath.Join(dir, path), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := removeLogs(logs, pods)
	if err != nil || !slices.Equal(removed, []string{filepath.Join(logs, "default_web_ours")}) {
		t.Errorf("removed %q, %v", removed, err)
	}
	if left, err := os.ReadDir(logs); err != nil || len(left) != 3 {
		t.Errorf("left %v, %v", left, err)
	}
	if removed, err := removeLogs(filepath.Join(dir, "none"), filepath.Join(dir, "none")); err != nil || removed != nil {
		t.Errorf("without logs: %q, %v", removed, err)
	}
}
