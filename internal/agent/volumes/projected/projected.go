// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package projected implements projected volumes: Secrets, ConfigMaps, fields of the pod, tokens, trust bundles and
// certificates in one volume, in memory.
//
// Tokens and the keys of certificates stay in the process's memory until they must be renewed; a new process requests new ones.
//
//	token.go           service account tokens
//	podcertificate.go  keys and certificates
//	trustbundle.go     trust anchors
package projected

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/atomicwriter"
	"github.com/mortise-dev/mortise/internal/agent/volumes/configmap"
	"github.com/mortise-dev/mortise/internal/agent/volumes/downwardapi"
	"github.com/mortise-dev/mortise/internal/agent/volumes/secret"
)

// Name is the plug-in's name.
const Name = "kubernetes.io/projected"

type plugin struct {
	volumes.FilesPlugin
	tokens      podCache[tokenKey, cachedToken]
	credentials podCache[credentialKey, *credential]
}

var _ volumes.Renewer = &plugin{}

// New makes the plug-in.
func New(host *volumes.Host) volumes.Plugin {
	p := &plugin{}
	p.FilesPlugin = volumes.FilesPlugin{
		Host: host, PluginName: Name, Supports: func(volume *corev1.Volume) bool { return volume.Projected != nil }, Files: p.files,
		Memory: true,
	}
	return p
}

// NextRenewal returns when the first of the pod's tokens and certificates must be renewed or checked; zero without any.
func (p *plugin) NextRenewal(pod types.UID) time.Time {
	certificates := p.credentials.soonest(pod, (*credential).next)
	return sooner(certificates, p.tokens.soonest(pod, func(t cachedToken) time.Time { return t.renewAt }))
}

// ForgetPod drops the pod's tokens and keys.
func (p *plugin) ForgetPod(pod types.UID) {
	p.tokens.forget(pod)
	p.credentials.forget(pod)
}

// files returns the files of all sources; one error has all problems.
func (p *plugin) files(ctx context.Context, spec *volumes.Spec) (map[string]atomicwriter.File, error) {
	out := map[string]atomicwriter.File{}
	var failed []error
	for i := range spec.Volume.Projected.Sources {
		files, err := p.source(ctx, spec, i)
		if err != nil {
			failed = append(failed, err)
		}
		maps.Copy(out, files)
	}
	return out, utilerrors.NewAggregate(failed)
}

// source returns the files of one source.
func (p *plugin) source(ctx context.Context, spec *volumes.Spec, index int) (map[string]atomicwriter.File, error) {
	pod, mode := spec.Pod, spec.Volume.Projected.DefaultMode
	switch source := spec.Volume.Projected.Sources[index]; {
	case source.Secret != nil:
		s := source.Secret
		selection := atomicwriter.Selection{Name: s.Name, Items: s.Items, Mode: mode, Optional: s.Optional}
		return secret.Files(ctx, p.Host.Sources, pod.Namespace, selection)
	case source.ConfigMap != nil:
		s := source.ConfigMap
		selection := atomicwriter.Selection{Name: s.Name, Items: s.Items, Mode: mode, Optional: s.Optional}
		return configmap.Files(ctx, p.Host.Sources, pod.Namespace, selection)
	case source.DownwardAPI != nil:
		return downwardapi.Files(p.Host, spec, source.DownwardAPI.Items, mode)
	case source.ServiceAccountToken != nil:
		return p.tokenFile(ctx, pod, source.ServiceAccountToken, mode)
	case source.ClusterTrustBundle != nil:
		return p.trustFile(ctx, pod, source.ClusterTrustBundle, mode)
	case source.PodCertificate != nil:
		return p.certificateFiles(ctx, pod, credentialKey{spec.Volume.Name, index}, source.PodCertificate, mode)
	}
	return nil, fmt.Errorf("projected volume %s has a source that this node does not support", spec.Volume.Name)
}
