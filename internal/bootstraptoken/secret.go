// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package bootstraptoken

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
)

const (
	secretType   = "bootstrap.kubernetes.io/token"
	secretPrefix = "bootstrap-token-"
	usagePrefix  = "usage-bootstrap-"
)

// The usages of tokens.
const (
	Signing        = "signing"
	Authentication = "authentication"
)

// Usages returns all usages, which a token that joins a node has.
func Usages() []string { return []string{Signing, Authentication} }

// DefaultGroup is the group that kubeadm gives the bearers of its tokens.
const DefaultGroup = "system:bootstrappers:kubeadm:default-node-token"

var groupFormed = regexp.MustCompile(`^system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]$`)

// Entry is a token as the cluster keeps it.
type Entry struct {
	Token
	Description string
	Expires     time.Time // zero: never
	Usages      []string
	Groups      []string
}

// Check refuses usages and groups that no token can have.
func (e *Entry) Check() error {
	for _, u := range e.Usages {
		if !slices.Contains(Usages(), u) {
			return fmt.Errorf("usage %q: want %s", u, strings.Join(Usages(), " or "))
		}
	}
	for _, g := range e.Groups {
		if !groupFormed.MatchString(g) {
			return fmt.Errorf("group %q: want one that matches %s", g, groupFormed)
		}
	}
	if len(e.Groups) > 0 && !slices.Contains(e.Usages, Authentication) {
		return fmt.Errorf("groups are of tokens with the usage %s", Authentication)
	}
	return nil
}

func (e *Entry) secret() *corev1.Secret {
	out := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: secretPrefix + e.ID, Namespace: metav1.NamespaceSystem},
		Type:       secretType,
		Data:       map[string][]byte{"token-id": []byte(e.ID), "token-secret": []byte(e.Secret)},
	}
	if e.Description != "" {
		out.Data["description"] = []byte(e.Description)
	}
	if !e.Expires.IsZero() {
		out.Data["expiration"] = []byte(e.Expires.UTC().Format(time.RFC3339))
	}
	for _, u := range e.Usages {
		out.Data[usagePrefix+u] = []byte("true")
	}
	if len(e.Groups) > 0 {
		out.Data["auth-extra-groups"] = []byte(strings.Join(e.Groups, ","))
	}
	return out
}

func read(s *corev1.Secret) (Entry, error) {
	e := Entry{Token: Token{string(s.Data["token-id"]), string(s.Data["token-secret"])}, Description: string(s.Data["description"])}
	if s.Name != secretPrefix+e.ID || !wellFormed.MatchString(e.String()) {
		return e, fmt.Errorf("secret %s is of no token", s.Name)
	}
	if text := string(s.Data["expiration"]); text != "" {
		var err error
		if e.Expires, err = time.Parse(time.RFC3339, text); err != nil {
			return e, fmt.Errorf("read expiration of token %s: %w", e.ID, err)
		}
	}
	for _, u := range Usages() {
		if string(s.Data[usagePrefix+u]) == "true" {
			e.Usages = append(e.Usages, u)
		}
	}
	if text := string(s.Data["auth-extra-groups"]); text != "" {
		e.Groups = strings.Split(text, ",")
	}
	return e, nil
}

// Create makes the token's secret.
func Create(ctx context.Context, client kubernetes.Interface, e Entry) error {
	_, err := client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, e.secret(), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("there is a token with the ID %s already", e.ID)
	} else if err != nil {
		return fmt.Errorf("make token: %w", err)
	}
	return nil
}

// List is all tokens, those that end first before the others. Secrets that are of no token are in skipped.
func List(ctx context.Context, client kubernetes.Interface) (all []Entry, skipped []error, err error) {
	found, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("type", secretType).String()})
	if err != nil {
		return nil, nil, fmt.Errorf("list tokens: %w", err)
	}
	for i := range found.Items {
		e, err := read(&found.Items[i])
		if err != nil {
			skipped = append(skipped, err)
			continue
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b Entry) int {
		if a.Expires.IsZero() != b.Expires.IsZero() {
			return cmp.Compare(a.Expires.Unix(), b.Expires.Unix()) * -1 // the one that never ends is last
		}
		return cmp.Or(a.Expires.Compare(b.Expires), strings.Compare(a.ID, b.ID))
	})
	return all, skipped, nil
}

// Delete deletes a token by its ID.
func Delete(ctx context.Context, client kubernetes.Interface, id string) error {
	err := client.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, secretPrefix+id, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no token with the ID %s", id)
	} else if err != nil {
		return fmt.Errorf("delete token %s: %w", id, err)
	}
	return nil
}
