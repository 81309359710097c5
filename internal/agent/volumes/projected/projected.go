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
	host        *volumes.Host
	tokens      podCache[tokenKey, cachedToken]
	credentials podCache[credentialKey, *credential]
}

var _ volumes.Renewer = &plugin{}

// New makes the plug-in.
func New(host *volumes.Host) volumes.Plugin { return &plugin{host: host} }

func (p *plugin) Name() string { return Name }

func (p *plugin) CanSupport(spec *volumes.Spec) bool { return spec.Volume.Projected != nil }

// SetUp writes the files of all sources to memory, if they have changed.
func (p *plugin) SetUp(ctx context.Context, spec *volumes.Spec) error {
	files, err := p.files(ctx, spec)
	if err != nil {
		return err
	}
	return p.host.WriteFiles(spec, p.Path(spec), true, files)
}

func (p *plugin) TearDown(_ context.Context, volume volumes.Reconstructed) error {
	return p.host.Remove(volume.Dir)
}

func (p *plugin) Path(spec *volumes.Spec) string {
	return p.host.VolumeDir(spec.Pod.UID, Name, spec.Name())
}

// Attributes returns ReadOnly: the node rewrites the files as root, and a container that could write there could misdirect it
// (CVE-2017-1002102).
func (p *plugin) Attributes(*volumes.Spec) volumes.Attributes {
	return volumes.Attributes{ReadOnly: true, Measure: volumes.MeasureFiles}
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
		return secret.Files(ctx, p.host.Sources, pod.Namespace, selection)
	case source.ConfigMap != nil:
		s := source.ConfigMap
		selection := atomicwriter.Selection{Name: s.Name, Items: s.Items, Mode: mode, Optional: s.Optional}
		return configmap.Files(ctx, p.host.Sources, pod.Namespace, selection)
	case source.DownwardAPI != nil:
		return downwardapi.Files(p.host, spec, source.DownwardAPI.Items, mode)
	case source.ServiceAccountToken != nil:
		return p.tokenFile(ctx, pod, source.ServiceAccountToken, mode)
	case source.ClusterTrustBundle != nil:
		return p.trustFile(ctx, pod, source.ClusterTrustBundle, mode)
	case source.PodCertificate != nil:
		return p.certificateFiles(ctx, pod, credentialKey{spec.Volume.Name, index}, source.PodCertificate, mode)
	}
	return nil, fmt.Errorf("projected volume %s has a source that this node does not support", spec.Volume.Name)
}
