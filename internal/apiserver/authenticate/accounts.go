// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"github.com/mortise-dev/mortise/resource"
)

// Issuer is the default issuer of a server's tokens.
const Issuer = "https://kubernetes.default.svc.cluster.local"

// legacyIssuer is the issuer of the tokens of secrets.
const legacyIssuer = "kubernetes/serviceaccount"

// leeway is how much clocks may differ.
const leeway = time.Minute

// AccountSettings say how service-account tokens are signed and verified.
type AccountSettings struct {
	// Issuers are the accepted issuers of tokens; the first one issues. Nil: [Issuer].
	Issuers []string
	// Signer signs; nil: there are no service-account tokens.
	Signer Signer
	// Keys verify; nil: the signer's.
	Keys Keys
	// JWKSURI is the URI of the keys in the discovery document; empty: this server's.
	JWKSURI string
	// NoLookup takes legacy tokens also when their secret is gone.
	NoLookup bool
	// MaxExpiration bounds the life of tokens; 0: it does not.
	MaxExpiration time.Duration
	// MaxExtended bounds the life of those that are extended; 0: a year.
	MaxExtended time.Duration
	// NoExtend gives pods' default tokens the life that they ask for.
	NoExtend bool
}

func (s AccountSettings) issuers() []string {
	if len(s.Issuers) == 0 {
		return []string{Issuer}
	}
	return s.Issuers
}

// Signer signs the claims of a token.
type Signer interface {
	Sign(ctx context.Context, claims []byte) (token string, err error)
}

// Accounts issues and verifies service-account tokens.
type Accounts struct {
	AccountSettings
	audiences []string
	deps      Deps
	metrics   *Metrics
	trusted   map[string]bool // issuers
	known     signatures
}

func newAccounts(s AccountSettings, audiences []string, d Deps, m *Metrics) *Accounts {
	s.Issuers = s.issuers()
	a := &Accounts{AccountSettings: s, audiences: audiences, deps: d, metrics: m, trusted: map[string]bool{legacyIssuer: true}}
	if a.Keys == nil {
		a.Keys, _ = s.Signer.(Keys)
	}
	for _, i := range s.Issuers {
		a.trusted[i] = true
	}
	a.known.init()
	return a
}

// claims are what a token says, bound or legacy.
type claims struct {
	Issuer    string   `json:"iss"`
	Subject   string   `json:"sub"`
	Audience  audience `json:"aud,omitempty"`
	Expires   number   `json:"exp,omitempty"`
	IssuedAt  number   `json:"iat,omitempty"`
	NotBefore number   `json:"nbf,omitempty"`
	ID        string   `json:"jti,omitempty"`
	Private   private  `json:"kubernetes.io"`

	LegacyAccount    string `json:"kubernetes.io/serviceaccount/service-account.name,omitempty"`
	LegacyAccountUID string `json:"kubernetes.io/serviceaccount/service-account.uid,omitempty"`
	LegacySecret     string `json:"kubernetes.io/serviceaccount/secret.name,omitempty"`
	LegacyNamespace  string `json:"kubernetes.io/serviceaccount/namespace,omitempty"`
}

// private is the part that is ours.
type private struct {
	Namespace      string `json:"namespace,omitempty"`
	Node           *ref   `json:"node,omitempty"`
	Pod            *ref   `json:"pod,omitempty"`
	Secret         *ref   `json:"secret,omitempty"`
	ServiceAccount ref    `json:"serviceaccount"`
	Validating     *ref   `json:"validatingwebhookconfiguration,omitempty"`
	Mutating       *ref   `json:"mutatingwebhookconfiguration,omitempty"`
	WarnAfter      number `json:"warnafter,omitempty"`
}

type ref struct {
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
}

// number is seconds since 1970; a token may write them with a fraction.
type number int64

