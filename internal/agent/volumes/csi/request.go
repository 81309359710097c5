// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
)

// able is what a driver says that it can.
type able struct{ stage, expand, measure, group, multiWriter bool }

// capabilities asks a driver what it can.
func capabilities(ctx context.Context, node csipb.NodeClient) (able, error) {
	answer, err := node.NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
	if err != nil {
		return able{}, err
	}
	var out able
	for _, c := range answer.GetCapabilities() {
		switch c.GetRpc().GetType() {
		case csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME:
			out.stage = true
		case csipb.NodeServiceCapability_RPC_EXPAND_VOLUME:
			out.expand = true
		case csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS:
			out.measure = true
		case csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP:
			out.group = true
		case csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER:
			out.multiWriter = true
		}
	}
	return out, nil
}

// final reports whether an error says that the driver is done with the call. After any other error the call may still be in progress, or
// have succeeded.
func final(err error) bool {
	s, ok := status.FromError(err)
	if !ok {
		return false
	}
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	return true
}

// accessMode returns the mode in the driver's words.
func (v *volume) accessMode() csipb.VolumeCapability_AccessMode_Mode {
	switch v.mode {
	case corev1.ReadWriteOnce:
		if v.able.multiWriter {
			return csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		}
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	case corev1.ReadWriteOncePod:
		if v.able.multiWriter {
			return csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		}
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	case corev1.ReadOnlyMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case corev1.ReadWriteMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	}
	return csipb.VolumeCapability_AccessMode_UNKNOWN
}

// capability returns how the volume is used. A driver that can gets the pod's group.
func (v *volume) capability() *csipb.VolumeCapability {
	out := &csipb.VolumeCapability{AccessMode: &csipb.VolumeCapability_AccessMode{Mode: v.accessMode()}}
	if v.block {
		out.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
		return out
	}
	mount := &csipb.VolumeCapability_MountVolume{FsType: v.fsType, MountFlags: withLabel(v.options, v.label)}
	if group := v.spec.FSGroup(); group != nil && v.able.group {
		mount.VolumeMountGroup = strconv.FormatInt(*group, 10)
	}
	out.AccessType = &csipb.VolumeCapability_Mount{Mount: mount}
	return out
}

// publishRequest makes the request that publishes the volume.
func (p *caller) publishRequest(ctx context.Context, v *volume, target string) (*csipb.NodePublishVolumeRequest, error) {
	confidential, err := p.secret(ctx, v.secrets.publish, "NodePublishSecretRef")
	if err != nil {
		return nil, err
	}
	attributes := maps.Clone(v.context)
	add := func(m *map[string]string, more map[string]string) {
		if *m == nil && len(more) > 0 {
			*m = map[string]string{}
		}
		maps.Copy(*m, more)
	}
	if v.class != nil && v.class.Spec.PodInfoOnMount != nil && *v.class.Spec.PodInfoOnMount {
		add(&attributes, map[string]string{
			"csi.storage.k8s.io/pod.name":            v.pod.Name,
			"csi.storage.k8s.io/pod.namespace":       v.pod.Namespace,
			"csi.storage.k8s.io/pod.uid":             string(v.pod.UID),
			"csi.storage.k8s.io/serviceAccount.name": v.pod.Spec.ServiceAccountName,
			"csi.storage.k8s.io/ephemeral":           strconv.FormatBool(v.ephemeral),
		})
	}
	if !v.block {
		tokens, err := p.tokens(ctx, v)
		if err != nil {
			return nil, fmt.Errorf("kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: %w", err) // upstream's words
		}
		if secret := v.class != nil && v.class.Spec.ServiceAccountTokenInSecrets != nil && *v.class.Spec.ServiceAccountTokenInSecrets; secret {
			add(&confidential, tokens)
		} else {
			add(&attributes, tokens)
		}
	}
	return &csipb.NodePublishVolumeRequest{
		VolumeId: v.handle, TargetPath: target, Readonly: v.readOnly, PublishContext: v.publishContext, VolumeContext: attributes,
		Secrets: confidential, VolumeCapability: v.capability(),
	}, nil
}

// secret reads a Secret for a driver. The messages are upstream's.
func (p *caller) secret(ctx context.Context, ref *corev1.SecretReference, field string) (map[string]string, error) {
	out := map[string]string{}
	if ref == nil {
		return out, nil
	}
	secret, err := p.host.Sources.Secret(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, fmt.Errorf("fetching %s %s/%s failed: kubernetes.io/csi: failed to find the secret %s in the namespace %s with error: %w",
			field, ref.Namespace, ref.Name, ref.Name, ref.Namespace, err)
	}
	for key, value := range secret.Data {
		out[key] = string(value)
	}
	return out, nil
}

// tokens requests the tokens that the CSIDriver asks for, bound to the pod.
func (p *caller) tokens(ctx context.Context, v *volume) (map[string]string, error) {
	if v.class == nil || len(v.class.Spec.TokenRequests) == 0 {
		return nil, nil
	}
	out := map[string]authenticationv1.TokenRequestStatus{}
	for _, r := range v.class.Spec.TokenRequests {
		audiences := []string{}
		if r.Audience != "" {
			audiences = append(audiences, r.Audience)
		}
		made, err := p.host.Sources.Token(ctx, v.pod.Namespace, v.pod.Spec.ServiceAccountName, &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{
				Audiences: audiences, ExpirationSeconds: r.ExpirationSeconds,
				BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: v.pod.Name, UID: v.pod.UID},
			},
		})
		if err != nil {
			return nil, err
		}
		out[r.Audience] = made.Status
	}
	text, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encode tokens: %w", err)
	}
	return map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": string(text)}, nil
}
