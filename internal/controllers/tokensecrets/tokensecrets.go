// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package tokensecrets manages the secrets that hold a service account's token: those of type kubernetes.io/service-account-token, whose
// annotation kubernetes.io/service-account.name names the account.
//
// [Filler] writes the token, the cluster's root certificate and the namespace into such a secret, and deletes it when its
// account is gone or is another one of that name. [Cleaner] removes the secrets that upstream once generated for each account and
// that no client has used for a year: first it marks them as invalid, so that their users notice and can remove the mark, and a
// year later it deletes them. Secrets that users created stay.
//
// Both watch only the secrets of this type, so that memory does not hold the others.
package tokensecrets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/sharedobjects"
)

var (
	secrets  = corev1.SchemeGroupVersion.WithResource("secrets")
	accounts = corev1.SchemeGroupVersion.WithResource("serviceaccounts")
)

// Filler describes the loop that fills secrets.
func Filler() controllers.Controller {
	return controllers.Controller{
		Name:    "serviceaccount-token-controller",
		Account: controllers.Manager,
		Inputs:  []schema.GroupVersionResource{accounts},
		Outputs: []schema.GroupVersionResource{secrets, accounts},
		Syncs:   &controllers.Syncs{Flag: "concurrent-serviceaccount-token-syncs", Default: 5},
		New:     build,
	}
}

// token names a secret that exists or existed, and its account.
type token struct {
	types.NamespacedName
	uid        types.UID
	account    string
	accountUID types.UID // empty until the secret is filled
}

// account names an account that exists or existed.
type account struct {
	types.NamespacedName
	uid types.UID
}

type filler struct {
	client   kubernetes.Interface
	sign     controllers.TokenSigner
	rootCA   []byte
	secrets  listers.SecretLister
	accounts listers.ServiceAccountLister
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	if d.Cluster.Tokens == nil {
		return controllers.RunnerFunc(func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}), nil
	}
	own := ofType(d)
	all, found := d.Informers.Core().V1().ServiceAccounts(), own.Core().V1().Secrets()
	c := &filler{client: d.Client, sign: d.Cluster.Tokens, rootCA: d.Cluster.Trusted(), secrets: found.Lister(), accounts: all.Lister()}
	tokens := controllers.NewQueue[token](d, "serviceaccount_tokens_secret", d.Syncs())
	owners := controllers.NewQueue[account](d, "serviceaccount_tokens_service", d.Syncs())
	err := errors.Join(
		controllers.Subscribe(d, all.Informer(), controllers.OnAny(func(a *corev1.ServiceAccount) {
			owners.Add(account{NamespacedName: controllers.Key(a), uid: a.UID})
		})),
		d.SubscribeLate(found.Informer(), func(s metav1.Object) {
			tokens.Add(token{
				NamespacedName: controllers.Key(s), uid: s.GetUID(),
				account: s.GetAnnotations()[corev1.ServiceAccountNameKey], accountUID: types.UID(s.GetAnnotations()[corev1.ServiceAccountUIDKey]),
			})
		}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error {
		return run(ctx, own, found.Informer(), func(ctx context.Context) error {
			return both(ctx, func(ctx context.Context) error { return tokens.Run(ctx, c.syncToken) },
				func(ctx context.Context) error { return owners.Run(ctx, c.syncAccount) })
		})
	}), err
}

// ofType returns informers for the secrets that hold tokens.
func ofType(d *controllers.Deps) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(d.Watcher, 0, informers.WithTransform(sharedobjects.DropAllManagedFields),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String()
		}))
}

// run starts a factory, waits for its informer, calls work, and shuts the factory down.
func run(ctx context.Context, f informers.SharedInformerFactory, i cache.SharedIndexInformer, work func(context.Context) error) error {
	defer f.Shutdown()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.StartWithContext(ctx)
	select {
	case <-i.HasSyncedChecker().Done():
		return work(ctx)
	case <-ctx.Done():
		return nil
	}
}

// both runs a and b until one of them ends, then ends the other.
func both(ctx context.Context, a, b func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	other := make(chan error, 1)
	go func() {
		defer cancel()
		other <- b(ctx)
	}()
	err := a(ctx)
	cancel()
	return errors.Join(err, <-other)
}

// syncAccount deletes the tokens of a deleted account.
func (c *filler) syncAccount(ctx context.Context, a account) error {
	if is, err := c.accounts.ServiceAccounts(a.Namespace).Get(a.Name); err == nil && is.UID == a.uid {
		return nil
	} else if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get service account: %w", err)
	}
	all, err := c.secrets.Secrets(a.Namespace).List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list secrets: %w", err)
	}
	gone := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Name, UID: a.uid}}
	var errs []error
	for _, s := range all {
		if serviceaccount.IsServiceAccountToken(s, gone) {
			errs = append(errs, c.remove(ctx, s))
		}
	}
	return errors.Join(errs...)
}

