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

// kept is how many answers of the API server are remembered.
const kept = 1024

// reviewer asks the API server who a token belongs to, and what a user may. Answers are remembered for as long as the
// configuration says; errors are not.
type reviewer struct {
	client  kubernetes.Interface
	node    string
	now     func() time.Time
	config  *configv1beta1.KubeletConfiguration
	answers *lru.Cache // by the SHA-256 of what was asked
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

// user asks whose the token is.
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

// may asks whether the user may do what the request wants, by any of its names.
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

// verb is what a method means to the authorizer.
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

// subresources are the parts of a node that a path belongs to; one that may be had is enough.
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
		return []string{"configz"} // as upstream has it
	}
	return []string{"proxy"}
}

// bearer is the token that a request carries.
func bearer(r *http.Request) string {
	kind, token, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	if !strings.EqualFold(kind, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// admitted says who asks and whether he may, by the kubelet configuration.
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

// configz shows the configuration in effect, as kubelet does.
func (s *Server) configz(w http.ResponseWriter, _ *http.Request) {
	shown := s.o.Effective.DeepCopy()
	shown.TypeMeta = metav1.TypeMeta{APIVersion: configv1beta1.SchemeGroupVersion.String(), Kind: "KubeletConfiguration"}
	for name := range shown.StaticPodURLHeader {
		shown.StaticPodURLHeader[name] = []string{"<masked>"}
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	s.writeJSON(w, map[string]any{"kubeletconfig": shown})
}

// debugging holds back what lets people into containers where the configuration does not want that.
func (s *Server) debugging(next http.HandlerFunc) http.HandlerFunc {
	if k := s.o.Kubelet; k == nil || *k.EnableDebuggingHandlers {
		return next
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "Debug endpoints are disabled.", http.StatusMethodNotAllowed)
	}
}
