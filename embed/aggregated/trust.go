// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	trustNamespace = metav1.NamespaceSystem
	trustName      = "extension-apiserver-authentication"
)

// trust has the CAs of the cluster's ConfigMap, updated by a watch. It logs invalid content and keeps the previous content.
type trust struct {
	client kubernetes.Interface
	log    *slog.Logger
	now    atomic.Pointer[believed]

	once  sync.Once
	known chan struct{} // closed with the first content
}

// believed is the content of one version of the ConfigMap.
type believed struct {
	clients                          *x509.CertPool // CAs of client certificates; nil: none
	proxies                          *x509.CertPool // CAs of the front proxy's certificate; nil: none
	names                            []string       // allowed common names of a front proxy; none: all
	user, uid, groups, extraPrefixes []string
}

func newTrust(client kubernetes.Interface, log *slog.Logger) *trust {
	return &trust{client: client, log: log, known: make(chan struct{})}
}

// run watches the ConfigMap until ctx ends.
func (t *trust) run(ctx context.Context) {
	only := fields.OneTermEqualSelector("metadata.name", trustName).String()
	maps := t.client.CoreV1().ConfigMaps(trustNamespace)
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = only
				return maps.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = only
				return maps.Watch(ctx, o)
			},
		},
		ObjectType: &corev1.ConfigMap{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { t.take(o) },
			UpdateFunc: func(_, o any) { t.take(o) },
			// A deleted ConfigMap does not revoke the CAs: the API server creates it again.
		},
	})
	informer.RunWithContext(ctx)
}

// wait returns when the CAs are known.
func (t *trust) wait(ctx context.Context) error {
	select {
	case <-t.known:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("read ConfigMap %s/%s: %w", trustNamespace, trustName, context.Cause(ctx))
	}
}

func (t *trust) take(o any) {
	m, ok := o.(*corev1.ConfigMap)
	if !ok {
		return
	}
	b, err := parseTrust(m.Data)
	if err != nil {
		t.log.Error("Could not read the authentication ConfigMap, keeping the previous content", "configmap", trustNamespace+"/"+trustName,
			"error", err)
		return
	}
	t.now.Store(b)
	t.once.Do(func() { close(t.known) })
}

// parseTrust parses the ConfigMap's data. A missing key counts as empty.
func parseTrust(data map[string]string) (*believed, error) {
	b := &believed{}
	for key, to := range map[string]**x509.CertPool{"client-ca-file": &b.clients, "requestheader-client-ca-file": &b.proxies} {
		if data[key] == "" {
			continue
		}
		*to = x509.NewCertPool()
		if !(*to).AppendCertsFromPEM([]byte(data[key])) {
			return nil, fmt.Errorf("read %s: no certificates in it", key)
		}
	}
	for key, to := range map[string]*[]string{
		"requestheader-allowed-names": &b.names, "requestheader-username-headers": &b.user, "requestheader-uid-headers": &b.uid,
		"requestheader-group-headers": &b.groups, "requestheader-extra-headers-prefix": &b.extraPrefixes,
	} {
		if data[key] == "" {
			continue
		}
		if err := json.Unmarshal([]byte(data[key]), to); err != nil {
			return nil, fmt.Errorf("read %s: %w", key, err)
		}
	}
	return b, nil
}

// current returns the current CAs; nil before the first content.
func (t *trust) current() *believed {
	if b := t.now.Load(); b != nil {
		return b
	}
	return &believed{}
}

// The values that authenticators read at each request.

func (t *trust) clientOptions() (x509.VerifyOptions, bool) { return options(t.current().clients) }
func (t *trust) proxyOptions() (x509.VerifyOptions, bool)  { return options(t.current().proxies) }

func options(pool *x509.CertPool) (x509.VerifyOptions, bool) {
	return x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, pool != nil
}

// list is one list of the current content, for authenticators.
type list func() []string

// Value returns the list.
func (l list) Value() []string { return l() }
