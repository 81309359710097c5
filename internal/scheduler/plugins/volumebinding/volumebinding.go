// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package volumebinding is the VolumeBinding plug-in: it selects nodes on which a pod's volumes are or can be available, and binds claims
// of classes that wait for their first consumer for the selected node.
//
// The steps: PreFilter sorts the pod's claims. For each node, Filter (volumes.go) finds the volumes to bind to the waiting claims, smallest
// claim first, and the claims whose volumes a driver would have to create there; Score (capacity.go) ranks nodes by the capacity left over.
// Reserve assumes the result (assume.go); PreBind (bind.go) writes it and waits until controllers and drivers have followed.
//
// Worked example: claims a (1Gi) and b (3Gi) of class "local" wait; node n has volumes of 2Gi and 5Gi, node m one of 4Gi. On n the plug-in
// matches the 2Gi volume with a and the other with b; on m only b has a match, so the pod goes to n. The plug-in writes the volumes'
// claimRefs, and once the claims are bound, the scheduler binds the pod.
package volumebinding

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/claims"
	"github.com/mortise-dev/mortise/internal/scheduler/migrated"
)

// Name is the plug-in's name.
const Name = "VolumeBinding"

const (
	stateKey fwk.StateKey = Name
	byClass               = "storageclass" // the index of volumes
)

// New returns the plug-in. Its arguments are VolumeBindingArgs; nil: upstream's defaults.
func New(_ context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	a, ok := args.(*configv1.VolumeBindingArgs)
	if args != nil && !ok {
		return nil, fmt.Errorf("want args to be of type VolumeBindingArgs, got %T", args) // upstream's words
	}
	f := h.SharedInformerFactory()
	volumes, claims, nodes := f.Core().V1().PersistentVolumes().Informer(), f.Core().V1().PersistentVolumeClaims().Informer(),
		f.Core().V1().Nodes()
	err := volumes.AddIndexers(cache.Indexers{byClass: func(obj any) ([]string, error) {
		if pv, ok := obj.(*corev1.PersistentVolume); ok {
			return []string{volume.GetPersistentVolumeClass(pv)}, nil
		}
		return nil, nil
	}})
	if _, missing := volumes.GetIndexer().IndexKeys(byClass, ""); err != nil && missing != nil { // another profile's plug-in may have added it
		return nil, fmt.Errorf("index persistent volumes: %w", err)
	}
	p := &plugin{
		client: h.ClientSet(), timeout: 600 * time.Second, shape: defaultShape(), migrated: migrated.New(),
		volumes: newAssumed[*corev1.PersistentVolume]("persistentvolumes", volumes.GetIndexer()),
		claims:  newAssumed[*corev1.PersistentVolumeClaim]("persistentvolumeclaims", claims.GetIndexer()),
		nodes:   nodes.Lister(), csiNodes: f.Storage().V1().CSINodes().Lister(), classes: f.Storage().V1().StorageClasses().Lister(),
		drivers: f.Storage().V1().CSIDrivers().Lister(), capacities: f.Storage().V1().CSIStorageCapacities().Lister(),
	}
	if a != nil {
		if a.BindTimeoutSeconds != nil {
			p.timeout = time.Duration(*a.BindTimeoutSeconds) * time.Second
		}
		if len(a.Shape) > 0 {
			p.shape = a.Shape
		}
	}
	return p, errors.Join(p.addHandler(volumes, p.volumes.changed), p.addHandler(claims, p.claims.changed),
		p.addHandler(nodes.Informer(), nil))
}

type plugin struct {
	claims.Signer

	client   kubernetes.Interface
	timeout  time.Duration // of PreBind
	shape    []configv1.UtilizationShapePoint
	migrated migrated.Drivers
	changed  bell

	volumes    *assumed[*corev1.PersistentVolume]
	claims     *assumed[*corev1.PersistentVolumeClaim]
	nodes      corelisters.NodeLister
	csiNodes   storagelisters.CSINodeLister
	classes    storagelisters.StorageClassLister
	drivers    storagelisters.CSIDriverLister
	capacities storagelisters.CSIStorageCapacityLister
}

func (*plugin) Name() string { return Name }

// state is the state of one pod. Filter may run concurrently for several nodes.
type state struct {
	bound   []*corev1.PersistentVolumeClaim
	waiting []*corev1.PersistentVolumeClaim       // claims that wait for their first pod, smallest first
	free    map[string][]*corev1.PersistentVolume // unbound volumes by class, for the waiting claims

	mu      sync.Mutex
	on      map[string]*placement // by node
	settled bool                  // all claims are bound: there is nothing to do before binding the pod
}

// Clone returns the state itself: preemption frees no volumes.
func (s *state) Clone() fwk.StateData { return s }

func read(cycle fwk.CycleState) (*state, error) {
	data, err := cycle.Read(stateKey)
	if err != nil {
		return nil, err
	}
	s, ok := data.(*state)
	if !ok {
		return nil, errors.New("not the state of " + Name)
	}
	return s, nil
}

// PreFilter sorts the pod's claims, and skips pods without claims.
func (p *plugin) PreFilter(_ context.Context, cycle fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	any, err := p.check(pod)
	if err != nil {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	if !any {
		cycle.Write(stateKey, &state{})
		return nil, fwk.NewStatus(fwk.Skip)
	}
	s, unbound, err := p.sort(pod)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if unbound {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "pod has unbound immediate PersistentVolumeClaims")
	}
	cycle.Write(stateKey, s)
	return nil, nil
}

// PreFilterExtensions returns nil: other pods have no effect.
func (*plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// check reports whether the pod has claims, and what is wrong with one of them. The messages are upstream's.
func (p *plugin) check(pod *corev1.Pod) (any bool, err error) {
	for name, own := range claims.Of(pod) {
		any = true
		claim, err := p.claims.told(pod.Namespace + "/" + name)
		switch {
		case apierrors.IsNotFound(err) && own:
			return any, fmt.Errorf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
		case apierrors.IsNotFound(err):
			return any, apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumeclaim"}, name) // a lister's message
		case err != nil:
			return any, err
		case claim.Status.Phase == corev1.ClaimLost:
			return any, fmt.Errorf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", claim.Name, claim.Spec.VolumeName)
		case claim.DeletionTimestamp != nil:
			return any, fmt.Errorf("persistentvolumeclaim %q is being deleted", claim.Name)
		case own:
			if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
				return any, err
			}
		}
	}
	return any, nil
}

// bell wakes all waiting goroutines when something has changed.
type bell struct {
	mu   sync.Mutex
	next chan struct{}
}

// wait returns a channel that the next ring closes.
func (b *bell) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = make(chan struct{})
	}
	return b.next
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil {
		close(b.next)
		b.next = nil
	}
}

// addHandler rings the bell for each change of an informer's objects, after it has called changed, if given.
func (p *plugin) addHandler(informer cache.SharedIndexInformer, changed func(any)) error {
	heard := func(obj any) {
		if changed != nil {
			changed(obj)
		}
		p.changed.ring()
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: heard, UpdateFunc: func(_, obj any) { heard(obj) },
		DeleteFunc: heard})
	if err != nil {
		return fmt.Errorf("follow changes: %w", err)
	}
	return nil
}
