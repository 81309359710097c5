// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package dra prepares the ResourceClaims of pods with the drivers of dynamic resource allocation, as kubelet's DRA manager does (KEP-3063,
// KEP-4381).
//
//	dra.go         Manager: what the node's resource managers are asked for (package containermanager)
//	prepare.go     NodePrepareResources for a pod's claims
//	release.go     NodeUnprepareResources, also for pods that are gone
//	claims.go      the table of claims
//	checkpoint.go  its file, dra_manager_state
//	drivers.go     the drivers that have registered, and their connections
//	call.go        calls of one driver
//	slices.go      removes the ResourceSlices of drivers that are gone
//	health.go      the health of devices
//	status.go      what of it stands in a pod's status
//	metrics.go     kubelet's metrics
//
// A claim is prepared once for all pods on the node that share it, before the first of them starts, and unprepared when the last of them
// has ended. Say pods a and b share the claim c of the driver d:
//
//	a starts   the file says that a uses c, and that d is about to be called; NodePrepareResources(c); the file has c's devices
//	b starts   the file says that b uses c too
//	a ends     the file says that only b uses c
//	b ends     NodeUnprepareResources(c); c leaves the file
//
// The file is written before a driver is called, so that a node that is killed knows what it may have prepared. It also says which drivers
// were never called for a claim: the end of the pod needs no call of these, and no driver that is not there (kubernetes/kubernetes#131957).
//
// A Manager is safe for concurrent use. While a driver is called for a claim, other calls for the same claim wait.
package dra

import (
	"context"
	"fmt"
	"log/slog"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/plugins"
)

// PluginType is the type under which drivers register with the plug-in manager.
const PluginType = "DRAPlugin"

// API is what the manager needs of the API server.
type API interface {
	// ResourceClaim reads a claim.
	ResourceClaim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	// DeleteSlices deletes the ResourceSlices of this node; of one driver, unless its name is empty.
	DeleteSlices(ctx context.Context, driver string) error
}

// Pods are the pods of the node.
type Pods interface {
	// Known returns the pods that there are, and whether these are all.
	Known() (pods map[types.UID]bool, all bool)
	// WakeEach has the status of pods computed anew.
	WakeEach(pods []types.UID)
}

// Options configure a Manager. All fields are required, unless they say otherwise.
type Options struct {
	Dir    string // the node's directory
	BootID string // of the machine: what was prepared before the machine started is prepared again. Empty: unknown
	API    API
	Pods   Pods

	SkipOperations bool // whether claims may skip calls of their driver: the gate DRAOptionalNodeOperations
	PodGroups      bool // whether claims may belong to pod groups: DRAWorkloadResourceClaims
	NoHealth       bool // ResourceHealthStatus is off
	NoMessages     bool // ResourceHealthStatusMessage is off

	Ledger  *extension.Ledger
	Metrics *Metrics
	Clock   clock.Clock
	Logger  *slog.Logger
}

// Manager prepares claims.
type Manager struct {
	Options
	drivers *drivers
	claims  *table
	health  *health
	wiper   *wiper
	orphans chan struct{} // has a value when there may be claims of pods that are gone
}

// New reads the claims that a former process of the node has prepared. An unreadable file is an error, as for kubelet: without it the
// claims would stay prepared for ever.
func New(o Options) (*Manager, error) {
	claims, err := openTable(o.Dir, o.BootID)
	if err != nil {
		return nil, err
	}
	m := &Manager{Options: o, claims: claims, orphans: make(chan struct{}, 1)}
	m.health = openHealth(o.Dir, o.Clock.Now, o.Logger)
	m.wiper = newWiper(o.API, o.Clock, o.Logger)
	m.drivers = newDrivers(m)
	m.wiper.usable = m.drivers.usable
	o.Metrics.inUse(claims.inUse)
	return m, nil
}

// Handler returns what the plug-in manager tells of drivers.
func (m *Manager) Handler() plugins.Handler { return m.drivers }

// Row returns the manager's row in the table of the node's resource managers.
func (m *Manager) Row() containermanager.Row {
	return containermanager.Row{Name: "resource claims", Preparer: m, Options: m, Status: m, Releaser: m, Describer: m, Run: m.Run}
}

// Run removes the ResourceSlices of drivers that are not there, and the claims of pods that are gone, until ctx is done. Then it waits for
// what follows drivers; the context of their registrations must have ended.
func (m *Manager) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.wiper.run(ctx) })
	group.Go(func() error { return m.releaseOrphans(ctx) })
	err := group.Wait()
	m.drivers.wait()
	return err
}

// hasClaims reports whether a pod may have claims.
func hasClaims(pod *corev1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil
}

// AddOptions adds the CDI devices of the container's claims.
func (m *Manager) AddOptions(_ context.Context, pod *corev1.Pod, container *corev1.Container, to *containermanager.Options) error {
	if !hasClaims(pod) {
		return nil
	}
	uses, err := usesOf(pod, container)
	if err != nil {
		return err
	}
	for _, use := range uses {
		c, ok := m.claims.get(pod.Namespace, use.claim)
		if !ok {
			// upstream's words
			return fmt.Errorf("internal error: unable to get claim info for ResourceClaim %s in namespace %s", use.claim, pod.Namespace)
		}
		for _, id := range c.cdiDevices(use.request) {
			to.CDIDevices = append(to.CDIDevices, &runtimeapi.CDIDevice{Name: id})
		}
	}
	return nil
}
