// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package devicemanager hands the devices of device plug-ins (deviceplugin/v1beta1) to containers, as kubelet's device manager does.
//
//	devicemanager.go  the Manager, its settings, and what runs
//	register.go       how plug-ins come: the socket kubelet.sock, and the plug-in directory
//	plugin.go         one connected plug-in: its stream of devices, and the calls to it
//	resource.go       the devices of one resource
//	allocate.go       which devices a container gets
//	hints.go          NUMA hints, and devices by affinity
//	options.go        what the runtime gives to a container, and PreStartContainer
//	status.go         the Node's capacity, the health of devices, and whose they are
//	persist.go        the checkpoint
//	record.go         whether there was one
//	metrics.go        kubelet's metrics of it
//
// A device belongs to one pod from its allocation until the pod's release; the checkpoint is on disk before a container can use it: it is
// written while the pod's sandbox starts. After a
// restart of the node or the machine, a pod whose plug-in is not back yet is held for at most Options.Wait; kubelet fails it.
package devicemanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/plugins"
)

// kubelet's times.
const (
	dialTimeout     = 10 * time.Second
	preStartTimeout = 30 * time.Second
	gracePeriod     = 5 * time.Minute // how long the devices of a plug-in that is gone stay in the Node's capacity
)

// The node's own limits.
const (
	// DefaultWait is how long pods are held for a plug-in that is not back.
	DefaultWait = 5 * time.Minute
	// callTimeout is of Allocate, GetPreferredAllocation and GetDevicePluginOptions; kubelet has none.
	callTimeout = 30 * time.Second
	// goneWithin is how soon a connection that broke is noticed.
	goneWithin = time.Second
	// reportInterval is between two reports of the Node's resources.
	reportInterval = time.Second
	// maxResources is the number of resources that plug-ins have registered.
	maxResources = 1024
	// maxDeviceID is the length of a device's ID, in bytes.
	maxDeviceID = 4096
	// pacePerDevice is the time between two lists of a plug-in, for each device in the first: a plug-in that reports without end costs a few
	// percent of a CPU.
	pacePerDevice = 25 * time.Microsecond
)

// Pods are the pods of the node.
type Pods interface {
	// Known returns the pods that the node has, and whether these are all.
	Known() (pods map[types.UID]bool, all bool)
	// Wake makes the pod look again at what it waits for.
	Wake(pod types.UID)
}

// Options are the settings of a Manager.
type Options struct {
	Dir       string // device-plugins below the node's directory
	Pods      Pods
	Changed   func()        // is called when the Node's capacity may have changed
	NUMANodes []int         // of the machine
	Wait      time.Duration // 0: DefaultWait
	Interval  time.Duration // between two reports of the Node's resources; 0: one second
	Ledger    *extension.Ledger
	Metrics   *Metrics
	Clock     clock.WithTicker
	Logger    *slog.Logger
}

// Manager hands out devices.
type Manager struct {
	Options
	started time.Time
	changes chan struct{}  // signals that the Node's capacity may have changed
	running sync.WaitGroup // of connected plug-ins

	unsaved chan struct{} // signals that the checkpoint is old

	writing sync.Mutex // of the checkpoint; taken before mu
	saved   uint64     // the version on disk; guarded by writing

	unrecorded atomic.Bool // the node started without a checkpoint that can be read

	mu        sync.Mutex
	version   uint64 // of what the checkpoint has
	resources map[string]*resource
	pods      map[types.UID]podDevices
	waiting   map[types.UID]bool                  // pods that are held
	connect   func(run func(ctx context.Context)) // starts a goroutine of Run; nil: it does not run
}

