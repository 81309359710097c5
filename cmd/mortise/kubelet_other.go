// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"context"
	"errors"
)

// runKubelet returns an error: containers need Linux.
func runKubelet(context.Context, []string) error {
	return errors.New("kubelet: nodes with containers need Linux")
}
