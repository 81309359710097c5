// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package csi knows the CSI drivers of the node. It registers them, publishes what they say in the CSINode and the Node, calls them with
// limits, and knows which volumes are attached.
//
//	csi.go          Manager
//	drivers.go      the drivers that have registered: their connections, the limit of a call
//	telling.go      tells who wants to know of drivers, again until that succeeds
//	paths.go        the node's paths as the driver knows them
//	nodeinfo.go     the CSINode, and the labels and the annotation of the Node
//	allocatable.go  reads the driver's limit of volumes anew by the clock
//	attachments.go  what is attached and in use: Node.status.volumesAttached and volumesInUse
//	metrics.go      kubelet's metrics
//
// The volumes themselves are set up by package volumes/csi, which reaches this one through volumes.Drivers and volumes.Attachments.
//
// A Manager is safe for concurrent use.
package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/plugins"
)

// PluginType is the type under which drivers register with the plug-in manager.
const PluginType = "CSIPlugin"

// callTimeout is the time limit of a call. It is kubelet's.
const callTimeout = 2 * time.Minute

// syncWait is the maximum time that a caller waits for the first list of CSIDrivers.
const syncWait = 10 * time.Second

// Pods are the pods of the node.
type Pods interface {
	// WakeEach has the pods looked at anew.
	WakeEach(pods []types.UID)
}

// Options configure a Manager. All fields are required, unless they say otherwise.
type Options struct {
	NodeName string
	RootDir  string // the node's directory, with plugins and pods
	UsualDir string // kubelet's usual one, where links lead to RootDir's; empty: there are none
	Client   kubernetes.Interface
	Pods     Pods
	// Resync has the Node's status written.
	Resync func()
	// Event records an event for an object; nil: no event is recorded.
	Event   func(object runtime.Object, kind, reason, message string)
	Ledger  *extension.Ledger
	Metrics *Metrics
	Clock   clock.WithTicker
	Logger  *slog.Logger
}

// Manager knows the drivers of the node.
type Manager struct {
	Options
	drivers  *drivers
	node     *nodeInfo
	attached *Attachments
	objects  informers.SharedInformerFactory
	classes  cache.SharedIndexInformer // the CSIDrivers
	updaters *updaters

	mu         sync.Mutex
	registered []func(ctx context.Context, driver string) error
}

// New makes a manager.
func New(o Options) *Manager {
	m := &Manager{Options: o, attached: newAttachments(o), node: &nodeInfo{client: o.Client, name: o.NodeName}}
	m.objects = informers.NewSharedInformerFactory(o.Client, 0)
	m.classes = m.objects.Storage().V1().CSIDrivers().Informer()
	m.drivers = newDrivers(m)
	m.updaters = newUpdaters(m)
	m.attached.refresh = m.Refresh
	return m
}

// Attachments returns what the node knows of attached volumes.
func (m *Manager) Attachments() *Attachments { return m.attached }

// Handler returns what the plug-in manager tells of drivers.
func (m *Manager) Handler() plugins.Handler { return m.drivers }

// OnRegister adds a function that is called after a driver has registered, and with [Manager.LookAgain]. If it returns an error, it is
// called again, with back-off. The functions are added before [Manager.Run].
func (m *Manager) OnRegister(f func(ctx context.Context, driver string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.registered = append(m.registered, f)
}

// Join makes the node's CSINode, and starts to follow CSIDrivers. It is called when the Node exists. It tries until ctx is done.
func (m *Manager) Join(ctx context.Context) error {
	if _, err := m.classes.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(obj any, _ bool) { m.changed(obj) },
		UpdateFunc: func(_, obj any) { m.changed(obj) },
		DeleteFunc: m.changed,
	}); err != nil {
		return fmt.Errorf("follow CSIDrivers: %w", err)
	}
	m.objects.Start(ctx.Done())
	for wait := initialWait; ; wait = min(2*wait, longestWait) {
		err := m.node.initialize(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		m.Logger.Warn("Could not make the node's CSINode, retrying", "node", m.NodeName, "err", err)
		timer := m.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
	}
}

// nodeReference returns the Node for events. Its UID is the name, as in kubelet's.
func (o *Options) nodeReference() *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: o.NodeName, UID: types.UID(o.NodeName)}
}

// changed notes a CSIDriver that has changed.
func (m *Manager) changed(obj any) {
	m.updaters.changed(obj)
	m.attached.wakeWaiting()
}

const (
	initialWait = 100 * time.Millisecond
	longestWait = 10 * time.Second
)

// Run follows the drivers until ctx is done. Then it closes the connections.
func (m *Manager) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.updaters.run(ctx) })
	group.Go(func() error { return m.tellRegistered(ctx) })
	err := group.Wait()
	m.drivers.close()
	m.objects.Shutdown()
	return err
}

// Driver returns the CSIDriver of the name; nil: there is none. The caller must not change it.
func (m *Manager) Driver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	ctx, cancel := context.WithTimeout(ctx, syncWait)
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), m.classes.HasSynced) {
		return nil, errors.New("the CSIDrivers of the cluster are not known yet")
	}
	obj, ok, err := m.classes.GetStore().GetByKey(name)
	if err != nil || !ok {
		return nil, err
	}
	return obj.(*storagev1.CSIDriver), nil
}
