// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package impersonate lets a user act as another user through the Impersonate-* headers, if the authorizer allows it.
//
// A user may be allowed to impersonate in several ways ([modes]); one is enough. The verb impersonate allows everything
// that the other user may do. Constrained impersonation needs two verbs: impersonate:MODE, to be that user, and
// impersonate-on:MODE:VERB, to make this request as that user. The mode depends on the user that the request names: the
// node of the requester's own pod, any node, a service account, or another user.
package impersonate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/lru"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
)

const (
	userHeader  = "Impersonate-User"
	uidHeader   = "Impersonate-Uid"
	groupHeader = "Impersonate-Group"
	extraPrefix = "Impersonate-Extra-"
)

// Requested returns the user that the headers name; nil if they name none. It removes the headers, so that no later
// stage depends on them.
func Requested(h http.Header) (*user.DefaultInfo, error) {
	who := &user.DefaultInfo{Name: h.Get(userHeader), UID: h.Get(uidHeader)}
	who.Groups = append(who.Groups, h[groupHeader]...)
	extra := false
	for name, values := range h {
		if !strings.HasPrefix(name, extraPrefix) {
			continue
		}
		extra = true
		if len(values) == 0 {
			continue
		}
		k := strings.ToLower(name[len(extraPrefix):])
		if u, err := url.PathUnescape(k); err == nil {
			k = u
		}
		if who.Extra == nil {
			who.Extra = map[string][]string{}
		}
		who.Extra[k] = append(who.Extra[k], values...)
	}
	if who.Name == "" {
		if len(who.Groups) > 0 || extra || who.UID != "" {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("requested %#v without impersonating a user name", who))
		}
		return nil, nil
	}
	for name := range h {
		if name == userHeader || name == uidHeader || name == groupHeader || strings.HasPrefix(name, extraPrefix) {
			delete(h, name)
		}
	}
	return who, nil
}

// Impersonator decides which users may impersonate which others. It is safe for concurrent use.
type Impersonator struct {
	may  authorize.Authorizer
	last *lru.Cache // by the requester's name: the mode that allowed it, which is tried first

	metrics *metrics
}

// maxRemembered is the maximum number of cached modes.
const maxRemembered = 10_000

// New returns an Impersonator that uses an authorizer.
func New(may authorize.Authorizer) *Impersonator {
	m := newMetrics()
	return &Impersonator{may: measured{may, m}, last: lru.New(maxRemembered), metrics: m}
}

// Wanted reports whether the headers may name a user, so that most requests need no further check.
func Wanted(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "Impersonate-") {
			return true
		}
	}
	return false
}

// As returns the user that the headers name and, if constrained impersonation allowed it, the verb that did. The user
// is nil if the headers name none. request has the attributes of the original request.
func (i *Impersonator) As(ctx context.Context, h http.Header, request authorize.Attributes) (as user.Info, constraint string, err error) {
	who, err := Requested(h)
	if who == nil || err != nil {
		return nil, "", err
	}
	began := time.Now()
	defer func() { i.metrics.attempted(constraint, err, time.Since(began)) }()
	all := modes()
	order := make([]int, 0, len(all)+1)
	if last, ok := i.last.Get(request.User.GetName()); ok {
		order = append(order, last.(int))
	}
	for n := range all {
		if !slices.Contains(order, n) {
			order = append(order, n)
		}
	}
	var first error
	for _, n := range order {
		if all[n].applies != nil && !all[n].applies(who, request.User) {
			continue
		}
		c := check{may: i.may, mode: &all[n], request: request, from: request.User}
		as, err := c.as(ctx, who)
		if err == nil {
			i.last.Add(request.User.GetName(), n)
			return as, all[n].constraint(), nil
		}
		if first == nil {
			first = err
		}
	}
	if first == nil {
		first = errors.New("all impersonation modes failed") // upstream's words
	}
	return nil, "", first
}
