// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// Backend is what kinds' own actions and admission plug-ins may do to the rest of the system.
type Backend struct{ api *API }

var (
	_ resource.Backend = (*Backend)(nil)
	_ resource.Keeper  = (*Backend)(nil)
)

// Backend returns the API's backend.
func (a *API) Backend() *Backend { return &Backend{a} }

func (b *Backend) kind(r schema.GroupResource) (*Kind, error) {
	if k := b.api.Kind(r); k != nil {
		return k, nil
	}
	return nil, apierrors.NewNotFound(r, "")
}

// Get returns the hub object, shared and read-only.
func (b *Backend) Get(ctx context.Context, r schema.GroupResource, namespace, name string) (resource.Object, error) {
	k, err := b.kind(r)
	if err != nil {
		return nil, err
	}
	if !k.Namespaced {
		namespace = ""
	}
	rec, _, err := b.api.Store.Get(ctx, k.Key(namespace, name))
	if err != nil {
		return nil, err
	}
	if rec == nil {
		return nil, apierrors.NewNotFound(r, name)
	}
	f, err := k.Forms(rec)
	if err != nil {
		return nil, err
	}
	return f.Hub, nil
}

// List returns all hub objects of a namespace, shared and read-only.
func (b *Backend) List(ctx context.Context, r schema.GroupResource, namespace string) ([]resource.Object, error) {
	k, err := b.kind(r)
	if err != nil {
		return nil, err
	}
	p, err := b.api.Store.Range(ctx, store.Range{Prefix: k.Under(namespace)})
	if err != nil {
		return nil, err
	}
	objs := make([]resource.Object, len(p.Records))
	for i, rec := range p.Records {
		f, err := k.Forms(rec)
		if err != nil {
			return nil, err
		}
		objs[i] = f.Hub
	}
	return objs, nil
}

// Update lets change edit a copy of the newest object and stores it.
func (b *Backend) Update(ctx context.Context, r schema.GroupResource, namespace, name string, dryRun bool, change func(resource.Object) error) (resource.Object, error) {
	return b.update(ctx, r, namespace, name, "", dryRun, change)
}

// UpdateAsServer implements [resource.ServerWriter].
func (b *Backend) UpdateAsServer(ctx context.Context, r schema.GroupResource, namespace, name, sub string, dryRun bool, change func(resource.Object) error) (resource.Object, error) {
	return b.update(ctx, r, namespace, name, sub, dryRun, change)
}

// Replace implements [resource.Backend].
func (b *Backend) Replace(ctx context.Context, r schema.GroupResource, namespace, name string, dryRun bool, with func(resource.Object) (resource.Object, error)) (resource.Object, error) {
	return b.rewrite(ctx, r, namespace, name, writing{dryRun: dryRun, exact: true}, func(_ *Kind, cur *watchcache.Forms) (resource.Object, error) {
		return with(cur.Hub)
	})
}

// update is Update. With a subresource, the server is written down as who changed the fields.
func (b *Backend) update(ctx context.Context, r schema.GroupResource, namespace, name, sub string, dryRun bool, change func(resource.Object) error) (resource.Object, error) {
	return b.rewrite(ctx, r, namespace, name, writing{dryRun: dryRun}, func(k *Kind, cur *watchcache.Forms) (resource.Object, error) {
		obj := own(cur)
		if err := change(obj); err != nil || sub == "" || b.api.Fields == nil {
			return obj, err
		}
		return b.api.Fields.Update(k.Descriptor, k.Storage, sub, cur.Hub, obj, "kube-apiserver")
	})
}

// rewrite stores what is made of the newest object, again on conflict.
func (b *Backend) rewrite(ctx context.Context, r schema.GroupResource, namespace, name string, how writing, next func(*Kind, *watchcache.Forms) (resource.Object, error)) (resource.Object, error) {
	k, err := b.kind(r)
	if err != nil {
		return nil, err
	}
	if !k.Namespaced {
		namespace = ""
	}
	key := k.Key(namespace, name)
	for {
		rec, _, err := b.api.Store.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		if rec == nil {
			return nil, apierrors.NewNotFound(r, name)
		}
		forms := k.Forms
		if how.exact {
			forms = k.Once
		}
		cur, err := forms(rec)
		if err != nil {
			return nil, err
		}
		obj, err := next(k, cur)
		if err != nil {
			return nil, err
		}
		var f *watchcache.Forms
		if finished(k, obj, cur.Hub) {
			if !how.dryRun {
				_, err = b.api.remove(ctx, k, rec, cur.Hub)
			}
			f = k.NewForms(obj)
		} else {
			_, f, err = b.api.replaceRecord(ctx, k, rec, cur, obj, how)
		}
		var conflict *store.ConflictError
		if errors.As(err, &conflict) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return nil, err
		}
		return f.Hub, nil
	}
}

