// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"fmt"
	"maps"
	"path"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/mortise-dev/mortise/internal/agent/environ"
)

func modeOr(mode *int32, fallback *int32) int32 {
	switch {
	case mode != nil:
		return *mode
	case fallback != nil:
		return *fallback
	}
	return 0o644
}

func isTrue(b *bool) bool { return b != nil && *b }

// pick chooses the items of a map of data: all, or those named, under other names.
func pick(what string, data map[string][]byte, items []corev1.KeyToPath, mode *int32, optional bool) (map[string]File, error) {
	out := map[string]File{}
	if len(items) == 0 {
		for key, value := range data {
			out[key] = File{Data: value, Mode: modeOr(nil, mode)}
		}
		return out, nil
	}
	for _, item := range items {
		value, ok := data[item.Key]
		if !ok {
			if optional {
				continue
			}
			return nil, fmt.Errorf("references non-existent %s key: %s", what, item.Key)
		}
		out[path.Clean(item.Path)] = File{Data: value, Mode: modeOr(item.Mode, mode)}
	}
	return out, nil
}

func (m *Manager) configMapFiles(ctx context.Context, pod *corev1.Pod, name string, items []corev1.KeyToPath, mode *int32, optional *bool) (map[string]File, error) {
	cm, err := m.Sources.ConfigMap(ctx, pod.Namespace, name)
	if apierrors.IsNotFound(err) && isTrue(optional) {
		return map[string]File{}, nil
	}
	if err != nil {
		return nil, err
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for key, value := range cm.Data {
		data[key] = []byte(value)
	}
	for key, value := range cm.BinaryData {
		data[key] = value
	}
	return pick("config", data, items, mode, isTrue(optional))
}

func (m *Manager) secretFiles(ctx context.Context, pod *corev1.Pod, name string, items []corev1.KeyToPath, mode *int32, optional *bool) (map[string]File, error) {
	secret, err := m.Sources.Secret(ctx, pod.Namespace, name)
	if apierrors.IsNotFound(err) && isTrue(optional) {
		return map[string]File{}, nil
	}
	if err != nil {
		return nil, err
	}
	return pick("secret", secret.Data, items, mode, isTrue(optional))
}

func (m *Manager) downwardFiles(pod *corev1.Pod, items []corev1.DownwardAPIVolumeFile, mode *int32, podIPs []string) (map[string]File, error) {
	out := map[string]File{}
	var hostIPs []string
	if m.HostIPs != nil {
		hostIPs = m.HostIPs()
	}
	for _, item := range items {
		var value string
		var err error
		switch {
		case item.FieldRef != nil:
			value, err = environ.Field(pod, item.FieldRef.FieldPath, podIPs, hostIPs)
		case item.ResourceFieldRef != nil:
			value, err = environ.Resource(pod, nil, item.ResourceFieldRef, m.Allocatable)
		}
		if err != nil {
			return nil, err
		}
		out[path.Clean(item.Path)] = File{Data: []byte(value), Mode: modeOr(item.Mode, mode)}
	}
	return out, nil
}

// projectedFiles are those of all sources together; all that is wrong with them is said at once.
func (m *Manager) projectedFiles(ctx context.Context, pod *corev1.Pod, v *corev1.Volume, podIPs []string) (map[string]File, error) {
	out := map[string]File{}
	var failed []error
	mode := v.Projected.DefaultMode
	for i := range v.Projected.Sources {
		source := &v.Projected.Sources[i]
		var files map[string]File
		var err error
		switch {
		case source.Secret != nil:
			files, err = m.secretFiles(ctx, pod, source.Secret.Name, source.Secret.Items, mode, source.Secret.Optional)
		case source.ConfigMap != nil:
			files, err = m.configMapFiles(ctx, pod, source.ConfigMap.Name, source.ConfigMap.Items, mode, source.ConfigMap.Optional)
		case source.DownwardAPI != nil:
			files, err = m.downwardFiles(pod, source.DownwardAPI.Items, mode, podIPs)
		case source.ServiceAccountToken != nil:
			files, err = m.tokenFile(ctx, pod, source.ServiceAccountToken, mode)
		case source.ClusterTrustBundle != nil:
			files, err = m.trustFile(ctx, pod, source.ClusterTrustBundle, mode)
		case source.PodCertificate != nil:
			files, err = m.certificateFiles(ctx, pod, credentialKey{pod.UID, v.Name, i}, source.PodCertificate, mode)
		default:
			err = fmt.Errorf("projected volume %s has a source that this node does not support", v.Name)
		}
		if err != nil {
			failed = append(failed, err)
		}
		maps.Copy(out, files)
	}
	return out, utilerrors.NewAggregate(failed)
}

func (m *Manager) tokenFile(ctx context.Context, pod *corev1.Pod, source *corev1.ServiceAccountTokenProjection, mode *int32) (map[string]File, error) {
	token, err := m.token(ctx, pod, source)
	if err != nil {
		return nil, err
	}
	return map[string]File{path.Clean(source.Path): credentialFile(pod, []byte(token), mode)}, nil
}

// credentialFile is a file for the pod's user alone, or for its group, if the definition names one.
func credentialFile(pod *corev1.Pod, data []byte, mode *int32) File {
	file := File{Data: data, Mode: modeOr(nil, mode)}
	if user := soleUser(pod); user != nil {
		file.Mode, file.Owner = 0o600, user
	} else if pod.Spec.SecurityContext != nil && pod.Spec.SecurityContext.FSGroup != nil {
		file.Mode = 0o600
	}
	return file
}

// soleUser is the user that all containers run as, if the definition says so.
func soleUser(pod *corev1.Pod) *int64 {
	var common *int64
	if pod.Spec.SecurityContext != nil {
		common = pod.Spec.SecurityContext.RunAsUser
	}
	var user *int64
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			own := common
			if sc := list[i].SecurityContext; sc != nil && sc.RunAsUser != nil {
				own = sc.RunAsUser
			}
			if own == nil || user != nil && *user != *own {
				return nil
			}
			user = own
		}
	}
	return user
}

