// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package configmap implements configMap volumes. The plug-in keeps no state.
package configmap

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/atomicwriter"
)

// Name is the plug-in's name.
const Name = "kubernetes.io/configmap"

type plugin struct{ host *volumes.Host }

// New makes the plug-in.
func New(host *volumes.Host) volumes.Plugin { return plugin{host} }

func (p plugin) Name() string { return Name }

func (p plugin) CanSupport(spec *volumes.Spec) bool { return spec.Volume.ConfigMap != nil }

// SetUp writes the files of the ConfigMap if they have changed.
func (p plugin) SetUp(ctx context.Context, spec *volumes.Spec) error {
	source := spec.Volume.ConfigMap
	files, err := Files(ctx, p.host.Sources, spec.Pod.Namespace, atomicwriter.Selection{
		Name: source.Name, Items: source.Items, Mode: source.DefaultMode, Optional: source.Optional,
	})
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