// Create stores obj as its kind's create would, without admission.
func (b *Backend) Create(ctx context.Context, r schema.GroupResource, obj resource.Object, dryRun bool) (resource.Object, error) {
	k, err := b.kind(r)
	if err != nil {
		return nil, err
	}
	obj = obj.DeepCopyObject().(resource.Object)
	wipe(obj)
	if v := k.Hub(); v.Default != nil {
		v.Default(obj)
	}
	if b.api.Fields != nil {
		if obj, err = b.api.Fields.Update(k.Descriptor, k.Storage, "", nil, obj, "kube-apiserver"); err != nil {
			return nil, err
		}
	}
	ns := obj.GetNamespace()
	if !k.Namespaced {
		ns = ""
	}
	f, err := b.api.insert(ctx, &creation{kind: k, strategy: &k.Strategy, ns: ns, dryRun: dryRun}, obj)
	if err != nil {
		return nil, err
	}
	return f.Hub, nil
}

// Delete deletes as a client's DELETE would, without admission.
func (b *Backend) Delete(ctx context.Context, r schema.GroupResource, namespace, name string, opts *metav1.DeleteOptions) error {
	k, err := b.kind(r)
	if err != nil {
		return err
	}
	if !k.Namespaced {
		namespace = ""
	}
	if opts == nil {
		opts = &metav1.DeleteOptions{}
	}
	_, _, err = b.api.delete(ctx, &deletion{kind: k, ns: namespace, name: name, opts: opts})
	return err
}

// registry is the root of all keys.
const registry = "/registry/"

// Record implements [resource.Keeper].
func (b *Backend) Record(ctx context.Context, key string) ([]byte, int64, error) {
	rec, _, err := b.api.Store.Get(ctx, registry+key)
	if err != nil || rec == nil {
		return nil, 0, err
	}
	return rec.Value, rec.Revision, nil
}

// SetRecord implements [resource.Keeper].
func (b *Backend) SetRecord(ctx context.Context, key string, value []byte, revision int64) (bool, error) {
	var err error
	if revision == 0 {
		_, err = b.api.Store.Create(ctx, registry+key, value, 0)
	} else {
		_, err = b.api.Store.Update(ctx, registry+key, revision, value, 0)
	}
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		return false, nil
	}
	return err == nil, err
}

// IssueToken signs a service-account token.
func (b *Backend) IssueToken(ctx context.Context, c resource.TokenClaims) (resource.IssuedToken, error) {
	if b.api.Tokens == nil {
		return resource.IssuedToken{}, apierrors.NewServiceUnavailable("this server has no key to sign tokens with")
	}
	return b.api.Tokens(ctx, c)
}

// Node returns where the named node's agent answers, and the transport that it trusts.
func (b *Backend) Node(ctx context.Context, name string) (*url.URL, http.RoundTripper, error) {
	obj, err := b.Get(ctx, schema.GroupResource{Resource: "nodes"}, "", name)
	if err != nil {
		return nil, nil, err
	}
	n, ok := obj.(*corev1.Node)
	if !ok {
		return nil, nil, fmt.Errorf("find node %s: it is a %T", name, obj)
	}
	host := ""
	for _, want := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName} {
		for _, a := range n.Status.Addresses {
			if host == "" && a.Type == want {
				host = a.Address
			}
		}
	}
	port := int(n.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if port == 0 {
		port = 10250
	}
	if host == "" {
		return nil, nil, fmt.Errorf("no preferred addresses found; known addresses: %v", n.Status.Addresses) // upstream's words
	}
	if b.api.Nodes == nil {
		return nil, nil, apierrors.NewServiceUnavailable("this server has no way to its nodes")
	}
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(port))}, b.api.Nodes(n, host), nil
}
