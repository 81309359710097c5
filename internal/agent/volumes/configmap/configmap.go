// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package configmap implements configMap volumes. The plug-in keeps no state.
package configmap

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/atomicwriter"
)

// Name is the plug-in's name.
const Name = "kubernetes.io/configmap"

// New makes the plug-in.
func New(host *volumes.Host) volumes.Plugin {
	return volumes.FilesPlugin{
		Host: host, PluginName: Name, Supports: func(volume *corev1.Volume) bool { return volume.ConfigMap != nil },
		Files: func(ctx context.Context, spec *volumes.Spec) (map[string]atomicwriter.File, error) {
			source := spec.Volume.ConfigMap
			return Files(ctx, host.Sources, spec.Pod.Namespace, atomicwriter.Selection{
				Name: source.Name, Items: source.Items, Mode: source.DefaultMode, Optional: source.Optional,
			})
		},
	}
}

// Files returns the files of a ConfigMap.
func Files(ctx context.Context, sources volumes.Sources, namespace string, s atomicwriter.Selection) (map[string]atomicwriter.File, error) {
	object, err := sources.ConfigMap(ctx, namespace, s.Name)
	if apierrors.IsNotFound(err) && s.MayMiss() {
		return map[string]atomicwriter.File{}, nil
	}
	if err != nil {
		return nil, err
	}
	data := make(map[string][]byte, len(object.Data)+len(object.BinaryData))
	for key, value := range object.Data {
		data[key] = []byte(value)
	}
	for key, value := range object.BinaryData {
		data[key] = value
	}
	return s.Files("config", data)
}
