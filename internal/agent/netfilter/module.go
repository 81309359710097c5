// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/mortise-dev/mortise/internal/agent/program"
)

// WithModule writes kernel settings. If their files are missing, it loads the kernel module that provides them.
func WithModule(ctx context.Context, module string, write func() error) error {
	err := write()
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	load := program.Command{Name: "modprobe", Args: []string{module}, Time: 10 * time.Second}
	if _, failed := load.Run(ctx); failed != nil {
		return errors.Join(err, fmt.Errorf("load %s: %w", module, failed))
	}
	return write()
}
