// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/store"
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

// Errors of other commands say what to do where that is known, and nothing where it is not.
func TestErrorsSayWhatToDo(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for text, c := range map[string]struct {
		err  error
		want string
	}{
		"a store is there":  {fmt.Errorf("restore store: write /d/store: a store is there: %w", fs.ErrExist), "mv the directory store"},
		"no kubeconfig":     {errors.New("read kubeconfig: stat /none: no such file or directory"), "--kubeconfig FILE"},
		"another cluster's": {errors.New("get extensions: x509: certificate signed by unknown authority"), "of another cluster"},
		"not signed in":     {fmt.Errorf("list tokens: %w", apierrors.NewUnauthorized("no")), "does not know these credentials"},
		"forbidden":         {fmt.Errorf("list tokens: %w", apierrors.NewForbidden(pods, "p", nil)), "auth can-i"},
		"in use":            {fmt.Errorf("check store: %w", store.ErrLocked), "stop the server that uses it"},
		"corrupt":           {fmt.Errorf("check store: %w", store.ErrCorrupt), "restore a backup"},
		"refused":           {fmt.Errorf("dial: %w", syscall.ECONNREFUSED), "start the server"},
		"other":             {errors.New("no rule"), ""},
	} {
		var errs bytes.Buffer
		if code := fail(Program{Err: &errs}, c.err); code != 1 {
			t.Errorf("%s: exit code %d", text, code)
		}
		first, second, has := strings.Cut(strings.TrimSpace(errs.String()), "\n")
		if first != "mortise: "+c.err.Error() || has != (c.want != "") || !strings.Contains(second, c.want) {
			t.Errorf("%s: %q", text, errs.String())
		}
	}
}
