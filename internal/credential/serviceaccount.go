// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"context"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// ServiceAccount requests a token of a service account from a server.
type ServiceAccount struct {
	Kubeconfig, Context string // of a user who may create tokens; empty: kubectl's defaults
	Namespace, Account  string // namespace empty: the context's
	Audiences           []string
	Duration            time.Duration // 0: the server's default
}

// Get implements [Source].
func (s *ServiceAccount) Get(ctx context.Context) (Token, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = s.Kubeconfig
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: s.Context})
	config, err := loaded.ClientConfig()
	if err != nil {
		return Token{}, fmt.Errorf("read kubeconfig: %w", err)
	}
	namespace := s.Namespace
	if namespace == "" {
		if namespace, _, err = loaded.Namespace(); err != nil {
			return Token{}, fmt.Errorf("read kubeconfig: %w", err)
		}
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return Token{}, fmt.Errorf("make client: %w", err)
	}
	r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: s.Audiences}}
	if s.Duration > 0 {
		seconds := int64(s.Duration / time.Second)
		r.Spec.ExpirationSeconds = &seconds
	}
	r, err = client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, s.Account, r, metav1.CreateOptions{})
	if err != nil {
		return Token{}, fmt.Errorf("ask %s for a token of service account %s/%s: %w", config.Host, namespace, s.Account, err)
	}
	return Token{r.Status.Token, r.Status.ExpirationTimestamp.Time}, nil
}

// Name implements [Source].
func (s *ServiceAccount) Name() string {
	return named("service-account", s.Kubeconfig, s.Context, s.Namespace, s.Account, strings.Join(s.Audiences, "\n"), s.Duration.String())
}
