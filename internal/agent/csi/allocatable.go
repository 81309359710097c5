// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/cache"
)

// updaters ask drivers for their limit of volumes again and again: those whose CSIDriver has nodeAllocatableUpdatePeriodSeconds.
type updaters struct {
	m       *Manager
	wakes   chan struct{} // has a value when changed drivers wait
	running sync.WaitGroup

	mu      sync.Mutex
	waiting map[string]bool // drivers whose period or registration may have changed
}

// updater is one driver that is asked.
type updater struct {
	period time.Duration
	stop   context.CancelFunc
}

func newUpdaters(m *Manager) *updaters {
	return &updaters{m: m, wakes: make(chan struct{}, 1), waiting: map[string]bool{}}
}

// changed notes that a CSIDriver has changed.
func (u *updaters) changed(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if class, ok := obj.(*storagev1.CSIDriver); ok {
		u.restart(class.Name)
	}
}

// restart has a driver looked at anew.
func (u *updaters) restart(driver string) {
	u.mu.Lock()
	u.waiting[driver] = true
	u.mu.Unlock()
	select {
	case u.wakes <- struct{}{}:
	default:
	}
}

// run asks drivers until ctx is done.
func (u *updaters) run(ctx context.Context) error {
	defer u.running.Wait()
	all := map[string]*updater{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-u.wakes:
			u.mu.Lock()
			names := slices.Collect(maps.Keys(u.waiting))
			clear(u.waiting)
			u.mu.Unlock()
			for _, name := range names {
				u.follow(ctx, all, name)
			}
		}
	}
}

// follow begins or ends to ask a driver, as its period says.
func (u *updaters) follow(ctx context.Context, all map[string]*updater, name string) {
	period := u.period(name)
	if was := all[name]; was != nil {
		if was.period == period {
			return
		}
		was.stop()
		delete(all, name)
	}
	if period > 0 {
		own, stop := context.WithCancel(ctx)
		all[name] = &updater{period, stop}
		u.running.Go(func() { u.ask(own, name, period) })
	}
}

// period returns how often a driver is asked; 0: never.
func (u *updaters) period(name string) time.Duration {
	if u.m.drivers.get(name) == nil {
		return 0
	}
	obj, ok, err := u.m.classes.GetStore().GetByKey(name)
	if err != nil || !ok {
		return 0
	}
	seconds := obj.(*storagev1.CSIDriver).Spec.NodeAllocatableUpdatePeriodSeconds
	if seconds == nil || *seconds <= 0 {
		return 0
	}
	return time.Duration(*seconds) * time.Second
}

// ask asks a driver in each period.
func (u *updaters) ask(ctx context.Context, name string, period time.Duration) {
	ticker := u.m.Clock.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			if err := u.m.Refresh(ctx, name); err != nil && ctx.Err() == nil {
				u.m.Logger.Warn("Could not read the limit of volumes of a CSI driver anew", "driver", name, "err", err)
				if u.m.Event != nil {
					u.m.Event(u.m.nodeReference(), corev1.EventTypeWarning, "CSIDriverRefreshFailed",
						fmt.Sprintf("The limit of volumes of CSI driver %s could not be read anew: %v", name, err))
				}
			}
		}
	}
}

// Refresh asks a driver for its limit of volumes now.
func (m *Manager) Refresh(ctx context.Context, name string) error {
	client, err := m.Node(name)
	if err != nil {
		return err
	}
	return m.node.refresh(ctx, name, client)
}