// UnmarshalJSON takes what JSON knows as a number.
func (n *number) UnmarshalJSON(b []byte) error {
	var f float64
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	if f < -1<<53 || f > 1<<53 {
		return fmt.Errorf("time %s is out of range", b)
	}
	*n = number(f)
	return nil
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

// algorithms are all that there are: a signature by one that does not fit the key is wrong like any other that does not verify.
var algorithms = []jose.SignatureAlgorithm{
	"none", jose.HS256, jose.HS384, jose.HS512, jose.EdDSA,
	jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512, jose.PS256, jose.PS384, jose.PS512,
}

// maxToken bounds what is looked at as a token.
const maxToken = 1 << 20

// AuthenticateToken implements [authenticator.Token]: tokens of other issuers are none of its business.
func (a *Accounts) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	c, info, err := a.signed(ctx, token)
	if c == nil || err != nil {
		return nil, false, err
	}
	has := []string(c.Audience)
	if len(has) == 0 {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token", c.Subject)
		a.metrics.legacy.Inc()
		has = a.audiences
	}
	wanted, ok := authenticator.AudiencesFrom(ctx)
	if !ok {
		wanted = a.audiences
	}
	shared := authenticator.Audiences(has).Intersect(wanted)
	if len(shared) == 0 && len(a.audiences) > 0 {
		return nil, false, fmt.Errorf("token audiences %q is invalid for the target audiences %q", has, []string(wanted)) // upstream's words
	}
	if c.Issuer == legacyIssuer {
		err = a.legacy(ctx, token, c)
	} else {
		err = a.bound(ctx, c)
	}
	if err != nil {
		return nil, false, err
	}
	return &authenticator.Response{User: info.Info, Audiences: shared}, true, nil
}

// signed is what a token says, and who its bearer is, if its issuer is one of ours and the signature is good; nil for tokens of others.
func (a *Accounts) signed(ctx context.Context, token string) (*claims, *known, error) {
	return a.known.get(token, a.Keys.Generation(), func() (*claims, error) { return a.parse(ctx, token) })
}

// parse reads a token and verifies its signature.
func (a *Accounts) parse(ctx context.Context, token string) (*claims, error) {
	if len(token) > maxToken || !a.ours(token) {
		return nil, nil
	}
	parsed, err := jose.ParseSignedCompact(token, algorithms)
	if err != nil {
		return nil, nil
	}
	keys := a.Keys.Find(ctx, parsed.Signatures[0].Header.KeyID)
	if len(keys) == 0 {
		return nil, errors.New("invalid signature, no keys found") // upstream's words
	}
	var errs []error
	for _, k := range keys {
		payload, err := parsed.Verify(k.Public)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c := &claims{}
		if err := json.Unmarshal(payload, c); err != nil {
			return nil, fmt.Errorf("parse token claims: %w", err)
		}
		if !a.trusted[c.Issuer] {
			return nil, fmt.Errorf("token issuer %q is invalid", c.Issuer) // upstream's words
		}
		return c, nil
	}
	return nil, utilerrors.NewAggregate(errs)
}

// ours reports whether a token names one of our issuers. Nothing of it is verified yet.
func (a *Accounts) ours(token string) bool {
	_, rest, ok := strings.Cut(token, ".")
	payload, sum, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 || strings.Contains(sum, ".") || strings.HasPrefix(strings.TrimSpace(token), "{") {
		return false
	}
	b, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		return false
	}
	var c struct {
		Issuer string `json:"iss"`
	}
	return json.Unmarshal(b, &c) == nil && a.trusted[c.Issuer]
}

var (
	serviceaccounts = schema.GroupResource{Resource: "serviceaccounts"}
	pods            = schema.GroupResource{Resource: "pods"}
	nodes           = schema.GroupResource{Resource: "nodes"}
	errInvalidated  = errors.New("service account token has been invalidated") // upstream's words
)

