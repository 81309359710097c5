// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package projected

import (
	"context"
	"fmt"
	"path"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes/atomicwriter"
)

func (p *plugin) tokenFile(
	ctx context.Context, pod *corev1.Pod, source *corev1.ServiceAccountTokenProjection, mode *int32,
) (map[string]atomicwriter.File, error) {
	token, err := p.token(ctx, pod, source)
	if err != nil {
		return nil, err
	}
	return map[string]atomicwriter.File{path.Clean(source.Path): credentialFile(pod, []byte(token), mode)}, nil
}

// credentialFile returns a file that only the pod's user may read, or the pod's group, if the definition has one.
func credentialFile(pod *corev1.Pod, data []byte, mode *int32) atomicwriter.File {
	file := atomicwriter.File{Data: data, Mode: atomicwriter.Mode(nil, mode)}
	if user := soleUser(pod); user != nil {
		file.Mode, file.Owner = 0o600, user
	} else if pod.Spec.SecurityContext != nil && pod.Spec.SecurityContext.FSGroup != nil {
		file.Mode = 0o600
	}
	return file
}

// soleUser returns the user of all containers, if the pod's definition determines it.
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

// tokenKey identifies a token of a pod. The cache keeps it until a fifth of its lifetime is left.
type tokenKey struct {
	audience string
	seconds  int64
}

type cachedToken struct {
	token         string
	renewAt, ends time.Time
}

func (p *plugin) token(ctx context.Context, pod *corev1.Pod, source *corev1.ServiceAccountTokenProjection) (string, error) {
	var seconds int64 = 3600
	if source.ExpirationSeconds != nil {
		seconds = *source.ExpirationSeconds
	}
	key := tokenKey{source.Audience, seconds}
	now := p.Host.Clock.Now()
	cached, ok := p.tokens.get(pod.UID, key)
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
	answer, err := p.Host.Sources.Token(ctx, pod.Namespace, account, request)
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
	p.tokens.set(pod.UID, key, cachedToken{answer.Status.Token, now.Add(renew), now.Add(life)})
	return answer.Status.Token, nil
}
