// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package stats

// kernelRelease returns nothing: only Linux runs pods in containers.
func kernelRelease() string { return "" }
