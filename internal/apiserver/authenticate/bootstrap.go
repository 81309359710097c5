// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"context"
	"crypto/subtle"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// bootstrapTokens verifies the tokens with which nodes join: ID.SECRET, stored in secrets of kube-system.
type bootstrapTokens struct {
	objects func() Objects
	now     func() time.Time
}

const (
	bootstrapType corev1.SecretType = "bootstrap.kubernetes.io/token"

	bootstrapPrefix = "bootstrap-token-"
	bootstrappers   = "system:bootstrappers"
)

var (
	bootstrapToken = regexp.MustCompile(`^([a-z0-9]{6})\.([a-z0-9]{16})$`)
	bootstrapGroup = regexp.MustCompile(`^system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]$`)
	secrets        = schema.GroupResource{Resource: "secrets"}
)

// AuthenticateToken implements [authenticator.Token].
func (b *bootstrapTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	m := bootstrapToken.FindStringSubmatch(token)
	if m == nil {
		return nil, false, nil
	}
	obj, err := b.objects().Get(ctx, secrets, metav1.NamespaceSystem, bootstrapPrefix+m[1])
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	s, ok := obj.(*corev1.Secret)
	if !ok || s.DeletionTimestamp != nil || s.Type != bootstrapType {
		return nil, false, nil
	}
	if subtle.ConstantTimeCompare(s.Data["token-secret"], []byte(m[2])) != 1 || string(s.Data["token-id"]) != m[1] {
		return nil, false, nil
	}
	if e := string(s.Data["expiration"]); e != "" {
		until, err := time.Parse(time.RFC3339, e)
		if err != nil || !b.now().Before(until) {
			return nil, false, nil
		}
	}
	if string(s.Data["usage-bootstrap-authentication"]) != "true" {
		return nil, false, nil
	}
	groups, err := extraGroups(string(s.Data["auth-extra-groups"]))
	if err != nil {
		return nil, false, nil
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: "system:bootstrap:" + m[1], Groups: groups}}, true, nil
}

// extraGroups returns the groups of a token's user: the group of all bootstrappers, and those that the secret lists.
func extraGroups(list string) ([]string, error) {
	groups := []string{bootstrappers}
	if list == "" {
		return groups, nil
	}
	for g := range strings.SplitSeq(list, ",") {
		if !bootstrapGroup.MatchString(g) {
			return nil, fmt.Errorf("bootstrap group %q is invalid (must match %s)", g, bootstrapGroup)
		}
		groups = append(groups, g)
	}
	slices.Sort(groups)
	return slices.Compact(groups), nil
}
