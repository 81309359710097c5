// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"net/http"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// reviewToken is a token webhook: the token "user-NAME" is that of NAME, in the group readers.
func reviewToken(w http.ResponseWriter, r *http.Request) {
	var review authenticationv1.TokenReview
	if !read(w, r, &review) {
		return
	}
	name, known := strings.CutPrefix(review.Spec.Token, "user-")
	review.Spec = authenticationv1.TokenReviewSpec{} // a token does not belong into an answer
	if known {
		review.Status.Authenticated = true
		review.Status.User = authenticationv1.UserInfo{Username: name, Groups: []string{"readers"}}
	}
	answer(w, review)
}

// reviewAccess is an authorization webhook: readers may read config maps. It has no opinion about all else.
func reviewAccess(w http.ResponseWriter, r *http.Request) {
	var review authorizationv1.SubjectAccessReview
	if !read(w, r, &review) {
		return
	}
	of := review.Spec.ResourceAttributes
	for _, group := range review.Spec.Groups {
		if group == "readers" && of != nil && of.Resource == "configmaps" && (of.Verb == "get" || of.Verb == "list") {
			review.Status.Allowed = true
		}
	}
	if !review.Status.Allowed {
		review.Status.Reason = "readers read config maps" // Denied: true would keep later authorizers from allowing it
	}
	answer(w, review)
}

// audit is an audit webhook: it prints the writes of secrets.
func audit(w http.ResponseWriter, r *http.Request) {
	var events auditv1.EventList
	if !read(w, r, &events) {
		return
	}
	for _, e := range events.Items {
		if e.ObjectRef != nil && e.ObjectRef.Resource == "secrets" {
			slog.Info("Audited", "user", e.User.Username, "verb", e.Verb, "name", e.ObjectRef.Name, "code", e.ResponseStatus.Code)
		}
	}
	w.WriteHeader(http.StatusOK)
}

// reviewImages is an image policy webhook: images need a tag other than latest, or a digest.
func reviewImages(w http.ResponseWriter, r *http.Request) {
	var review imagepolicyv1alpha1.ImageReview
	if !read(w, r, &review) {
		return
	}
	review.Status.Allowed = true
	for _, c := range review.Spec.Containers {
		name := c.Image[strings.LastIndex(c.Image, "/")+1:]
		if !strings.Contains(name, ":") && !strings.Contains(name, "@") || strings.HasSuffix(name, ":latest") {
			review.Status = imagepolicyv1alpha1.ImageReviewStatus{Reason: c.Image + " has no fixed tag"}
		}
	}
	answer(w, review)
}
