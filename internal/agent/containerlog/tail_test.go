// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containerlog

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cri-client/pkg/logs"
)

// TestTail compares with what kubelet reads of the same log.
func TestTail(t *testing.T) {
	const at = "2026-01-02T03:04:05.678901234Z "
	long := strings.Repeat("x", 16384)
	for name, log := range map[string]string{
		"empty":                  "",
		"whole lines":            at + "stdout F one\n" + at + "stderr F two\n",
		"no newline":             at + "stdout P DONE\n",
		"parts":                  at + "stdout P one\n" + at + "stdout P two\n" + at + "stdout F three\n",
		"parts with more tags":   at + "stdout P:X one\n" + at + "stdout F:X two\n",
		"empty lines":            at + "stdout F \n" + at + "stdout F \n" + at + "stdout F end\n",
		"spaces":                 at + "stdout F  one  two \n",
		"a line that is cut":     at + "stdout F one\n" + at + "stdout F tw",
		"lines that are none":    at + "stdout F one\nbut not this\n" + at + "elsewhere F nor this\n" + at + "stdout F two\n",
		"more lines than 80":     strings.Repeat(at+"stdout F l\n", 70) + strings.Repeat(at+"stderr F m\n", 70),
		"more than 2048 bytes":   strings.Repeat(at+"stdout F "+strings.Repeat("y", 99)+"\n", 40),
		"long parts":             strings.Repeat(at+"stdout P "+long+"\n", 5) + at + "stdout F end\n",
		"a long line at the end": strings.Repeat(at+"stdout F "+long+"\n", 5),
		"a line without bound":   at + "stdout F " + strings.Repeat(long, 5) + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "0.log")
			if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
				t.Fatal(err)
			}
			var logged bytes.Buffer
			lines := int64(tailLines)
			if err := logs.ReadLogs(t.Context(), path, "", &logs.LogOptions{TailLines: &lines}, nil, &logged, &logged); err != nil {
				t.Fatal(err)
			}
			want := logged.String()
			want = want[max(len(want)-tailBytes, 0):]
			if got, err := Tail(path); err != nil || got != want {
				t.Errorf("the end of the log is %.60q, %v; kubelet reads %.60q", got, err, want)
			}
		})
	}
}
