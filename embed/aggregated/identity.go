// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lru "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
)

const (
	// keep is how long reviews are cached; reviewTimeout is the timeout of one.
	keep          = 10 * time.Second
	reviewTimeout = 10 * time.Second
	// kept is the number of cached reviews of each kind.
	kept = 4096
)

// authenticators returns the authenticators in order; a request without credentials is anonymous.
func authenticators(t *trust, client kubernetes.Interface) authenticator.Request {
	named := union.New(
		headerrequest.NewDynamicVerifyOptionsSecure(t.proxyOptions, list(func() []string { return t.current().names }),
			list(func() []string { return t.current().user }), list(func() []string { return t.current().uid }),
			list(func() []string { return t.current().groups }), list(func() []string { return t.current().extraPrefixes })),
		x509.NewDynamic(t.clientOptions, x509.CommonNameUserConversion),
		bearertoken.New(&tokens{client: client, known: lru.NewLRUExpireCache(kept)}),
	)
	return union.NewFailOnError(group.NewAuthenticatedGroupAdder(named), anonymous.NewAuthenticator(nil))
}

// tokens authenticates tokens by the cluster's TokenReviews.
type tokens struct {
	client kubernetes.Interface
	known  *lru.LRUExpireCache // sum of a token → verdict
}

type verdict struct {
	user *user.DefaultInfo // nil: unknown
	auds authenticator.Audiences
}

// AuthenticateToken implements [authenticator.Token].
func (t *tokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	sum := sha256.Sum256([]byte(token))
	if v, ok := t.known.Get(sum); ok {
		return v.(verdict).answer()
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	review, err := t.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, false, fmt.Errorf("review token: %w", err)
	}
	var v verdict
	if s := review.Status; s.Authenticated {
		v.user = &user.DefaultInfo{Name: s.User.Username, UID: s.User.UID, Groups: s.User.Groups, Extra: map[string][]string{}}
		for k, e := range s.User.Extra {
			v.user.Extra[k] = e
		}
		v.auds = s.Audiences
	}
	t.known.Add(sum, v, keep)
	return v.answer()
}

func (v verdict) answer() (*authenticator.Response, bool, error) {
	if v.user == nil {
		return nil, false, nil
	}
	return &authenticator.Response{User: v.user, Audiences: v.auds}, true, nil
}

// permissions authorizes requests by the cluster.
type permissions struct {
	client kubernetes.Interface
	known  *lru.LRUExpireCache // the review's spec, as text → refusal ("" is an allowance)
}

// errDenied is a refusal, with the cluster's reason.
type errDenied struct{ reason string }

func (e errDenied) Error() string { return e.reason }

// check returns errDenied if the cluster denies the request, and another error if it does not decide.
func (p *permissions) check(ctx context.Context, u user.Info, i *requestinfo.Info) error {
	for _, g := range u.GetGroups() {
		if g == user.SystemPrivilegedGroup {
			return nil
		}
	}
	spec := authorizationv1.SubjectAccessReviewSpec{User: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	for k, v := range u.GetExtra() {
		if spec.Extra == nil {
			spec.Extra = map[string]authorizationv1.ExtraValue{}
		}
		spec.Extra[k] = v
	}
	if i.IsResourceRequest {
		spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
			Namespace: i.Namespace, Verb: i.Verb, Group: i.APIGroup, Version: i.APIVersion, Resource: i.Resource, Subresource: i.Subresource,
			Name: i.Name,
		}
	} else {
		spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: i.Path, Verb: i.Verb}
	}
	b, err := spec.Marshal() // maps are encoded in the order of their keys
	if err != nil {
		return fmt.Errorf("review access: %w", err)
	}
	key := string(b)
	if len(key) < 10_000 { // as upstream: larger reviews are not cached
		if refusal, ok := p.known.Get(key); ok {
			return refused(refusal.(*string))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	review, err := p.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec},
		metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("review access: %w", err)
	}
	var refusal *string
	if !review.Status.Allowed || review.Status.Denied {
		refusal = &review.Status.Reason
	}
	if len(key) < 10_000 {
		p.known.Add(key, refusal, keep)
	}
	return refused(refusal)
}

func refused(reason *string) error {
	if reason == nil {
		return nil
	}
	return errDenied{*reason}
}

// open reports whether a path needs neither permission nor a user.
func open(path string) bool {
	return path == "/healthz" || path == "/livez" || path == "/readyz"
}

// identify authenticates a request and removes its credentials.
func identify(who authenticator.Request, r *http.Request) (user.Info, error) {
	resp, ok, err := who.AuthenticateRequest(r)
	if err == nil && !ok {
		err = errors.New("unknown credentials")
	}
	if err != nil {
		return nil, err
	}
	r.Header.Del("Authorization")
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Remote-") {
			delete(r.Header, name)
		}
	}
	return resp.User, nil
}
