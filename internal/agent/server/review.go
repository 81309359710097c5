// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

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
	"k8s.io/client-go/kubernetes"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/lru"
)

// kept is the maximum number of cached reviews.
const kept = 1024

// reviewer authenticates tokens and authorizes users by reviews of the API server. It caches reviews as long as the configuration says, but
// no errors.
type reviewer struct {
	client  kubernetes.Interface
	node    string
	now     func() time.Time
	config  *configv1beta1.KubeletConfiguration
	answers *lru.Cache // by the SHA-256 of the question
}

type answer struct {
	until time.Time
	user  authenticationv1.UserInfo
	yes   bool
}

func (r *reviewer) remembered(key [sha256.Size]byte) (answer, bool) {
	if v, ok := r.answers.Get(key); ok && v.(answer).until.After(r.now()) {
		return v.(answer), true
	}
	return answer{}, false
}

// user returns the user of the token.
func (r *reviewer) user(ctx context.Context, token string) (authenticationv1.UserInfo, error) {
	key := sha256.Sum256([]byte("token\x00" + token))
	a, ok := r.remembered(key)
	if !ok {
		review, err := r.client.AuthenticationV1().TokenReviews().Create(ctx,
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil {
			return authenticationv1.UserInfo{}, fmt.Errorf("review token: %w", err)
		}
		a = answer{until: r.now().Add(r.config.Authentication.Webhook.CacheTTL.Duration), user: review.Status.User,
			yes: review.Status.Authenticated}
		r.answers.Add(key, a)
	}
	if !a.yes {
		return authenticationv1.UserInfo{}, errors.New("unknown token")
	}
	return a.user, nil
}

// may reports whether the user is allowed to make the request, by any of its resources.
func (r *reviewer) may(ctx context.Context, user authenticationv1.UserInfo, request *http.Request) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range user.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	for _, subresource := range subresources(request.URL.Path) {
		spec := authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, Groups: user.Groups, UID: user.UID, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb(request.Method), Version: "v1", Resource: "nodes",
				Subresource: subresource, Name: r.node},
		}
		key := sha256.Sum256([]byte(spec.String()))
		a, ok := r.remembered(key)
		if !ok {
			review, err := r.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec},
				metav1.CreateOptions{})
			if err != nil {
				return false, fmt.Errorf("review access: %w", err)
			}
			ttl := r.config.Authorization.Webhook.CacheUnauthorizedTTL.Duration
			if review.Status.Allowed {
				ttl = r.config.Authorization.Webhook.CacheAuthorizedTTL.Duration
			}
			a = answer{until: r.now().Add(ttl), yes: review.Status.Allowed}
			r.answers.Add(key, a)
		}
		if a.yes {
			return true, nil
		}
	}
	return false, nil
}

// verb returns the authorizer's verb of a method.
func verb(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return "get"
}

// subresources returns the subresources of a node that grant access to a path; one of them is enough.
func subresources(path string) []string {
	under := func(root string) bool { return path == root || strings.HasPrefix(path, root+"/") }
	switch {
	case under("/stats"):
		return []string{"stats"}
	case under("/metrics"):
		return []string{"metrics"}
	case under("/logs"):
		return []string{"log"}
	case under("/checkpoint"):
		return []string{"checkpoint"}
	case under("/pods"), under("/runningpods"):
		return []string{"pods", "proxy"}
	case under("/healthz"):
		return []string{"healthz", "proxy"}
	case under("/configz"):
		return []string{"configz", "proxy"}
	case under("/statusz"):
		return []string{"statusz"}
	case under("/flagz"):
		return []string{"configz"} // as upstream does
	}
	return []string{"proxy"}
}

// bearer returns the request's bearer token.
func bearer(r *http.Request) string {
	kind, token, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	if !strings.EqualFold(kind, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// admitted authenticates and authorizes the request as the kubelet configuration requires.
func (s *Server) admitted(w http.ResponseWriter, r *http.Request) bool {
	k := s.o.Kubelet
	var user authenticationv1.UserInfo
	name, groups, err := s.authenticate(r)
	token := bearer(r)
	switch {
	case err == nil:
		user.Username, user.Groups = name, append(groups, "system:authenticated")
	case token != "" && *k.Authentication.Webhook.Enabled && s.reviews != nil:
		user, err = s.reviews.user(r.Context(), token)
	}
	if err != nil && token == "" && *k.Authentication.Anonymous.Enabled {
		user.Username, user.Groups, err = "system:anonymous", []string{"system:unauthenticated"}, nil
	}
	if err != nil {
		s.o.Logger.Debug("Refused a client", "remote", r.RemoteAddr, "error", err)
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return false
	}
	may := k.Authorization.Mode == configv1beta1.KubeletAuthorizationModeAlwaysAllow || name != "" && s.o.Allow(user.Username, groups)
	if !may && s.reviews != nil {
		if may, err = s.reviews.may(r.Context(), user, r); err != nil {
			s.o.Logger.Warn("Could not authorize a client of the node's API", "user", user.Username, "err", err)
			msg := fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", user.Username, verb(r.Method),
				subresources(r.URL.Path))
			http.Error(w, msg, http.StatusInternalServerError)
			return false
		}
	}
	if !may {
		http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", user.Username, verb(r.Method),
			subresources(r.URL.Path)), http.StatusForbidden)
	}
	return may
}

// configz serves the effective configuration, as kubelet does.
func (s *Server) configz(w http.ResponseWriter, _ *http.Request) {
	shown := s.o.Effective.DeepCopy()
	shown.TypeMeta = metav1.TypeMeta{APIVersion: configv1beta1.SchemeGroupVersion.String(), Kind: "KubeletConfiguration"}
	for name := range shown.StaticPodURLHeader {
		shown.StaticPodURLHeader[name] = []string{"<masked>"}
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	s.writeJSON(w, map[string]any{"kubeletconfig": shown})
}

// debugging disables a handler that gives access to containers if the configuration requires that.
func (s *Server) debugging(next http.HandlerFunc) http.HandlerFunc {
	if k := s.o.Kubelet; k == nil || *k.EnableDebuggingHandlers {
		return next
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "Debug endpoints are disabled.", http.StatusMethodNotAllowed)
	}
}
