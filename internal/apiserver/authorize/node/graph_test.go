// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

// objects is the store from which a graph is loaded.
type objects struct {
	mu  sync.Mutex
	all map[schema.GroupResource]map[string]resource.Object
}

func (o *objects) put(r schema.GroupResource, obj resource.Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[schema.GroupResource]map[string]resource.Object{}
	}
	if o.all[r] == nil {
		o.all[r] = map[string]resource.Object{}
	}
	o.all[r][obj.GetNamespace()+"/"+obj.GetName()] = obj
}

func (o *objects) List(_ context.Context, r schema.GroupResource, _ string) (list []resource.Object, _ error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, obj := range o.all[r] {
		list = append(list, obj)
	}
	return list, nil
}

var (
	podKind        = schema.GroupResource{Resource: "pods"}
	volumeKind     = schema.GroupResource{Resource: "persistentvolumes"}
	attachmentKind = schema.GroupResource{Group: "storage.k8s.io", Resource: "volumeattachments"}
)

// related is the slow reference implementation: it iterates over all objects.
func (o *objects) related(node string, k kind, namespace, name string) bool {
	claims := func(namespace, claim string) bool {
		for _, obj := range o.all[podKind] {
			p := obj.(*corev1.Pod)
			for _, v := range p.Spec.Volumes {
				if p.Spec.NodeName == node && p.Namespace == namespace && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim {
					return true
				}
			}
		}
		return false
	}
	switch k {
	case secrets:
		for _, obj := range o.all[podKind] {
			p := obj.(*corev1.Pod)
			for _, v := range p.Spec.Volumes {
				if p.Spec.NodeName == node && p.Namespace == namespace && v.Secret != nil && v.Secret.SecretName == name {
					return true
				}
			}
		}
		for _, obj := range o.all[volumeKind] {
			v := obj.(*corev1.PersistentVolume)
			if r := v.Spec.CSI.NodePublishSecretRef; v.Spec.ClaimRef != nil && r.Namespace == namespace && r.Name == name &&
				claims(v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name) {
				return true
			}
		}
	case claimsKind:
		return claims(namespace, name)
	case volumes:
		if v, ok := o.all[volumeKind]["/"+name].(*corev1.PersistentVolume); ok && v.Spec.ClaimRef != nil {
			return claims(v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)
		}
	case pods:
		p, ok := o.all[podKind][namespace+"/"+name].(*corev1.Pod)
		return ok && p.Spec.NodeName == node
	case attachments:
		a, ok := o.all[attachmentKind]["/"+name].(*storagev1.VolumeAttachment)
		return ok && a.Spec.NodeName == node
	}
	return false
}

const claimsKind = claims

// TestGraphAgainstWalking checks that after any sequence of changes, some of which were missed and loaded, the graph's
// results equal those of the reference implementation, and that it keeps nothing of deleted objects.
func TestGraphAgainstWalking(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		o, g := &objects{}, NewGraph()
		pick := func(prefix string, n int) string { return fmt.Sprint(prefix, r.IntN(n)) }
		loaded := false
		load := func() {
			loaded = true
			if err := g.Load(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		commit := func(of schema.GroupResource, obj resource.Object, gone bool) {
			c := &feed.Change{Resource: of, Namespace: obj.GetNamespace(), Name: obj.GetName(), Object: obj}
			if gone {
				delete(o.all[of], obj.GetNamespace()+"/"+obj.GetName())
				c.Object = nil
			} else {
				o.put(of, obj)
			}
			if !loaded {
				return
			}
			if err := g.Apply(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		check := func(what string) {
			t.Helper()
			for range 300 {
				k := []kind{secrets, claims, volumes, pods, attachments}[r.IntN(5)]
				node, ns, name := pick("n", 3), pick("ns", 2), pick("x", 4)
				if k == volumes || k == attachments {
					ns = ""
				}
				got, err := g.Related(t.Context(), node, k, ns, name)
				if want := o.related(node, k, ns, name); err != nil || got != want {
					t.Fatalf("seed %d, %s: is %s %s/%s related to %s: got %v %v, want %v", seed, what, kindName(k), ns, name, node, got, err, want)
				}
			}
		}
		for step := range 60 {
			switch r.IntN(4) {
			case 0, 1:
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pick("ns", 2), Name: pick("x", 4), UID: types.UID(fmt.Sprint(seed, step))}}
				if r.IntN(4) > 0 {
					p.Spec.NodeName = pick("n", 3)
				}
				for i := range r.IntN(3) {
					v := corev1.Volume{Name: fmt.Sprint(i)}
					if r.IntN(2) == 0 {
						v.Secret = &corev1.SecretVolumeSource{SecretName: pick("x", 4)}
					} else {
						v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: pick("x", 4)}
					}
					p.Spec.Volumes = append(p.Spec.Volumes, v)
				}
				commit(podKind, p, r.IntN(3) == 0)
			case 2:
				v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: pick("x", 4)}}
				v.Spec.CSI = &corev1.CSIPersistentVolumeSource{NodePublishSecretRef: &corev1.SecretReference{Namespace: pick("ns", 2),
					Name: pick("x", 4)}}
				if r.IntN(4) > 0 {
					v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: pick("ns", 2), Name: pick("x", 4)}
				}
				commit(volumeKind, v, r.IntN(3) == 0)
			case 3:
				commit(attachmentKind, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: pick("x", 4)},
					Spec: storagev1.VolumeAttachmentSpec{NodeName: pick("n", 3)}}, r.IntN(3) == 0)
			}
			if step < 20 {
				continue
			}
			if step == 20 || step > 20 && r.IntN(20) == 0 {
				load()
			}
			if r.IntN(3) == 0 {
				check(fmt.Sprint("step ", step))
			}
		}
		for of, all := range o.all {
			for _, obj := range all {
				commit(of, obj, true)
			}
		}
		if len(g.podsBy)+len(g.byKey)+len(g.vols)+len(g.direct) > 0 {
			t.Errorf("seed %d: when all is gone the graph keeps %d pods, %d referred, %d volumes, %d bound", seed, len(g.podsBy), len(g.byKey),
				len(g.vols), len(g.direct))
		}
	}
}

