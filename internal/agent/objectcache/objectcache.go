// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package objectcache caches the objects of the API server that the node's pods refer to: ConfigMaps, Secrets, trust bundles and requests
// for certificates. It watches each object separately, as long as a pod refers to it. One watch for a signer serves the trust bundles that
// pods select by signer and labels, and one watch serves the node's requests for pods' certificates. A node never lists Secrets that none
// of its pods refers to.
//
// A Manager is safe for concurrent use. The node registers a pod before it reads objects for the pod; an object that no
// registered pod refers to is read from the API server.
package objectcache

import (
	"context"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/mortise-dev/mortise/internal/podrefs"
)

// followWait is the maximum time until a watch has shown an object's first state.
const followWait = 10 * time.Second

// Manager caches the ConfigMaps, Secrets and trust bundles that the node's pods refer to.
type Manager struct {
	client kubernetes.Interface
	node   string
	notify func(users []types.UID)

	mu      sync.Mutex
	entries map[objectKey]*followed
	running sync.WaitGroup
}

// New makes the manager of the named node. When an object changes, the manager calls notify with the pods that refer to it.
func New(client kubernetes.Interface, node string, notify func(users []types.UID)) *Manager {
	return &Manager{client: client, node: node, notify: notify, entries: map[objectKey]*followed{}}
}

// objectKey identifies a watch: of one object, or of all objects whose field has the value name.
type objectKey struct{ kind, namespace, name string }

func (k objectKey) String() string {
	return k.kind + " " + cache.NewObjectName(k.namespace, k.name).String()
}

// resource is the resource in the error for a missing object.
func (k objectKey) resource() schema.GroupResource {
	if k.kind == kindTrustBundle {
		return certificatesv1.Resource(k.kind)
	}
	return corev1.Resource(k.kind)
}

// The kinds of watched objects.
const (
	kindConfigMap    = "configmap"
	kindSecret       = "secret"
	kindTrustBundle  = "clustertrustbundle"
	kindTrustBundles = "clustertrustbundles of signer"

	kindCertificateRequests = "podcertificaterequests of node"
)

// signerField is the field selector for the trust bundles of a signer.
const signerField = "spec.signerName"

type followed struct {
	informer cache.SharedIndexInformer
	cancel   context.CancelFunc
	users    map[types.UID]bool
}

// RegisterPod watches the objects that the pod refers to, and no others for it. Requests carry the context's values; the watches outlive
// the context.
func (m *Manager) RegisterPod(ctx context.Context, pod *corev1.Pod) {
	m.use(ctx, pod.UID, references(pod))
}

// UnregisterPod ends the watches for the pod.
func (m *Manager) UnregisterPod(uid types.UID) { m.use(context.Background(), uid, nil) }

// Stop ends all watches and waits for their end. No pod may be registered afterwards.
func (m *Manager) Stop() {
	m.mu.Lock()
	for key, e := range m.entries {
		e.cancel()
		delete(m.entries, key)
	}
	m.mu.Unlock()
	m.running.Wait()
}

// use sets the objects that the pod refers to; none for a pod that is gone.
func (m *Manager) use(ctx context.Context, uid types.UID, keys []objectKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	wanted := map[objectKey]bool{}
	for _, key := range keys {
		wanted[key] = true
		e := m.entries[key]
		if e == nil {
			e = m.start(ctx, key)
			m.entries[key] = e
		}
		e.users[uid] = true
	}
	for key, e := range m.entries {
		if wanted[key] || !e.users[uid] {
			continue
		}
		delete(e.users, uid)
		if len(e.users) == 0 {
			e.cancel()
			delete(m.entries, key)
		}
	}
}

// follower lists and watches the objects of a key.
type follower struct {
	example runtime.Object
	list    func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error)
	watch   func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
	field   string // the field selector for the key's name
}

func (m *Manager) follower(key objectKey) follower {
	core := m.client.CoreV1()
	switch key.kind {
	case kindConfigMap:
		api := core.ConfigMaps(key.namespace)
		return follow(&corev1.ConfigMap{}, metav1.ObjectNameField, api.List, api.Watch)
	case kindTrustBundle:
		api := m.client.CertificatesV1().ClusterTrustBundles()
		return follow(&certificatesv1.ClusterTrustBundle{}, metav1.ObjectNameField, api.List, api.Watch)
	case kindTrustBundles:
		api := m.client.CertificatesV1().ClusterTrustBundles()
		return follow(&certificatesv1.ClusterTrustBundle{}, signerField, api.List, api.Watch)
	case kindCertificateRequests:
		api := m.client.CertificatesV1().PodCertificateRequests(metav1.NamespaceAll)
		return follow(&certificatesv1.PodCertificateRequest{}, "spec.nodeName", api.List, api.Watch)
	}
	api := core.Secrets(key.namespace)
	return follow(&corev1.Secret{}, metav1.ObjectNameField, api.List, api.Watch)
}

