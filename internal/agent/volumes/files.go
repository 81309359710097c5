// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes/atomicwriter"
)

// FilesPlugin implements Plugin for volumes whose files the node writes, such as configMap. It keeps no state.
type FilesPlugin struct {
	Host *Host
	// PluginName is what Name returns.
	PluginName string
	// Supports reports whether the plug-in supports the volume.
	Supports func(volume *corev1.Volume) bool
	// Files returns the files that the volume must have.
	Files func(ctx context.Context, spec *Spec) (map[string]atomicwriter.File, error)
	// Memory keeps the files in memory.
	Memory bool
}

// Name returns PluginName.
func (p FilesPlugin) Name() string { return p.PluginName }

// CanSupport asks Supports.
func (p FilesPlugin) CanSupport(spec *Spec) bool { return p.Supports(spec.Volume) }

// SetUp writes the files if they have changed.
func (p FilesPlugin) SetUp(ctx context.Context, spec *Spec) error {
	files, err := p.Files(ctx, spec)
	if err != nil {
		return err
	}
	return p.Host.WriteFiles(spec, p.Path(spec), p.Memory, files)
}

// TearDown removes the files.
func (p FilesPlugin) TearDown(_ context.Context, volume Reconstructed) error {
	return p.Host.Remove(volume.Dir)
}

// Path returns the volume's directory.
func (p FilesPlugin) Path(spec *Spec) string {
	return p.Host.VolumeDir(spec.Pod.UID, p.PluginName, spec.Name())
}

// Attributes returns ReadOnly: the node rewrites the files as root, and a container that could write there could misdirect it
// (CVE-2017-1002102).
func (p FilesPlugin) Attributes(*Spec) Attributes {
	return Attributes{ReadOnly: true, Measure: MeasureFiles}
}
