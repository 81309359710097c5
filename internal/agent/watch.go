// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"hash/maphash"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// How often everything is listed: where the runtime has no events, and where it has.
const (
	relistAlone  = time.Second
	relistBeside = 10 * time.Second
)

func eventScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := corev1.AddToScheme(s); err != nil {
		panic("the core types do not fit a scheme: " + err.Error())
	}
	return s
}

// watchRuntime wakes the workers of pods of which the runtime has news: by its events
// where it has them, and by listing everything in any case. It starts workers for pods that
// run here and that nobody has spoken of.
func (n *node) watchRuntime(ctx context.Context) error {
	period := n.Relist
	if period == 0 {
		period = relistAlone
	}
	events := make(chan *runtimeapi.ContainerEventResponse, 64)
	broken := make(chan error, 1)
	listening := false
	listen := func() {
		listening = true
		go func() {
			broken <- n.cri.Runtime.GetContainerEvents(cri.Quiet(ctx), events, nil)
		}()
	}
	listen()
	defer func() {
		for listening {
			select {
			case <-events:
			case <-broken:
				listening = false
			}
		}
	}()
	known := map[types.UID]uint64{}
	failing := false
	timer := n.Clock.NewTimer(period)
	defer timer.Stop()
	first := make(chan struct{})
	close(first)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-first:
			first = nil
		case e := <-events:
			if n.Relist == 0 {
				period = relistBeside
			}
			if uid := e.GetPodSandboxStatus().GetMetadata().GetUid(); uid != "" {
				n.wake(types.UID(uid))
			}
			continue
		case err := <-broken:
			listening = false
			if n.Relist == 0 {
				period = relistAlone
			}
			if !cri.IsUnimplemented(err) && !failing && ctx.Err() == nil {
				// It is listened to again after the runtime has answered once.
				failing = true
			}
			continue
		case <-timer.C():
		}
		seen, err := n.list(ctx)
		timer.Reset(period)
		if err != nil {
			if ctx.Err() == nil && !failing {
				n.Logger.Warn("Container runtime does not answer", "err", err)
				n.nodeStatus.Resync()
			}
			failing = true
			continue
		}
		if failing {
			failing = false
			n.nodeStatus.Resync()
			if !listening {
				listen()
			}
		}
		if ready, _ := n.nodeStatus.NetworkReady(); !ready {
			n.nodeStatus.Resync()
		}
		for uid, sum := range seen {
			if known[uid] != sum {
				n.mu.Lock()
				var w *worker
				if w = n.workers[uid]; w == nil && n.synced {
					w = n.workerOf(uid)
				}
				n.mu.Unlock()
				if w == nil {
					delete(seen, uid) // looked at again when the API server's pods are known
					continue
				}
				if w.seen.Load() != sum { // its last round has not seen this
					w.wake()
				}
			}
		}
		for uid := range known {
			if _, ok := seen[uid]; !ok {
				n.wake(uid)
			}
		}
		known = seen
	}
}

var seed = maphash.MakeSeed()

// list sums up what the runtime has, by pod: the sums differ when anything has changed.
func (n *node) list(ctx context.Context) (map[types.UID]uint64, error) {
	ctx = cri.Quiet(ctx)
	sandboxes, err := n.cri.Runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := n.cri.Runtime.ListContainers(ctx, nil)
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

// sumOf is the same sum of what a worker has seen of its pod.
func sumOf(pod *podstate.Pod) (sum uint64) {
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
