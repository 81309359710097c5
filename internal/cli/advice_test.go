// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
)

func TestStartSaysWhatToDo(t *testing.T) {
	for text, c := range map[string]struct {
		err  error
		want string
	}{
		"a port":  {errors.New("listen on 127.0.0.1:6443: the port is taken by another process"), "--listen 127.0.0.1:0"},
		"denied":  {fmt.Errorf("make data directory: %w", fs.ErrPermission), "as root"},
		"unknown": {errors.New("run controllers: ended"), "mortise doctor"},
	} {
		var errs bytes.Buffer
		if code := failStart(Program{Err: &errs}, c.err); code != 1 {
			t.Errorf("%s: exit code %d", text, code)
		}
		lines := strings.Split(strings.TrimSpace(errs.String()), "\n")
		if len(lines) != 2 || lines[0] != "mortise: "+c.err.Error() || !strings.HasPrefix(lines[1], "mortise: what to do: ") ||
			!strings.Contains(lines[1], c.want) {
			t.Errorf("%s: %q", text, lines)
		}
	}
}
