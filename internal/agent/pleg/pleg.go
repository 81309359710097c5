// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package pleg is the pod lifecycle event generator: it wakes the workers of pods whose state in the runtime has changed. It listens to the
// runtime's events if the runtime has them, and relists in any case.
package pleg

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// The relist intervals: for a runtime without events, and with events.
const (
	relistAlone  = time.Second
	relistBeside = 10 * time.Second
)

// Workers are the workers of pods.
type Workers interface {
	// Wake wakes the pod's worker, if the pod has one.
	Wake(pod types.UID)
	// Relisted wakes the pod's worker, unless its last round saw the state with this checksum. It starts a missing worker; false: it cannot
	// yet, because the node has not listed its pods from the API server.
	Relisted(pod types.UID, sum uint64) bool
	// WakeAll wakes all workers: the runtime responds again, and some workers wait for that.
	WakeAll()
}

// Status is the status of the node.
type Status interface {
	// Resync makes the node query the runtime and write what has changed.
	Resync()
	// NetworkReady reports whether pods with their own network can start, and the reason if they cannot.
	NetworkReady() (ready bool, why string)
}

// Config configures a Generator. All fields but Period and Metrics are required.
type Config struct {
	Runtime *cri.Client
	Workers Workers
	Status  Status
	Period  time.Duration // relist interval; 0: depends on whether the runtime has events
	Clock   clock.WithTicker
	Logger  *slog.Logger
	Metrics *Metrics // nil: relists are not counted
}

// Generator wakes workers while Run runs.
type Generator struct{ Config }

// New makes the generator.
func New(c Config) *Generator { return &Generator{c} }

// listener receives the runtime's events.
type listener struct {
	runtime   *cri.Client
	events    chan *runtimeapi.ContainerEventResponse
	broken    chan error
	listening bool
}

func (l *listener) start(ctx context.Context) {
	l.listening = true
	go func() { l.broken <- l.runtime.Runtime.GetContainerEvents(cri.Quiet(ctx), l.events, nil) }()
}

// stop waits for the end of the stream.
func (l *listener) stop() {
	for l.listening {
		select {
		case <-l.events:
		case <-l.broken:
			l.listening = false
		}
	}
}

// Run generates events until ctx is done.
func (g *Generator) Run(ctx context.Context) error {
	period := g.Period
	if period == 0 {
		period = relistAlone
	}
	l := &listener{runtime: g.Runtime, events: make(chan *runtimeapi.ContainerEventResponse, 64), broken: make(chan error, 1)}
	l.start(ctx)
	defer l.stop()
	known := map[types.UID]uint64{}
	failing := false
	timer := g.Clock.NewTimer(period)
	defer timer.Stop()
	var before time.Time // when the last relist began
	first := make(chan struct{})
	close(first)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-first:
			first = nil
		case e := <-l.events:
			if g.Period == 0 {
				period = relistBeside
			}
			if uid := e.GetPodSandboxStatus().GetMetadata().GetUid(); uid != "" {
				g.Workers.Wake(types.UID(uid))
			}
			continue
		case err := <-l.broken:
			l.listening = false
			if g.Period == 0 {
				period = relistAlone
			}
			if !cri.IsUnimplemented(err) && !failing && ctx.Err() == nil {
				// Listen again after the next successful call of the runtime.
				failing = true
			}
			continue
		case <-timer.C():
		}
		began := g.Clock.Now()
		sums, err := g.List(ctx)
		g.Metrics.relisted(before, began, g.Clock.Now())
		before = began
		timer.Reset(period)
		if err != nil {
			if ctx.Err() == nil && !failing {
				g.Logger.Warn("The runtime does not answer", "err", err)
				g.Status.Resync()
			}
			failing = true
			continue
		}
		if failing {
			failing = false
			g.Status.Resync()
			g.Workers.WakeAll()
			if !l.listening {
				l.start(ctx)
			}
		}
		if ready, _ := g.Status.NetworkReady(); !ready {
			g.Status.Resync()
		}
		g.compare(known, sums)
		known = sums
	}
}

// compare wakes the workers of changed pods. It removes the pods from now whose workers cannot start yet: it checks these again when the
// node has listed its pods from the API server.
func (g *Generator) compare(before, now map[types.UID]uint64) {
	for uid, sum := range now {
		if before[uid] != sum && !g.Workers.Relisted(uid, sum) {
			delete(now, uid)
		}
	}
	for uid := range before {
		if _, ok := now[uid]; !ok {
			g.Workers.Wake(uid)
		}
	}
}

var seed = maphash.MakeSeed()

// List returns a checksum of the runtime's state for each pod: it differs if anything has changed.
func (g *Generator) List(ctx context.Context) (map[types.UID]uint64, error) {
	ctx = cri.Quiet(ctx)
	sandboxes, err := g.Runtime.Runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := g.Runtime.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	out := map[types.UID]uint64{}
	for _, s := range sandboxes {
		if uid := types.UID(s.Labels[podstate.LabelPodUID]); uid != "" {
			out[uid] += sandboxSum(s.Id, s.State == runtimeapi.PodSandboxState_SANDBOX_READY)
		}
	}
	for _, c := range containers {
		if uid := types.UID(c.Labels[podstate.LabelPodUID]); uid != "" {
			out[uid] += containerSum(c.Id, cri.StateOf(c.State))
		}
	}
	return out, nil
}

// Sum returns the same checksum of the state that a worker has seen.
func Sum(pod *podstate.Pod) (sum uint64) {
	for i := range pod.Sandboxes {
		sum += sandboxSum(pod.Sandboxes[i].ID, pod.Sandboxes[i].Ready)
	}
	for i := range pod.Containers {
		sum += containerSum(pod.Containers[i].ID, pod.Containers[i].State)
	}
	return sum
}

func sandboxSum(id string, ready bool) uint64 {
	return maphash.String(seed, fmt.Sprintf("s %s %t", id, ready))
}

func containerSum(id string, state podstate.State) uint64 {
	return maphash.String(seed, "c "+id+" "+string(state))
}
