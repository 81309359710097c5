// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"

	"github.com/mortise-dev/mortise/resource"
)

// podSeconds is the lifetime that pods' default tokens request. It marks these tokens: their lifetime is extended, and
// their use after podSeconds is recorded.
const podSeconds = 60*60 + 7

// yearSeconds is the lifetime of an extended token.
const yearSeconds = 24 * 365 * 60 * 60

// Issue signs a token. Its lifetime may be shorter than requested.
func (a *Accounts) Issue(ctx context.Context, c resource.TokenClaims) (resource.IssuedToken, error) {
	out := resource.IssuedToken{Audiences: c.Audiences, Seconds: c.Seconds}
	if len(out.Audiences) == 0 {
		out.Audiences = a.audiences
	}
	if most := int64(a.MaxExpiration / time.Second); most > 0 && out.Seconds > most {
		// upstream's words
		warning.AddWarning(ctx, "", fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds", out.Seconds, most))
		out.Seconds = most
	}
	now := a.deps.Now()
	lives, warn := out.Seconds, number(0)
	if !a.NoExtend && c.PodName != "" && out.Seconds == podSeconds && a.serverOnly(out.Audiences) {
		warn, lives = number(now.Unix()+podSeconds), yearSeconds
		if most := int64(a.MaxExtended / time.Second); most > 0 {
			lives = min(lives, most)
		}
	}
	body := claims{
		Issuer: a.Issuers[0], Subject: "system:serviceaccount:" + c.Namespace + ":" + c.ServiceAccount, Audience: out.Audiences,
		Expires: number(now.Unix() + lives), IssuedAt: number(now.Unix()), NotBefore: number(now.Unix()), ID: string(uuid.NewUUID()),
		Private: private{Namespace: c.Namespace, ServiceAccount: ref{Name: c.ServiceAccount, UID: c.ServiceAccountUID}, WarnAfter: warn},
	}
	if c.PodName != "" {
		body.Private.Pod = &ref{Name: c.PodName, UID: c.PodUID}
	}
	if c.NodeName != "" {
		body.Private.Node = &ref{Name: c.NodeName, UID: c.NodeUID}
	}
	if c.SecretName != "" {
		body.Private.Secret = &ref{Name: c.SecretName, UID: c.SecretUID}
	}
	payload, err := json.Marshal(body)
	if err != nil {
		return out, fmt.Errorf("encode token claims: %w", err)
	}
	if out.Token, err = a.Signer.Sign(ctx, payload); err != nil {
		return out, err
	}
	audit.AddAuditAnnotation(ctx, "authentication.kubernetes.io/issued-credential-id", "JTI="+body.ID)
	out.Expires = metav1.NewTime(now.Add(time.Duration(out.Seconds) * time.Second))
	return out, nil
}

// Legacy signs the token of a secret: it is valid as long as the secret exists.
func (a *Accounts) Legacy(ctx context.Context, namespace, secret, account, uid string) (string, error) {
	payload, err := json.Marshal(struct {
		Issuer     string `json:"iss"`
		Account    string `json:"kubernetes.io/serviceaccount/service-account.name"`
		AccountUID string `json:"kubernetes.io/serviceaccount/service-account.uid"`
		Secret     string `json:"kubernetes.io/serviceaccount/secret.name"`
		Namespace  string `json:"kubernetes.io/serviceaccount/namespace"`
		Subject    string `json:"sub"`
	}{legacyIssuer, account, uid, secret, namespace, "system:serviceaccount:" + namespace + ":" + account})
	if err != nil {
		return "", fmt.Errorf("encode token claims: %w", err)
	}
	return a.Signer.Sign(ctx, payload)
}

// serverOnly reports whether a token is for this server only.
func (a *Accounts) serverOnly(audiences []string) bool {
	for _, has := range audiences {
		if !slices.Contains(a.audiences, has) {
			return false
		}
	}
	return len(audiences) > 0
}