// New makes the manager and reads the checkpoint. A checkpoint that cannot be read is set aside, with an error in the log.
func New(o Options) (*Manager, error) {
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	if o.Interval == 0 {
		o.Interval = reportInterval
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Ledger == nil {
		o.Ledger = extension.NewLedger(o.Clock)
	}
	if o.Changed == nil {
		o.Changed = func() {}
	}
	m := &Manager{
		Options: o, started: o.Clock.Now(), changes: make(chan struct{}, 1), unsaved: make(chan struct{}, 1),
		resources: map[string]*resource{}, pods: map[types.UID]podDevices{}, waiting: map[types.UID]bool{},
	}
	if err := os.MkdirAll(o.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("make directory of device plug-ins: %w", err)
	}
	keeper{m}.read()
	return m, nil
}

// Row returns the manager's row in the node's table.
func (m *Manager) Row() containermanager.Row {
	return containermanager.Row{
		Name: "devices", Hints: aligner{m}, Allocator: m, Options: m, Status: reporter{m}, Resources: reporter{m}, Releaser: m,
		Describer: reporter{m}, Run: m.Run,
	}
}

// Record returns the node's record of plug-ins' resources.
func (m *Manager) Record() Record { return Record{keeper{m}} }

// Plugins returns the handler of device plug-ins in the plug-in directory.
func (m *Manager) Plugins() plugins.Handler { return registrar{m} }

// Run serves the registration of plug-ins until ctx ends, and then waits for what runs. Devices stay allocated.
func (m *Manager) Run(ctx context.Context) error {
	// Connections outlive the calls that make them, and end with this.
	life, cancel := context.WithCancel(ctx)
	start := func(connect func(run func(ctx context.Context))) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.connect = connect
	}
	start(func(run func(ctx context.Context)) { m.running.Go(func() { run(life) }) })
	defer m.running.Wait()
	defer cancel()
	defer start(nil)
	server, listener, err := registrar{m}.listen(ctx)
	if err != nil {
		m.Logger.Error("Could not serve the registration of device plug-ins", "err", err)
		<-ctx.Done()
		return nil
	}
	m.running.Go(func() { keeper{m}.saveUnsaved(life) })
	served := make(chan error, 1)
	m.running.Go(func() { served <- server.Serve(listener) })
	defer server.Stop()
	return m.report(ctx, served)
}

// report tells of changed capacity, and when a plug-in that is gone has been gone for too long.
func (m *Manager) report(ctx context.Context, served <-chan error) error {
	for {
		expiry, stop := registrar{m}.expiry()
		select {
		case <-ctx.Done():
		case err := <-served:
			if err != nil && ctx.Err() == nil {
				m.Logger.Error("The registration of device plug-ins has ended", "err", err)
			}
			served = nil
		case <-m.changes:
			m.Changed()
		case <-expiry:
			registrar{m}.expire()
			m.Changed()
		}
		stop()
		select {
		case <-ctx.Done():
			return nil
		case <-m.Clock.After(m.Interval):
		}
	}
}

// expiry returns a timer for when the next plug-in that is gone has been gone for the grace period.
func (m registrar) expiry() (<-chan time.Time, func()) {
	at := m.nextExpiry()
	if at.IsZero() {
		return nil, func() {}
	}
	timer := m.Clock.NewTimer(max(at.Sub(m.Clock.Now()), 0))
	return timer.C(), func() { timer.Stop() }
}

// changed signals that the Node's capacity may have changed.
func (m *Manager) changed() {
	select {
	case m.changes <- struct{}{}:
	default:
	}
}

// wakeWaiting wakes the pods that are held. The caller holds no lock.
func (m *Manager) wakeWaiting() {
	m.mu.Lock()
	var pods []types.UID
	for uid := range m.waiting {
		pods = append(pods, uid)
	}
	clear(m.waiting)
	m.mu.Unlock()
	for _, uid := range pods {
		m.Pods.Wake(uid)
	}
}

// hold notes that a pod waits. The caller holds the lock.
func (m *Manager) hold(pod types.UID, resource string, until time.Time) error {
	m.waiting[pod] = true
	return &containermanager.Hold{
		Plugin: resource, Until: until,
		Message: fmt.Sprintf("waiting for the device plug-in of %s to register", resource),
	}
}

var (
	errNoRun = errors.New("the node does not take device plug-ins")
	errMany  = fmt.Errorf("the node knows more than %d resources of device plug-ins", maxResources)
)
