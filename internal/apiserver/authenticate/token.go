// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/resource"
)

// Issuer is what tokens of this server say they come from.
const Issuer = "https://kubernetes.default.svc.cluster.local"

// Tokens issues and verifies service-account tokens: JWTs signed with the server's ECDSA key.
type Tokens struct {
	Key *ecdsa.PrivateKey
	Now func() time.Time
	// Get reads the objects that a token is bound to; nil: they are not looked at.
	Get func(ctx context.Context, r schema.GroupResource, namespace, name string) (resource.Object, error)

	mu    sync.RWMutex
	known map[string]*claims // signatures that were verified; times and objects are looked at each time
}

// maxKnown bounds the memory of verified signatures.
const maxKnown = 4096

type claims struct {
	Issuer    string   `json:"iss"`
	Subject   string   `json:"sub"`
	Audience  audience `json:"aud"`
	Expires   int64    `json:"exp"`
	IssuedAt  int64    `json:"iat"`
	NotBefore int64    `json:"nbf"`
	ID        string   `json:"jti"`
	Private   private  `json:"kubernetes.io"`
}

type private struct {
	Namespace      string `json:"namespace"`
	ServiceAccount ref    `json:"serviceaccount"`
	Pod            *ref   `json:"pod,omitempty"`
	Secret         *ref   `json:"secret,omitempty"`
	Node           *ref   `json:"node,omitempty"`
}

type ref struct {
	Name string `json:"name"`
	UID  string `json:"uid,omitempty"`
}

// audience is one string or a list of them.
type audience []string

// UnmarshalJSON takes both forms.
func (a *audience) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*a = audience{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(a))
}

// KeyID names a public key in the token's header.
func KeyID(key *ecdsa.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("encode public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// Issue signs a token.
func (t *Tokens) Issue(c resource.TokenClaims) (string, metav1.Time, error) {
	now := t.Now()
	expires := now.Add(time.Duration(c.Seconds) * time.Second)
	aud := c.Audiences
	if len(aud) == 0 {
		aud = []string{Issuer}
	}
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return "", metav1.Time{}, fmt.Errorf("draw token id: %w", err)
	}
	h := hex.EncodeToString(id)
	body := claims{
		Issuer: Issuer, Subject: "system:serviceaccount:" + c.Namespace + ":" + c.ServiceAccount, Audience: aud,
		Expires: expires.Unix(), IssuedAt: now.Unix(), NotBefore: now.Unix(),
		ID:      h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:],
		Private: private{Namespace: c.Namespace, ServiceAccount: ref{Name: c.ServiceAccount, UID: c.ServiceAccountUID}},
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
	kid, err := KeyID(&t.Key.PublicKey)
	if err != nil {
		return "", metav1.Time{}, err
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: t.Key}, (&jose.SignerOptions{}).WithHeader("kid", kid))
	if err != nil {
		return "", metav1.Time{}, fmt.Errorf("make token signer: %w", err)
	}
	payload, err := json.Marshal(body)
	if err != nil {
		return "", metav1.Time{}, fmt.Errorf("encode token claims: %w", err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		return "", metav1.Time{}, fmt.Errorf("sign token: %w", err)
	}
	s, err := signed.CompactSerialize()
	if err != nil {
		return "", metav1.Time{}, fmt.Errorf("serialize token: %w", err)
	}
	return s, metav1.NewTime(time.Unix(expires.Unix(), 0)), nil
}

// Authenticate takes the bearer token of the Authorization header, or of a WebSocket's protocols.
func (t *Tokens) Authenticate(r *http.Request) (user.Info, error) {
	token := bearer(r)
	if token == "" {
		return nil, nil
	}
	who, _, err := t.Verify(r.Context(), token, nil)
	return who, err
}

func bearer(r *http.Request) string {
	if a := r.Header.Get("Authorization"); a != "" {
		kind, token, ok := strings.Cut(strings.TrimSpace(a), " ")
		if ok && strings.EqualFold(kind, "bearer") {
			return strings.TrimSpace(token)
		}
		return ""
	}
	const prefix = "base64url.bearer.authorization.k8s.io."
	for _, v := range r.Header.Values("Sec-WebSocket-Protocol") {
		for p := range strings.SplitSeq(v, ",") {
			if enc, ok := strings.CutPrefix(strings.TrimSpace(p), prefix); ok {
				if b, err := base64.RawURLEncoding.DecodeString(enc); err == nil {
					return string(b)
				}
			}
		}
	}
	return ""
}

// Verify checks a token for one of the audiences (nil: the server's own), and returns who it is and the audiences that
// both share.
func (t *Tokens) Verify(ctx context.Context, token string, audiences []string) (user.Info, []string, error) {
	c, err := t.signed(token)
	if err != nil {
		return nil, nil, err
	}
	now := t.Now().Unix()
	if c.Issuer != Issuer || now >= c.Expires || now < c.NotBefore-10 {
		return nil, nil, ErrUnauthorized
	}
	if len(audiences) == 0 {
		audiences = []string{Issuer}
	}
	var shared []string
	for _, a := range c.Audience {
		if slices.Contains(audiences, a) {
			shared = append(shared, a)
		}
	}
	if len(shared) == 0 {
		return nil, nil, ErrUnauthorized
	}
	if err := t.bound(ctx, &c.Private); err != nil {
		return nil, nil, err
	}
	extra := map[string][]string{"authentication.kubernetes.io/credential-id": {"JTI=" + c.ID}}
	if p := c.Private.Pod; p != nil {
		extra["authentication.kubernetes.io/pod-name"], extra["authentication.kubernetes.io/pod-uid"] = []string{p.Name}, []string{p.UID}
	}
	if n := c.Private.Node; n != nil {
		extra["authentication.kubernetes.io/node-name"] = []string{n.Name}
		if n.UID != "" {
			extra["authentication.kubernetes.io/node-uid"] = []string{n.UID}
		}
	}
	return &user.DefaultInfo{
		Name: c.Subject, UID: c.Private.ServiceAccount.UID, Extra: extra,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + c.Private.Namespace, Authenticated},
	}, shared, nil
}

// signed is what a token says, if this server signed it.
func (t *Tokens) signed(token string) (*claims, error) {
	t.mu.RLock()
	c := t.known[token]
	t.mu.RUnlock()
	if c != nil {
		return c, nil
	}
	parsed, err := jose.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return nil, ErrUnauthorized
	}
	payload, err := parsed.Verify(&t.Key.PublicKey)
	if err != nil {
		return nil, ErrUnauthorized
	}
	c = &claims{}
	if err := json.Unmarshal(payload, c); err != nil {
		return nil, ErrUnauthorized
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil || len(t.known) >= maxKnown {
		t.known = make(map[string]*claims)
	}
	t.known[token] = c
	return c, nil
}

// bound refuses a token whose service account, pod or secret is gone or is another one of the same name.
func (t *Tokens) bound(ctx context.Context, p *private) error {
	if t.Get == nil {
		return nil
	}
	check := func(resourceName string, r *ref) error {
		if r == nil {
			return nil
		}
		obj, err := t.Get(ctx, schema.GroupResource{Resource: resourceName}, p.Namespace, r.Name)
		if err != nil || string(obj.GetUID()) != r.UID {
			return ErrUnauthorized
		}
		if d := obj.GetDeletionTimestamp(); d != nil && d.Add(time.Minute).Before(t.Now()) {
			return ErrUnauthorized
		}
		return nil
	}
	if err := check("serviceaccounts", &p.ServiceAccount); err != nil {
		return err
	}
	if err := check("pods", p.Pod); err != nil {
		return err
	}
	return check("secrets", p.Secret)
}
