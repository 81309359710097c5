// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/internal/podrefs"
	"github.com/mortise-dev/mortise/resource"
)

// kind is the kind of an object in the graph.
type kind byte

const (
	pods kind = iota
	secrets
	configMaps
	claims
	volumes
	accounts
	resourceClaims
	attachments
	slicesOfNodes
	certificateRequests
)

// followed lists the kinds whose objects relate other objects to nodes.
var followed = map[schema.GroupResource]kind{
	{Resource: "pods"}:                                                 pods,
	{Resource: "persistentvolumes"}:                                    volumes,
	{Group: "storage.k8s.io", Resource: "volumeattachments"}:           attachments,
	{Group: "resource.k8s.io", Resource: "resourceslices"}:             slicesOfNodes,
	{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}: certificateRequests,
}

// Kinds returns the kinds that a graph follows.
func Kinds() []schema.GroupResource {
	return []schema.GroupResource{
		{Resource: "pods"}, {Resource: "persistentvolumes"}, {Group: "storage.k8s.io", Resource: "volumeattachments"},
		{Group: "resource.k8s.io", Resource: "resourceslices"}, {Group: "certificates.k8s.io", Resource: "podcertificaterequests"},
	}
}

// Graph knows which objects are related to which node. The server's feed applies each change before the write is
// answered, so a node may read what a pod refers to as soon as the pod is bound to it.
//
// The feed loads the graph at its first use: a server without nodes keeps nothing. The graph has each bound pod with
// its node and references. For each referenced object it counts, by node, the pods that refer to it. A look-up takes
// one or two map look-ups under a lock. Only changes of relations hold that lock for long; a change of a pod's status
// makes none.
type Graph struct {
	seed maphash.Seed

	want   sync.Once
	wanted chan struct{} // closed at the first use
	try    sync.Once
	tried  chan struct{} // closed when the graph was loaded, or loading failed

	mu     sync.RWMutex
	err    error // why loading failed
	nodes  map[string]int32
	names  []string         // of nodes, by their number
	spaces map[string]int32 // namespaces
	podsBy map[key]*pod
	byKey  map[target]*referred
	vols   map[string]*volume
	direct map[target]int32 // objects bound to a node directly
}

// key names a namespaced object.
type key struct {
	namespace int32
	name      string
}

// target is an object of a kind; namespace 0 means none.
type target struct {
	kind kind
	key
}

// pod is the entry of a bound pod.
type pod struct {
	node  int32
	state uint64 // hash of the fields with references
	refs  []*referred
}

// referred is an object that pods or volumes refer to.
type referred struct {
	at      target
	by      counts
	volumes []*volume // of a secret or a claim
}

// volume is bound to a claim; nodes read its secrets on behalf of the claim.
type volume struct {
	claim   *referred
	secrets []*referred
}

// NewGraph returns a graph that is not loaded yet.
func NewGraph() *Graph {
	return &Graph{seed: maphash.MakeSeed(), wanted: make(chan struct{}), tried: make(chan struct{})}
}

// Wanted returns a channel that is closed at the first use of the graph.
func (g *Graph) Wanted() <-chan struct{} { return g.wanted }

