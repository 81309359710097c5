// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"time"
)

// WithModule writes settings of the kernel whose files are there once a module is loaded, which it loads if they are not.
func WithModule(ctx context.Context, module string, write func() error) error {
	err := write()
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if out, failed := exec.CommandContext(ctx, "modprobe", module).CombinedOutput(); failed != nil {
		return errors.Join(err, fmt.Errorf("load %s: %w: %.200s", module, failed, out))
	}
	return write()
}
