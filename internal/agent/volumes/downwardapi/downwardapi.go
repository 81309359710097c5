// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package downwardapi implements downwardAPI volumes. The plug-in keeps no state.
package downwardapi

import (
	"context"
	"path"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/environ"
	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/atomicwriter"
)

// Name is the plug-in's name.
const Name = "kubernetes.io/downward-api"

type plugin struct{ host *volumes.Host }

// New makes the plug-in.
func New(host *volumes.Host) volumes.Plugin { return plugin{host} }

func (p plugin) Name() string { return Name }

func (p plugin) CanSupport(spec *volumes.Spec) bool { return spec.Volume.DownwardAPI != nil }

// SetUp writes the files of the fields if they have changed.
func (p plugin) SetUp(_ context.Context, spec *volumes.Spec) error {
	source := spec.Volume.DownwardAPI
	files, err := Files(p.host, spec, source.Items, source.DefaultMode)
	if err != nil {
		return err
	}
	return p.host.WriteFiles(spec, p.Path(spec), false, files)
}

func (p plugin) TearDown(_ context.Context, volume volumes.Reconstructed) error {
	return p.host.Remove(volume.Dir)
}

func (p plugin) Path(spec *volumes.Spec) string {
	return p.host.VolumeDir(spec.Pod.UID, Name, spec.Name())
}

// Attributes returns ReadOnly: the node rewrites the files as root, and a container that could write there could misdirect it
// (CVE-2017-1002102).
func (p plugin) Attributes(*volumes.Spec) volumes.Attributes {
	return volumes.Attributes{ReadOnly: true, Measure: volumes.MeasureFiles}
}

// Files returns the files of the pod's fields and of its containers' resources.
func Files(
	host *volumes.Host, spec *volumes.Spec, items []corev1.DownwardAPIVolumeFile, mode *int32,
) (map[string]atomicwriter.File, error) {
	out := map[string]atomicwriter.File{}
	var hostIPs []string
	if host.HostIPs != nil {
		hostIPs = host.HostIPs()
	}
	for _, item := range items {
		var value string
		var err error
		switch {
		case item.FieldRef != nil:
			value, err = environ.Field(spec.Pod, item.FieldRef.FieldPath, spec.PodIPs, hostIPs)
		case item.ResourceFieldRef != nil:
			value, err = environ.Resource(spec.Pod, nil, item.ResourceFieldRef, host.Allocatable)
		}
		if err != nil {
			return nil, err
		}
		out[path.Clean(item.Path)] = atomicwriter.File{Data: []byte(value), Mode: atomicwriter.Mode(item.Mode, mode)}
	}
	return out, nil
}
