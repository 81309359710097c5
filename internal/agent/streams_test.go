// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
	"github.com/mortise-dev/mortise/internal/agent/static"
)

// TestStreamsAreTheRuntimesOwn: the node sends streams to no other machine, whatever the runtime answers.
func TestStreamsAreTheRuntimesOwn(t *testing.T) {
	for text, want := range map[string]bool{
		"http://127.0.0.1:4711/exec/token": true,
		"http://127.1.2.3:4711/exec/token": true,
		"https://[::1]:4711/attach/token":  true,
		"http://localhost:4711/exec/token": true,

		"http://192.0.2.1:4711/exec/token":           false,
		"http://[2001:db8::1]:4711/exec/token":       false,
		"http://169.254.169.254/latest/meta-data":    false,
		"http://127.0.0.1.example.com/exec/token":    false,
		"http://localhost.example.com/exec/token":    false,
		"http://127.0.0.1@192.0.2.1:80/exec/token":   false,
		"http://0.0.0.0:4711/exec/token":             false,
		"http:///exec/token":                         false,
		"//127.0.0.1:4711/exec/token":                false,
		"ftp://127.0.0.1:4711/exec/token":            false,
		"/exec/token":                                false,
		"":                                           false,
		"http://127.0.0.1:4711\x00.example.com/exec": false,
	} {
		if u, err := ownStream(text); (err == nil) != want || err == nil && u.String() != text {
			t.Errorf("%q: %v, %v", text, u, err)
		}
	}
}

// TestLogsAreOnlyThoseOfTheContainer: a log that the runtime has elsewhere is not read.
func TestLogsAreOnlyThoseOfTheContainer(t *testing.T) {
	dir := t.TempDir()
	n := &node{config: runconfig.Node{LogDir: dir}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u1"}}
	own := filepath.Join(dir, "default_p_u1", "c")
	for path, want := range map[string]bool{
		own + "/0.log":                    true,
		own + "/0.log.20260102-030405":    true,
		own:                               false,
		own + "/../d/0.log":               false,
		own + "/../../other_p_u2/c/0.log": false,
		own + "d/0.log":                   false,
		filepath.Join(dir, "default_q_u2/c/0.log"): false,
		"/etc/shadow": false,
		"c/0.log":     false,
		"":            false,
	} {
		if got := n.ownLog(pod, &podstate.Container{Name: "c", LogPath: path}); got != want {
			t.Errorf("%q: %t", path, got)
		}
	}
	for _, name := range []string{"..", "../..", "/", ""} {
		if n.ownLog(pod, &podstate.Container{Name: name, LogPath: filepath.Join(dir, "default_p_u1", "0.log")}) {
			t.Errorf("a container named %q has a log", name)
		}
	}
}

// TestPodIsReplacedUnnoticed: a pod that was deleted, and made again, while the node did not hear the API server ends, and who asks for the
// name reaches the new one.
func TestPodIsReplacedUnnoticed(t *testing.T) {
	named := func(uid types.UID) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: uid}}
	}
	n := &node{workers: map[types.UID]*worker{}, static: static.New(static.Config{Kubelet: Effective(nil)})}
	for _, uid := range []types.UID{"u1", "u2"} {
		n.workers[uid] = &worker{n: n, uid: uid, wakes: make(chan struct{}, 1)}
	}
	n.podTold(named("u1"))
	n.podChanged(named("u1"), named("u1"))
	if p, err := n.find(podspec.Target{Namespace: "default", Pod: "p", UID: "u1"}); err != nil || p.UID != "u1" {
		t.Fatalf("found %v, %v", p, err)
	}
	n.podChanged(named("u1"), named("u2"))
	if !n.workers["u1"].gone {
		t.Error("the old pod goes on")
	}
	if p, err := n.find(podspec.Target{Namespace: "default", Pod: "p"}); err != nil || p.UID != "u2" {
		t.Errorf("by name: found %v, %v", p, err)
	}
	if p, err := n.find(podspec.Target{Namespace: "default", Pod: "p", UID: "u1"}); err == nil {
		t.Errorf("by the old UID: found %v", p)
	}
}
