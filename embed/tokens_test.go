// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// TestTokenSecrets goes a secret's way: it is filled, its token is used and that is noted, and it goes with its account.
func TestTokenSecrets(t *testing.T) {
	s := &Server{Controllers: []string{"serviceaccount-token-controller"}, Node: NodeNone}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c := s.Client().CoreV1()
	if _, err := c.ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Secrets("default").Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "key", Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lw := cache.NewListWatchFromClient(c.RESTClient(), "secrets", "default", fields.OneTermEqualSelector("metadata.name", "key"))
	await := func(is func(e watch.Event) bool) *corev1.Secret {
		t.Helper()
		e, err := watchtools.UntilWithSync(ctx, lw, &corev1.Secret{}, func(all cache.Store) (bool, error) {
			return len(all.List()) == 0 && is(watch.Event{Type: watch.Deleted}), nil
		}, func(e watch.Event) (bool, error) { return is(e), nil })
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			return nil
		}
		return e.Object.(*corev1.Secret)
	}
	secret := await(func(e watch.Event) bool {
		s, ok := e.Object.(*corev1.Secret)
		return ok && len(s.Data["token"]) > 0
	})
	if string(secret.Data["ca.crt"]) != string(s.Config().CAData) || string(secret.Data["namespace"]) != "default" {
		t.Errorf("filled with %v", secret.Data)
	}
	config := rest.AnonymousClientConfig(s.Config())
	config.BearerToken = string(secret.Data["token"])
	who, err := kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err != nil || who.Status.UserInfo.Username != "system:serviceaccount:default:robot" {
		t.Fatalf("by the token: %v, %v", who, err)
	}
	const label = "kubernetes.io/legacy-token-last-used"
	secret = await(func(e watch.Event) bool {
		s, ok := e.Object.(*corev1.Secret)
		return ok && s.Labels[label] != ""
	})
	owned := false
	for _, f := range secret.ManagedFields {
		owned = owned || f.Manager == "kube-apiserver" && strings.Contains(f.FieldsV1.GetRawString(), label)
	}
	if !owned {
		t.Errorf("nobody owns the label: %v", secret.ManagedFields)
	}
	if err := c.ServiceAccounts("default").Delete(ctx, "robot", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(func(e watch.Event) bool { return e.Type == watch.Deleted })
	if _, err := kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews().Create(ctx,
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}); err == nil {
		t.Error("the token outlived its account")
	}
}
