// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package image implements image volumes. The container runtime makes and mounts them; the agent pulls the image. The plug-in keeps no
// state.
package image

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// Name is the plug-in's name.
const Name = "kubernetes.io/image"

type plugin struct{}

var _ volumes.RuntimeMounter = plugin{}

// New makes the plug-in.
func New(*volumes.Host) volumes.Plugin { return plugin{} }

func (plugin) Name() string { return Name }

func (plugin) CanSupport(spec *volumes.Spec) bool { return spec.Volume.Image != nil }

// SetUp does nothing: the runtime mounts the image.
func (plugin) SetUp(context.Context, *volumes.Spec) error { return nil }

// TearDown does nothing: the runtime unmounts the image.
func (plugin) TearDown(context.Context, volumes.Reconstructed) error { return nil }

// Path returns nothing: only the runtime knows the path of the image.
func (plugin) Path(*volumes.Spec) string { return "" }

func (plugin) Attributes(*volumes.Spec) volumes.Attributes { return volumes.Attributes{ReadOnly: true} }

// RuntimeMount returns the image and the mounted part of it.
func (plugin) RuntimeMount(spec *volumes.Spec, image *runtimeapi.ImageSpec, subPath string) (*runtimeapi.Mount, error) {
	switch {
	case image == nil:
		return nil, fmt.Errorf("volume %q has no image yet", spec.Volume.Name)
	case filepath.IsAbs(subPath):
		return nil, fmt.Errorf("error SubPath `%s` must not be an absolute path", subPath) // upstream's words
	case slices.Contains(strings.Split(filepath.ToSlash(subPath), "/"), ".."):
		return nil, fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", subPath) // upstream's words
	}
	return &runtimeapi.Mount{Image: image, ImageSubPath: subPath}, nil
}
