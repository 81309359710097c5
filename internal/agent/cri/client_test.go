// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/cri/fakecri"
)

// TestLists: what a runtime has is listed one by one where it can, so that no message is too large, and whole where it cannot.
func TestLists(t *testing.T) {
	for _, streams := range []bool{false, true} {
		r := fakecri.New(t.TempDir(), time.Now, "a:1", "b:1", "c:1")
		if streams {
			r.Streams()
		}
		if err := r.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Stop)
		ctx := cri.Quiet(t.Context())
		c, err := cri.Dial(ctx, r.Socket())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(ctx) })
		for _, name := range []string{"p", "q"} {
			config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "n", Uid: "uid-" + name}}
			if _, err := c.Runtime.RunPodSandbox(ctx, config, ""); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // the second time it is known what the runtime can
			sandboxes, err := c.Runtime.ListPodSandbox(ctx, nil)
			if err != nil || len(sandboxes) != 2 {
				t.Errorf("streams %v: sandboxes %v, %v", streams, sandboxes, err)
			}
			containers, err := c.Runtime.ListContainers(ctx, nil)
			if err != nil || len(containers) != 0 {
				t.Errorf("streams %v: containers %v, %v", streams, containers, err)
			}
			images, err := c.Images.ListImages(ctx, nil)
			if err != nil || len(images) != 3 {
				t.Errorf("streams %v: images %v, %v", streams, images, err)
			}
			if stats, err := c.Runtime.ListContainerStats(ctx, nil); err != nil || len(stats) != 0 {
				t.Errorf("streams %v: stats %v, %v", streams, stats, err)
			}
		}
		if got, want := r.Streamed(), map[bool]int{false: 0, true: 8}[streams]; got != want {
			t.Errorf("streams %v: %d lists came one by one, want %d", streams, got, want)
		}
	}
}