func kindName(k kind) string {
	return [...]string{"pod", "secret", "config map", "claim", "volume", "account", "resource claim", "attachment", "slice",
		"certificate request"}[k]
}

// TestCountsOfManyNodes checks that counts of many nodes equal those of few.
func TestCountsOfManyNodes(t *testing.T) {
	var c counts
	for n := range int32(100) {
		c.add(n, 1)
		c.add(n, 1)
	}
	for n := range int32(100) {
		c.add(n, -1)
		if !c.has(n) {
			t.Fatalf("node %d has a pod yet", n)
		}
		c.add(n, -1)
		if c.has(n) {
			t.Fatalf("node %d has none any more", n)
		}
	}
	if !c.empty() {
		t.Error("something is left")
	}
}

// large returns 100,000 pods on 1,000 nodes in 100 namespaces, each with a service account, a secret of its own and the
// shared config map.
func large(tb testing.TB) (*Graph, *objects) {
	tb.Helper()
	o := &objects{}
	for i := range 100_000 {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("ns", i%100), Name: fmt.Sprint("pod-", i),
			UID: types.UID(fmt.Sprint(i))}}
		p.Spec.NodeName, p.Spec.ServiceAccountName = fmt.Sprint("node-", i%1000), "default"
		p.Spec.Volumes = []corev1.Volume{
			{Name: "a", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: fmt.Sprint("secret-", i)}}},
			{Name: "b", VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}}}},
		}
		o.put(podKind, p)
	}
	g := NewGraph()
	if err := g.Load(tb.Context(), o); err != nil {
		tb.Fatal(err)
	}
	return g, o
}

// BenchmarkAuthorize measures the Node authorizer: for a node among 100,000 pods, and for another user.
func BenchmarkAuthorize(b *testing.B) {
	g, _ := large(b)
	z := &Authorizer{Graph: g}
	node := &user.DefaultInfo{Name: "system:node:node-1", Groups: []string{"system:nodes", "system:authenticated"}}
	for name, a := range map[string]*authorize.Attributes{
		"secret":     {User: node, Verb: "get", Resource: "secrets", Namespace: "ns1", Name: "secret-1", ResourceRequest: true},
		"config map": {User: node, Verb: "get", Resource: "configmaps", Namespace: "ns1", Name: "kube-root-ca.crt", ResourceRequest: true},
		"refused":    {User: node, Verb: "get", Resource: "secrets", Namespace: "ns1", Name: "secret-2", ResourceRequest: true},
		"no node": {User: &user.DefaultInfo{Name: "jane", Groups: []string{"system:authenticated"}}, Verb: "get", Resource: "secrets",
			Namespace: "ns1", Name: "secret-1", ResourceRequest: true},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := z.Authorize(b.Context(), a); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkStatus measures what the graph adds to a write of a pod's status.
func BenchmarkStatus(b *testing.B) {
	g, o := large(b)
	c := &feed.Change{Resource: podKind, Namespace: "ns1", Name: "pod-1", Object: o.all[podKind]["ns1/pod-1"]}
	b.ReportAllocs()
	for b.Loop() {
		if err := g.Apply(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
}
