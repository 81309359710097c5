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

// New makes the plug-in.
func New(host *volumes.Host) volumes.Plugin {
	return volumes.FilesPlugin{
		Host: host, PluginName: Name, Supports: func(volume *corev1.Volume) bool { return volume.DownwardAPI != nil },
		Files: func(_ context.Context, spec *volumes.Spec) (map[string]atomicwriter.File, error) {
			return Files(host, spec, spec.Volume.DownwardAPI.Items, spec.Volume.DownwardAPI.DefaultMode)
		},
	}
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