// Related reports whether an object is bound to a node, or is referred to by an object that is. The first call waits until
// the graph is loaded.
func (g *Graph) Related(ctx context.Context, node string, k kind, namespace, name string) (bool, error) {
	select {
	case <-g.tried:
	default:
		g.want.Do(func() { close(g.wanted) })
		select {
		case <-g.tried:
		case <-ctx.Done():
			return false, fmt.Errorf("read what is bound to nodes: %w", ctx.Err())
		}
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.err != nil {
		return false, fmt.Errorf("read what is bound to nodes: %w", g.err)
	}
	return g.related(node, k, namespace, name), nil
}

func (g *Graph) related(node string, k kind, namespace, name string) bool {
	n, ok := g.nodes[node]
	if !ok {
		return false
	}
	at := target{k, key{name: name}}
	if namespace != "" {
		if at.namespace, ok = g.spaces[namespace]; !ok {
			return false
		}
	}
	switch k {
	case pods:
		p := g.podsBy[at.key]
		return p != nil && p.node == n
	case volumes:
		v := g.vols[name]
		return namespace == "" && v != nil && v.claim.by.has(n)
	case attachments, slicesOfNodes, certificateRequests:
		of, ok := g.direct[at]
		return ok && of == n
	}
	r := g.byKey[at]
	if r == nil {
		return false
	}
	if r.by.has(n) {
		return true
	}
	if k == secrets {
		for _, v := range r.volumes {
			if v.claim.by.has(n) {
				return true
			}
		}
	}
	return false
}

// Load replaces the contents with what is stored. If that fails, all look-ups fail.
func (g *Graph) Load(ctx context.Context, stored feed.Lister) error {
	defer g.try.Do(func() { close(g.tried) })
	objs := make(map[schema.GroupResource][]resource.Object, len(followed))
	var err error
	for _, r := range Kinds() {
		if objs[r], err = stored.List(ctx, r, ""); err != nil {
			break
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err = err; err != nil {
		return err
	}
	g.nodes, g.spaces, g.podsBy, g.byKey = map[string]int32{}, map[string]int32{}, map[key]*pod{}, map[target]*referred{}
	g.vols, g.direct, g.names = map[string]*volume{}, map[target]int32{}, nil
	for r, all := range objs {
		for _, obj := range all {
			g.set(followed[r], obj.GetNamespace(), obj.GetName(), obj)
		}
	}
	return nil
}

// Apply applies a change of an object of one of [Kinds]. A change without effect on relations does not block readers.
func (g *Graph) Apply(_ context.Context, c *feed.Change) error {
	k := followed[c.Resource]
	g.mu.RLock()
	same := g.err != nil || g.same(k, c.Namespace, c.Name, c.Object)
	g.mu.RUnlock()
	if same {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.set(k, c.Namespace, c.Name, c.Object)
	return nil
}

// same reports whether a commit changes no relations.
func (g *Graph) same(k kind, namespace, name string, obj resource.Object) bool {
	ns, known := g.spaces[namespace]
	switch o := obj.(type) {
	case *corev1.Pod:
		var is *pod
		if known {
			is = g.podsBy[key{ns, name}]
		}
		if is == nil {
			return o.Spec.NodeName == ""
		}
		return is.state == state(g.seed, o)
	case *storagev1.VolumeAttachment:
		return g.isBound(k, 0, name, o.Spec.NodeName)
	case *resourcev1.ResourceSlice:
		return g.isBound(k, 0, name, ptr.Deref(o.Spec.NodeName, ""))
	case *certificatesv1.PodCertificateRequest:
		return known && g.isBound(k, ns, name, string(o.Spec.NodeName))
	}
	return false
}

func (g *Graph) isBound(k kind, ns int32, name, node string) bool {
	of, ok := g.direct[target{k, key{ns, name}}]
	return ok && g.names[of] == node
}

// set replaces the state of an object; nil removes it. The caller holds mu.
func (g *Graph) set(k kind, namespace, name string, obj resource.Object) {
	at := target{k, key{name: name}}
	if namespace != "" {
		at.namespace = g.space(namespace)
	}
	switch k {
	case pods:
		g.unbind(at.key)
		if o, ok := obj.(*corev1.Pod); ok && o.Spec.NodeName != "" {
			g.bind(at.key, o)
		}
		return
	case volumes:
		g.setVolume(name, obj)
		return
	}
	node := ""
	switch o := obj.(type) {
	case *storagev1.VolumeAttachment:
		node = o.Spec.NodeName
	case *resourcev1.ResourceSlice:
		node = ptr.Deref(o.Spec.NodeName, "")
	case *certificatesv1.PodCertificateRequest:
		node = string(o.Spec.NodeName)
	}
	if node == "" {
		delete(g.direct, at)
		return
	}
	g.direct[at] = g.node(node)
}

func (g *Graph) unbind(at key) {
	p := g.podsBy[at]
	if p == nil {
		return
	}
	delete(g.podsBy, at)
	for _, r := range p.refs {
		r.by.add(p.node, -1)
		g.forget(r)
	}
}

func (g *Graph) bind(at key, o *corev1.Pod) {
	p := &pod{node: g.node(o.Spec.NodeName), state: state(g.seed, o)}
	g.podsBy[at] = p
	if _, mirror := o.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return // a node creates its own mirror pods, which must not grant it anything
	}
	podrefs.Visit(o, func(k podrefs.Kind, name string) {
		r := g.refer(target{kindOf(k), key{at.namespace, name}})
		for _, have := range p.refs {
			if have == r {
				return
			}
		}
		p.refs = append(p.refs, r)
		r.by.add(p.node, 1)
	})
}

func (g *Graph) setVolume(name string, obj resource.Object) {
	if v := g.vols[name]; v != nil {
		delete(g.vols, name)
		for _, r := range append(v.secrets, v.claim) {
			r.volumes = without(r.volumes, v)
			g.forget(r)
		}
	}
	o, ok := obj.(*corev1.PersistentVolume)
	if !ok || o.Spec.ClaimRef == nil {
		return
	}
	v := &volume{claim: g.refer(target{claims, key{g.space(o.Spec.ClaimRef.Namespace), o.Spec.ClaimRef.Name}})}
	v.claim.volumes = append(v.claim.volumes, v)
	volumeSecrets(o, func(namespace, secret string) {
		r := g.refer(target{secrets, key{g.space(namespace), secret}})
		v.secrets = append(v.secrets, r)
		r.volumes = append(r.volumes, v)
	})
	g.vols[name] = v
}

func without(vs []*volume, v *volume) []*volume {
	out := vs[:0]
	for _, have := range vs {
		if have != v {
			out = append(out, have)
		}
	}
	clear(vs[len(out):])
	return out
}

// refer returns the entry of a referenced object, and creates it if necessary.
func (g *Graph) refer(at target) *referred {
	r := g.byKey[at]
	if r == nil {
		r = &referred{at: at}
		g.byKey[at] = r
	}
	return r
}

// forget removes the entry of an object without references.
func (g *Graph) forget(r *referred) {
	if r.by.empty() && len(r.volumes) == 0 {
		delete(g.byKey, r.at)
	}
}

// node returns a node's number. Numbers are never freed: there are few nodes, and they come back.
func (g *Graph) node(name string) int32 {
	n, ok := g.nodes[name]
	if !ok {
		n = int32(len(g.names))
		g.nodes[name] = n
		g.names = append(g.names, name)
	}
	return n
}

// space returns a namespace's number, from 1 on.
func (g *Graph) space(name string) int32 {
	n, ok := g.spaces[name]
	if !ok {
		n = int32(len(g.spaces) + 1)
		g.spaces[name] = n
	}
	return n
}

// few is the maximum number of nodes that are counted in a list; more are counted in a map.
const few = 16

// counts are the numbers of pods by node. Most objects are related to one node. A few, such as the config map with the
// cluster's certificates, are related to all.
type counts struct {
	list []count
	many map[int32]int32
}

type count struct{ node, pods int32 }

func (c *counts) has(node int32) bool {
	if c.many != nil {
		return c.many[node] > 0
	}
	for _, e := range c.list {
		if e.node == node {
			return true
		}
	}
	return false
}

func (c *counts) empty() bool { return len(c.list) == 0 && len(c.many) == 0 }

func (c *counts) add(node, n int32) {
	if c.many != nil {
		if c.many[node] += n; c.many[node] <= 0 {
			delete(c.many, node)
		}
		return
	}
	for i := range c.list {
		if e := &c.list[i]; e.node == node {
			if e.pods += n; e.pods <= 0 {
				c.list[i] = c.list[len(c.list)-1]
				c.list = c.list[:len(c.list)-1]
			}
			return
		}
	}
	if len(c.list) < few {
		c.list = append(c.list, count{node, n})
		return
	}
	c.many = make(map[int32]int32, 2*few)
	for _, e := range c.list {
		c.many[e.node] = e.pods
	}
	c.many[node] = n
	c.list = nil
}
