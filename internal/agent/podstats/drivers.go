// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podstats

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// driverWait is the maximum time that one measurement waits for the drivers of volumes, in all.
const driverWait = 2 * time.Second

// ask begins to ask the drivers of the pods' volumes, all at once: a driver that hangs does not keep the figures of others. The channel
// is closed when a measurement should not wait for them any longer; cancel releases its timer.
func (p *Provider) ask(ctx context.Context, pods []*corev1.Pod) (late <-chan struct{}, cancel func()) {
	for _, pod := range pods {
		if p.VolumePeriod < 0 || !p.measured.stale(pod.UID, p.Clock.Now(), p.VolumePeriod) {
			continue
		}
		for i := range pod.Spec.Volumes {
			v := &pod.Spec.Volumes[i]
			if _, measure, err := p.Volumes.Measure(ctx, pod, v); err != nil || measure != volumes.MeasureDriver {
				continue
			}
			// The answer is for the next measurement, too, if it is late for this one.
			ctx := context.WithoutCancel(ctx)
			p.asked.begin(volumeOf{pod.UID, v.Name}, func() *answer {
				u, err := p.Volumes.Usage(ctx, pod, v)
				if err != nil {
					return nil
				}
				return &answer{p.Clock.Now(), u}
			})
		}
	}
	waits, cancel := context.WithTimeout(ctx, driverWait)
	return waits.Done(), cancel
}

// volumeOf is a volume of a pod.
type volumeOf struct {
	pod  types.UID
	name string
}

// answer is what a driver says of a volume.
type answer struct {
	at    time.Time
	usage volumes.Usage
}

// asked are the drivers that are asked, and their answers. Each volume has one goroutine at the most, which ends with its calls: these
// have a limit, and end with the node's connection to the driver.
type asked struct {
	mu  sync.Mutex
	all map[volumeOf]*question
}

type question struct {
	last *answer
	done chan struct{} // closed when the driver has answered; nil: it is not asked
}

// begin asks about a volume, unless that is being done.
func (a *asked) begin(v volumeOf, ask func() *answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = map[volumeOf]*question{}
	}
	q := a.all[v]
	if q == nil {
		q = &question{}
		a.all[v] = q
	}
	if q.done != nil {
		return
	}
	done := make(chan struct{})
	q.done = done
	go func() {
		got := ask()
		a.mu.Lock()
		defer a.mu.Unlock()
		q.last, q.done = got, nil
		close(done)
	}()
}

// answer returns the newest answer about a volume; nil: there is none. It waits for one that is being given until late is closed.
func (a *asked) answer(v volumeOf, late <-chan struct{}) *answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.all[v]
	if q == nil {
		return nil
	}
	if done := q.done; done != nil {
		a.mu.Unlock()
		select {
		case <-done:
		case <-late:
		}
		a.mu.Lock()
	}
	return q.last
}

// keep drops the volumes of all other pods.
func (a *asked) keep(pods map[types.UID]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for v := range a.all {
		if !pods[v.pod] {
			delete(a.all, v)
		}
	}
}