func (c *filler) remove(ctx context.Context, s *corev1.Secret) error {
	err := c.client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete secret %s: %w", s.Name, err)
	}
	return nil
}

// syncToken fills a secret. It deletes the secret if its account is gone, and removes a deleted secret from its account's list.
func (c *filler) syncToken(ctx context.Context, t token) error {
	s, err := c.secrets.Secrets(t.Namespace).Get(t.Name)
	if apierrors.IsNotFound(err) || err == nil && s.UID != t.uid {
		return c.forget(ctx, t)
	} else if err != nil {
		return fmt.Errorf("get secret: %w", err)
	}
	if s.Type != corev1.SecretTypeServiceAccountToken || t.account == "" {
		return nil
	}
	owner, err := c.owner(ctx, t)
	switch {
	case err != nil:
		return err
	case owner == nil:
		return c.remove(ctx, s)
	case !c.lacks(s):
		return nil
	}
	return c.fill(ctx, s, owner)
}

// owner returns the account that a secret names; nil if there is none. It asks the server before the secret is deleted for that: the cache
// may not know a new account yet.
func (c *filler) owner(ctx context.Context, t token) (*corev1.ServiceAccount, error) {
	fits := func(a *corev1.ServiceAccount) bool { return t.accountUID == "" || t.accountUID == a.UID }
	if a, err := c.accounts.ServiceAccounts(t.Namespace).Get(t.account); err == nil && fits(a) {
		return a, nil
	}
	a, err := c.client.CoreV1().ServiceAccounts(t.Namespace).Get(ctx, t.account, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get service account: %w", err)
	case !fits(a):
		return nil, nil
	}
	return a, nil
}

func (c *filler) lacks(s *corev1.Secret) bool {
	return len(s.Data[corev1.ServiceAccountTokenKey]) == 0 || len(s.Data[corev1.ServiceAccountNamespaceKey]) == 0 || c.otherRoot(s)
}

func (c *filler) otherRoot(s *corev1.Secret) bool {
	return len(c.rootCA) > 0 && !bytes.Equal(s.Data[corev1.ServiceAccountRootCAKey], c.rootCA)
}

// fill adds the secret's missing data. If another client changed the secret meanwhile, that change enqueues it again.
func (c *filler) fill(ctx context.Context, s *corev1.Secret, owner *corev1.ServiceAccount) error {
	out := s.DeepCopy()
	out.Data = maps.Clone(out.Data)
	if out.Data == nil {
		out.Data = map[string][]byte{}
	}
	if c.otherRoot(s) {
		out.Data[corev1.ServiceAccountRootCAKey] = c.rootCA
	}
	if len(out.Data[corev1.ServiceAccountNamespaceKey]) == 0 {
		out.Data[corev1.ServiceAccountNamespaceKey] = []byte(s.Namespace)
	}
	if len(out.Data[corev1.ServiceAccountTokenKey]) == 0 {
		signed, err := c.sign(ctx, s.Namespace, s.Name, owner.Name, string(owner.UID))
		if err != nil {
			return fmt.Errorf("sign token: %w", err)
		}
		out.Data[corev1.ServiceAccountTokenKey] = []byte(signed)
	}
	metav1.SetMetaDataAnnotation(&out.ObjectMeta, corev1.ServiceAccountNameKey, owner.Name)
	metav1.SetMetaDataAnnotation(&out.ObjectMeta, corev1.ServiceAccountUIDKey, string(owner.UID))
	_, err := c.client.CoreV1().Secrets(s.Namespace).Update(ctx, out, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write secret: %w", err)
	}
	return nil
}

// forget removes a deleted secret from its account's list.
func (c *filler) forget(ctx context.Context, t token) error {
	if t.account == "" {
		return nil
	}
	lists := func(a *corev1.ServiceAccount) bool {
		return (t.accountUID == "" || t.accountUID == a.UID) &&
			slices.ContainsFunc(a.Secrets, func(r corev1.ObjectReference) bool { return r.Name == t.Name })
	}
	if a, err := c.accounts.ServiceAccounts(t.Namespace).Get(t.account); err != nil || !lists(a) {
		return nil // the account's list only informs users, who miss no secret of that name
	}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		a, err := c.client.CoreV1().ServiceAccounts(t.Namespace).Get(ctx, t.account, metav1.GetOptions{})
		if err != nil || !lists(a) {
			return err
		}
		a.Secrets = slices.DeleteFunc(a.Secrets, func(r corev1.ObjectReference) bool { return r.Name == t.Name })
		_, err = c.client.CoreV1().ServiceAccounts(t.Namespace).Update(ctx, a, metav1.UpdateOptions{})
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("take secret %s from the list of account %s: %w", t.Name, t.account, err)
	}
	return nil
}