// bound refuses a token that is not valid now, or whose service account, pod, node or secret is gone or is another one of the
// same name.
func (a *Accounts) bound(ctx context.Context, c *claims) error {
	now := a.deps.Now()
	switch unix := number(now.Unix()); {
	case c.NotBefore != 0 && unix+number(leeway/time.Second) < c.NotBefore:
		return errors.New("service account token is not valid yet") // upstream's words
	case c.Expires != 0 && unix-number(leeway/time.Second) > c.Expires:
		return errors.New("service account token has expired") // upstream's words
	case c.IssuedAt != 0 && unix+number(leeway/time.Second) < c.IssuedAt:
		return errors.New("service account token is issued in the future") // upstream's words
	}
	p, past := &c.Private, now.Add(-leeway)
	account, err := a.deps.Objects().Get(ctx, serviceaccounts, p.Namespace, p.ServiceAccount.Name)
	if err != nil {
		return err
	}
	if string(account.GetUID()) != p.ServiceAccount.UID {
		return fmt.Errorf("service account UID (%s) does not match claim (%s)", account.GetUID(), p.ServiceAccount.UID) // upstream's words
	}
	if deleted(account, past) {
		return fmt.Errorf("service account %s/%s has been deleted", p.Namespace, p.ServiceAccount.Name) // upstream's words
	}
	check := func(r schema.GroupResource, namespace, kind, word string, to *ref) error {
		obj, err := a.deps.Objects().Get(ctx, r, namespace, to.Name)
		if err != nil {
			return errInvalidated
		}
		if string(obj.GetUID()) != to.UID {
			return fmt.Errorf("%s UID (%s) does not match service account %s ref claim (%s)", kind, obj.GetUID(), word, to.UID) // upstream's words
		}
		if deleted(obj, past) {
			return errInvalidated
		}
		return nil
	}
	if p.Secret != nil {
		if err := check(secrets, p.Namespace, "secret", "secret", p.Secret); err != nil {
			return err
		}
	}
	if p.Pod != nil {
		if err := check(pods, p.Namespace, "pod", "pod", p.Pod); err != nil {
			return err
		}
	} else if p.Node != nil { // the node of a pod is only told
		if err := check(nodes, "", "node", "node", p.Node); err != nil {
			return err
		}
	}
	if p.Validating != nil || p.Mutating != nil {
		return errors.New(`feature gate "APIServerWebhookAuthenticationToken" is disabled, but token is webhook bound`) // upstream's words
	}
	if w := int64(p.WarnAfter); w != 0 {
		if late := now.Unix() - w; now.After(time.Unix(w, 0)) {
			audit.AddAuditAnnotation(ctx, "authentication.k8s.io/stale-token",
				fmt.Sprintf("subject: %s, seconds after warning threshold: %d", c.Subject, late))
			a.metrics.stale.Inc()
		} else {
			a.metrics.valid.Inc()
		}
	}
	return nil
}

func deleted(obj resource.Object, before time.Time) bool {
	d := obj.GetDeletionTimestamp()
	return d != nil && d.Time.Before(before)
}

// who is the bearer of a token.
func who(c *claims) *serviceaccount.ServiceAccountInfo {
	if c.Issuer == legacyIssuer {
		return &serviceaccount.ServiceAccountInfo{Namespace: c.LegacyNamespace, Name: c.LegacyAccount, UID: c.LegacyAccountUID}
	}
	info := &serviceaccount.ServiceAccountInfo{Namespace: c.Private.Namespace, Name: c.Private.ServiceAccount.Name,
		UID: c.Private.ServiceAccount.UID}
	if c.ID != "" {
		info.CredentialID = "JTI=" + c.ID
	}
	if p := c.Private.Pod; p != nil {
		info.PodName, info.PodUID = p.Name, p.UID
	}
	if n := c.Private.Node; n != nil {
		info.NodeName, info.NodeUID = n.Name, n.UID
	}
	return info
}

// secret finds a token's secret.
func (a *Accounts) secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	obj, err := a.deps.Objects().Get(ctx, secrets, namespace, name)
	if err != nil {
		return nil, err
	}
	s, ok := obj.(*corev1.Secret)
	if !ok {
		return nil, apierrors.NewNotFound(secrets, name)
	}
	return s, nil
}
