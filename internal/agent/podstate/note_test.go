// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podstate

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// The hashes are what kubelet 1.37 has for the same containers: a change of ours would make
// each of its containers start again when we adopt it.
func TestHashIsKubelets(t *testing.T) {
	for want, c := range map[uint64]*corev1.Container{
		0x8e45cbd0: {Name: "test_container", Image: "foo/image:v1", Args: []string{"/bin/sh"}},
		0x11a6d6d6: {Name: "foo", Image: "bar"},
	} {
		if got := Hash(c); got != want {
			t.Errorf("hash of %s %s is %#x, want %#x", c.Name, c.Image, got, want)
		}
	}
}

func TestNoteReadsBack(t *testing.T) {
	pod := &corev1.Pod{}
	pod.Spec.TerminationGracePeriodSeconds = new(int64(7))
	pod.DeletionGracePeriodSeconds = new(int64(3))
	c := &corev1.Container{
		Name: "c", Image: "i", TerminationMessagePath: "/dev/m", TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		Ports:     []corev1.ContainerPort{{Name: "http", ContainerPort: 80}},
		Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}},
	}
	text, err := ContainerAnnotations(pod, c, 4)
	if err != nil {
		t.Fatal(err)
	}
	want := Note{
		Hash: Hash(c), RestartCount: 4, MessagePath: "/dev/m", MessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		PreStop: c.Lifecycle.PreStop, Ports: c.Ports, TerminationGrace: new(int64(7)), DeletionGrace: new(int64(3)),
	}
	if diff := cmp.Diff(want, ReadNote(text)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func FuzzReadNote(f *testing.F) {
	f.Add("1f", "3", `{"exec":{}}`, `[{"containerPort":1}]`, "30")
	f.Fuzz(func(t *testing.T, hash, count, stop, ports, grace string) {
		note := ReadNote(map[string]string{noteHash: hash, noteRestartCount: count, notePreStop: stop, notePorts: ports, noteGrace: grace})
		if note.PreStop != nil && stop == "" {
			t.Error("a handler from nothing")
		}
	})
}
