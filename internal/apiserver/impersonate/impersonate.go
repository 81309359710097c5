// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package impersonate lets one user act as another, with the Impersonate-* headers, when the authorizer lets the first
// impersonate the second.
package impersonate

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/authenticate"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
)

const (
	userHeader  = "Impersonate-User"
	uidHeader   = "Impersonate-Uid"
	groupHeader = "Impersonate-Group"
	extraPrefix = "Impersonate-Extra-"
)

// Requested is the user that the headers name; nil if they name none.
func Requested(h http.Header) (*user.DefaultInfo, error) {
	who := &user.DefaultInfo{Name: h.Get(userHeader), UID: h.Get(uidHeader), Groups: h.Values(groupHeader)}
	for name, values := range h {
		if len(name) > len(extraPrefix) && strings.EqualFold(name[:len(extraPrefix)], extraPrefix) {
			k := strings.ToLower(name[len(extraPrefix):])
			if u, err := url.PathUnescape(k); err == nil {
				k = u
			}
			if who.Extra == nil {
				who.Extra = map[string][]string{}
			}
			who.Extra[k] = values
		}
	}
	if who.Name == "" {
		if len(who.Groups) > 0 || len(who.Extra) > 0 || who.UID != "" {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("requested %#v without impersonating a user name", who))
		}
		return nil, nil
	}
	return who, nil
}

// As asks the authorizer whether from may act as the user that the headers name, and returns that user; nil when the
// headers name none.
func As(r *http.Request, from user.Info, may authorize.Authorizer) (user.Info, error) {
	who, err := Requested(r.Header)
	if who == nil || err != nil {
		return nil, err
	}
	ask := func(a authorize.Attributes) error {
		a.User, a.Verb, a.ResourceRequest = from, "impersonate", true
		decision, reason, err := may.Authorize(r.Context(), &a)
		if decision == authorize.Allow {
			return nil
		}
		if err != nil {
			reason = err.Error()
		}
		return authorize.Forbidden(&a, reason)
	}
	if ns, name, ok := serviceAccount(who.Name); ok {
		err = ask(authorize.Attributes{Resource: "serviceaccounts", Namespace: ns, Name: name})
		if len(who.Groups) == 0 {
			who.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + ns}
		}
	} else {
		err = ask(authorize.Attributes{Resource: "users", Name: who.Name})
	}
	for _, g := range r.Header.Values(groupHeader) {
		if err == nil {
			err = ask(authorize.Attributes{Resource: "groups", Name: g})
		}
	}
	for k, values := range who.Extra {
		for _, v := range values {
			if err == nil {
				err = ask(authorize.Attributes{Group: "authentication.k8s.io", Version: "v1", Resource: "userextras", Subresource: k, Name: v})
			}
		}
	}
	if err == nil && who.UID != "" {
		err = ask(authorize.Attributes{Group: "authentication.k8s.io", Version: "v1", Resource: "uids", Name: who.UID})
	}
	if err != nil {
		return nil, err
	}
	if who.Name == authenticate.AnonymousUser {
		who.Groups = append(who.Groups[:len(who.Groups):len(who.Groups)], authenticate.Unauthenticated)
	} else {
		who.Groups = append(who.Groups[:len(who.Groups):len(who.Groups)], authenticate.Authenticated)
	}
	return who, nil
}

func serviceAccount(name string) (namespace, account string, ok bool) {
	rest, ok := strings.CutPrefix(name, "system:serviceaccount:")
	if !ok {
		return "", "", false
	}
	namespace, account, ok = strings.Cut(rest, ":")
	return namespace, account, ok && namespace != "" && account != "" && !strings.Contains(account, ":")
}