// follow makes a follower from a client's methods.
func follow[L runtime.Object](
	example runtime.Object, field string,
	list func(context.Context, metav1.ListOptions) (L, error),
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error),
) follower {
	return follower{
		example: example, field: field, watch: watch,
		list: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return list(ctx, options)
		},
	}
}

func (m *Manager) start(ctx context.Context, key objectKey) *followed {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := m.follower(key)
	tweak := func(options metav1.ListOptions) metav1.ListOptions {
		options.FieldSelector = fields.OneTermEqualSelector(f.field, key.name).String()
		return options
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return f.list(ctx, tweak(options))
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return f.watch(ctx, tweak(options))
		},
	}
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lw, m.client), f.example, 0, cache.Indexers{})
	e := &followed{informer: informer, cancel: cancel, users: map[types.UID]bool{}}
	tell := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if r, ok := obj.(*certificatesv1.PodCertificateRequest); ok {
			m.notify([]types.UID{r.Spec.PodUID}) // the request concerns no other pod
			return
		}
		if changed, ok := obj.(metav1.Object); ok && (f.field != metav1.ObjectNameField || changed.GetName() == key.name) {
			m.notify(m.usersOf(key))
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: tell, UpdateFunc: func(_, obj any) { tell(obj) }, DeleteFunc: tell,
	}); err != nil {
		panic("a new informer takes no handler: " + err.Error())
	}
	m.running.Go(func() { informer.RunWithContext(ctx) })
	return e
}

func (m *Manager) usersOf(key objectKey) []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []types.UID
	if e := m.entries[key]; e != nil {
		for uid := range e.users {
			out = append(out, uid)
		}
	}
	return out
}

// store returns the cache of a key after its first state was read; nil: the key is not watched.
func (m *Manager) store(ctx context.Context, key objectKey) (cache.Store, error) {
	m.mu.Lock()
	e := m.entries[key]
	m.mu.Unlock()
	if e == nil {
		return nil, nil
	}
	// An object that cannot be watched (because it is forbidden, say) must not block its pod for ever.
	ctx, cancel := context.WithTimeout(ctx, followWait)
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), e.informer.HasSynced) {
		return nil, fmt.Errorf("wait for %s: %w", key, context.Cause(ctx))
	}
	return e.informer.GetStore(), nil
}

// get returns a watched object from the cache, and reads any other from the API server.
func get[T any](ctx context.Context, m *Manager, key objectKey, ask func() (*T, error)) (*T, error) {
	store, err := m.store(ctx, key)
	if err != nil {
		return nil, err
	}
	if store == nil {
		return ask()
	}
	obj, ok, err := store.GetByKey(cache.NewObjectName(key.namespace, key.name).String())
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", key, err)
	}
	if !ok {
		return nil, apierrors.NewNotFound(key.resource(), key.name)
	}
	return obj.(*T), nil
}

// ConfigMap returns one ConfigMap. The caller must not change it.
func (m *Manager) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	return get(ctx, m, objectKey{kindConfigMap, namespace, name}, func() (*corev1.ConfigMap, error) {
		return m.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	})
}

// Secret returns one Secret. The caller must not change it.
func (m *Manager) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return get(ctx, m, objectKey{kindSecret, namespace, name}, func() (*corev1.Secret, error) {
		return m.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	})
}

// Token requests a service account token.
func (m *Manager) Token(
	ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest,
) (*authenticationv1.TokenRequest, error) {
	return m.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
}

// ServiceAccount returns one service account.
func (m *Manager) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return m.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Claim returns one claim.
func (m *Manager) Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return m.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Volume returns one persistent volume.
func (m *Manager) Volume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	return m.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
}

// references returns the keys of the objects that a pod's definition refers to.
func references(pod *corev1.Pod) []objectKey {
	var out []objectKey
	podrefs.Visit(pod, func(kind podrefs.Kind, name string) {
		switch kind {
		case podrefs.ConfigMap:
			out = append(out, objectKey{kindConfigMap, pod.Namespace, name})
		case podrefs.Secret:
			out = append(out, objectKey{kindSecret, pod.Namespace, name})
		}
	})
	for _, v := range pod.Spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if s.ClusterTrustBundle != nil {
				out = append(out, bundleReference(s.ClusterTrustBundle)...)
			}
			if s.PodCertificate != nil {
				out = append(out, objectKey{kind: kindCertificateRequests, name: pod.Spec.NodeName})
			}
		}
	}
	return out
}
