// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package runconfig

import (
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestLogsAreOnlyThoseOfTheContainer: a log that the runtime has elsewhere is not read.
func TestLogsAreOnlyThoseOfTheContainer(t *testing.T) {
	dir := t.TempDir()
	n := &Node{LogDir: dir}
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
		if got := n.OwnLog(pod, "c", path); got != want {
			t.Errorf("%q: %t", path, got)
		}
	}
	for _, name := range []string{"..", "../..", "/", ""} {
		if n.OwnLog(pod, name, filepath.Join(dir, "default_p_u1", "0.log")) {
			t.Errorf("a container named %q has a log", name)
		}
	}
}