// tokenCache holds tokens until a fifth of their life is left.
type tokenCache struct {
	mu     sync.Mutex
	tokens map[tokenKey]cachedToken
}

type tokenKey struct {
	uid      types.UID
	audience string
	seconds  int64
}

type cachedToken struct {
	token         string
	renewAt, ends time.Time
}

func (c *tokenCache) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.tokens {
		if key.uid == uid {
			delete(c.tokens, key)
		}
	}
}

// NextRenewal is when the first of the pod's tokens and certificates should be renewed, or looked at; zero without any.
func (m *Manager) NextRenewal(uid types.UID) time.Time {
	first := m.credentials.next(uid)
	m.tokens.mu.Lock()
	defer m.tokens.mu.Unlock()
	for key, t := range m.tokens.tokens {
		if key.uid == uid && (first.IsZero() || t.renewAt.Before(first)) {
			first = t.renewAt
		}
	}
	return first
}

func (m *Manager) token(ctx context.Context, pod *corev1.Pod, source *corev1.ServiceAccountTokenProjection) (string, error) {
	var seconds int64 = 3600
	if source.ExpirationSeconds != nil {
		seconds = *source.ExpirationSeconds
	}
	key := tokenKey{pod.UID, source.Audience, seconds}
	now := m.Clock.Now()
	m.tokens.mu.Lock()
	cached, ok := m.tokens.tokens[key]
	m.tokens.mu.Unlock()
	if ok && now.Before(cached.renewAt) {
		return cached.token, nil
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	account := pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	answer, err := m.Sources.Token(ctx, pod.Namespace, account, request)
	switch {
	case err != nil && !ok:
		return "", fmt.Errorf("failed to fetch token: %w", err) // upstream's words
	case err != nil && !now.Before(cached.ends):
		return "", fmt.Errorf("token expired and refresh failed: %w", err) // upstream's words
	case err != nil:
		return cached.token, nil // the next round tries again
	}
	life := answer.Status.ExpirationTimestamp.Sub(now)
	if life <= 0 {
		life = time.Duration(seconds) * time.Second
	}
	renew := min(life*4/5, 24*time.Hour)
	m.tokens.mu.Lock()
	defer m.tokens.mu.Unlock()
	if m.tokens.tokens == nil {
		m.tokens.tokens = map[tokenKey]cachedToken{}
	}
	m.tokens.tokens[key] = cachedToken{answer.Status.Token, now.Add(renew), now.Add(life)}
	return answer.Status.Token, nil
}
