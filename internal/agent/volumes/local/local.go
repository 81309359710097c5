// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package local implements local persistent volumes: directories of the node. The plug-in creates nothing and keeps no state.
package local

import (
	"context"
	"fmt"
	"os"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// Name is the plug-in's name.
const Name = "kubernetes.io/local-volume"

type plugin struct{}

// New makes the plug-in.
func New(*volumes.Host) volumes.Plugin { return plugin{} }

func (plugin) Name() string { return Name }

func (plugin) CanSupport(spec *volumes.Spec) bool {
	return spec.PersistentVolume != nil && spec.PersistentVolume.Spec.Local != nil
}

// SetUp checks that the directory exists.
func (p plugin) SetUp(_ context.Context, spec *volumes.Spec) error {
	if _, err := os.Stat(p.Path(spec)); err != nil {
		return fmt.Errorf("look at local volume: %w", err)
	}
	return nil
}

// TearDown does nothing: the data are the host's.
func (plugin) TearDown(context.Context, volumes.Reconstructed) error { return nil }

func (plugin) Path(spec *volumes.Spec) string { return spec.PersistentVolume.Spec.Local.Path }

func (plugin) Attributes(*volumes.Spec) volumes.Attributes {
	return volumes.Attributes{Measure: volumes.MeasureFileSystem}
}
