// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package bootstraptokens serves machines that know a cluster only by a bootstrap token.
//
// [Signer] signs the ConfigMap kube-public/cluster-info with each token whose secret allows signing, so that a client that knows the token
// can verify the ConfigMap. [Cleaner] deletes tokens when they expire.
package bootstraptokens

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
)

const (
	tokenType   = "bootstrap.kubernetes.io/token"
	tokenPrefix = "bootstrap-token-"
	signature   = "jws-kubeconfig-"
	signed      = "kubeconfig"
	infoName    = "cluster-info"
)

var (
	secrets    = corev1.SchemeGroupVersion.WithResource("secrets")
	configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")
)

// Signer describes the loop that signs cluster-info.
func Signer() controllers.Controller {
	return controllers.Controller{
		Name:    "bootstrap-signer-controller",
		Account: "bootstrap-signer",
		Outputs: []schema.GroupVersionResource{configMaps},
		New: func(d *controllers.Deps) (controllers.Runner, error) {
			tokens := only(d, metav1.NamespaceSystem, fields.OneTermEqualSelector("type", tokenType))
			info := only(d, metav1.NamespacePublic, fields.OneTermEqualSelector("metadata.name", infoName))
			s, m := tokens.Core().V1().Secrets(), info.Core().V1().ConfigMaps()
			c := &signer{client: d.Client, clock: d.Clock, secrets: s.Lister(), maps: m.Lister()}
			queue := controllers.NewQueue[string](d, "bootstrap_signer_queue", 1)
			add := func(metav1.Object) { queue.Add(infoName) }
			err := errors.Join(d.SubscribeLate(s.Informer(), add), d.SubscribeLate(m.Informer(), add))
			return controllers.RunnerFunc(func(ctx context.Context) error {
				defer tokens.Shutdown()
				defer info.Shutdown()
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				if !started(ctx, tokens, s.Informer()) || !started(ctx, info, m.Informer()) {
					return nil
				}
				return queue.Run(ctx, c.sync)
			}), err
		},
	}
}

// only returns informers for the selected objects of a namespace, so that memory does not hold the others.
func only(d *controllers.Deps, namespace string, s fields.Selector) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(d.Client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = s.String() }))
}

// started starts a factory and waits for its informer. It returns false when ctx ended first.
func started(ctx context.Context, f informers.SharedInformerFactory, i cache.SharedIndexInformer) bool {
	f.StartWithContext(ctx)
	select {
	case <-i.HasSyncedChecker().Done():
		return true
	case <-ctx.Done():
		return false
	}
}

func isToken(s *corev1.Secret) bool {
	return s.Namespace == metav1.NamespaceSystem && s.Type == tokenType
}

type signer struct {
	client  kubernetes.Interface
	clock   clock.PassiveClock
	secrets listers.SecretLister
	maps    listers.ConfigMapLister
}

// sync makes the ConfigMap's signatures match the tokens.
func (c *signer) sync(ctx context.Context, _ string) error {
	have, err := c.maps.ConfigMaps(metav1.NamespacePublic).Get(infoName)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get cluster-info: %w", err)
	}
	content, ok := have.Data[signed]
	if !ok {
		return nil
	}
	want := maps.Clone(have.Data)
	maps.DeleteFunc(want, func(k, _ string) bool { return strings.HasPrefix(k, signature) })
	all, err := c.secrets.Secrets(metav1.NamespaceSystem).List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list secrets: %w", err)
	}
	for _, s := range all {
		id, secret, ok := token(s, c.clock.Now())
		if !ok {
			continue
		}
		if want[signature+id], err = sign(content, id, secret); err != nil {
			return fmt.Errorf("sign cluster-info with token %s: %w", id, err)
		}
	}
	if maps.Equal(want, have.Data) {
		return nil
	}
	update := have.DeepCopy()
	update.Data = want
	_, err = c.client.CoreV1().ConfigMaps(metav1.NamespacePublic).Update(ctx, update, metav1.UpdateOptions{})
	return err
}

// token returns the token in a secret. ok is false unless the secret holds a token to sign with.
func token(s *corev1.Secret, now time.Time) (id, secret string, ok bool) {
	id, named := strings.CutPrefix(s.Name, tokenPrefix)
	secret = string(s.Data["token-secret"])
	end, expires, _ := expiration(s)
	ok = s.Type == tokenType && named && isID(id) && string(s.Data["token-id"]) == id && secret != "" &&
		string(s.Data["usage-bootstrap-signing"]) == "true" && (!expires || end.After(now))
	return id, secret, ok
}

// isID reports whether id is a valid token ID.
func isID(id string) bool {
	return len(id) == 6 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// expiration returns when a token ends, if it ever does. A token with an unreadable expiration has expired.
func expiration(s *corev1.Secret) (end time.Time, expires bool, err error) {
	text := string(s.Data["expiration"])
	if text == "" {
		return time.Time{}, false, nil
	}
	end, err = time.Parse(time.RFC3339, text)
	return end, true, err
}

// sign returns a JSON web signature (HS256) with detached content: the reader has the content in the ConfigMap.
func sign(content, id, secret string) (string, error) {
	header, err := json.Marshal(map[string]string{"alg": "HS256", "kid": id})
	if err != nil {
		return "", fmt.Errorf("encode header: %w", err)
	}
	enc := base64.RawURLEncoding
	head := enc.EncodeToString(header)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(head + "." + enc.EncodeToString([]byte(content)))) // hash.Hash never returns an error
	return head + ".." + enc.EncodeToString(mac.Sum(nil)), nil
}

// Cleaner describes the loop that deletes tokens that have expired.
func Cleaner() controllers.Controller {
	return controllers.Controller{
		Name:    "token-cleaner-controller",
		Account: "token-cleaner",
		Outputs: []schema.GroupVersionResource{secrets},
		New: func(d *controllers.Deps) (controllers.Runner, error) {
			tokens := only(d, metav1.NamespaceSystem, fields.OneTermEqualSelector("type", tokenType))
			informer := tokens.Core().V1().Secrets()
			lister := informer.Lister()
			queue := controllers.NewQueue[string](d, "token_cleaner", 1)
			err := d.SubscribeLate(informer.Informer(), func(s metav1.Object) { queue.Add(s.GetName()) })
			return controllers.RunnerFunc(func(ctx context.Context) error {
				defer tokens.Shutdown()
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				if !started(ctx, tokens, informer.Informer()) {
					return nil
				}
				return queue.Run(ctx, func(ctx context.Context, name string) error {
					s, err := lister.Secrets(metav1.NamespaceSystem).Get(name)
					if apierrors.IsNotFound(err) || err == nil && !isToken(s) {
						return nil
					} else if err != nil {
						return fmt.Errorf("get secret: %w", err)
					}
					end, expires, _ := expiration(s) // a token with an unreadable expiration has expired
					if !expires {
						return nil
					}
					if left := end.Sub(d.Clock.Now()); left > 0 {
						queue.AddAfter(name, left)
						return nil
					}
					err = d.Client.CoreV1().Secrets(s.Namespace).Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}})
					if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
						return nil
					}
					return err
				})
			}), err
		},
	}
}
