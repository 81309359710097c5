// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// The delays between attempts to release the claims of pods that are gone.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute // kubelet's period
)

// Release unprepares the claims that no other pod uses. It calls no driver that was never called for a claim.
func (m *Manager) Release(ctx context.Context, pod types.UID) error {
	keys := m.claims.of(pod)
	if len(keys) == 0 {
		return nil
	}
	start := m.Clock.Now()
	err := m.release(ctx, pod, keys)
	m.Metrics.operation("UnprepareResources", m.Clock.Since(start), err)
	if err != nil {
		return fmt.Errorf("unprepare dynamic resources: %w", err) // upstream's words
	}
	return nil
}

func (m *Manager) release(ctx context.Context, pod types.UID, keys []key) error {
	unlock, err := m.claims.lock(ctx, keys)
	if err != nil {
		return err
	}
	defer unlock()
	last := map[key]bool{} // claims that no other pod uses
	calls := map[string][]*drapb.Claim{}
	for _, k := range keys {
		c, ok := m.claims.get(k.namespace, k.name)
		if !ok || !c.PodUIDs.Has(string(pod)) || c.PodUIDs.Len() > 1 {
			continue
		}
		last[k] = true
		for driver, state := range c.DriverState {
			if state.skips(resourceapi.SkipNodeOperationNodeUnprepareResources) {
				m.Metrics.skipped(driver, false)
				continue
			}
			if !state.NeverCalled {
				calls[driver] = append(calls[driver], &drapb.Claim{Namespace: c.Namespace, Uid: string(c.ClaimUID), Name: c.ClaimName})
			}
		}
	}
	// A driver that fails does not keep the others from freeing what they have.
	var failed []error
	freed := map[string]bool{}
	for _, driver := range slices.Sorted(maps.Keys(calls)) {
		if err := m.unprepare(ctx, driver, calls[driver]); err != nil {
			failed = append(failed, err)
			continue
		}
		freed[driver] = true
	}
	err = m.claims.update(keys, func(claims map[key]claim) error {
		for _, k := range keys {
			c, ok := claims[k]
			switch {
			case !ok:
			case !last[k]:
				c.PodUIDs.Delete(string(pod))
			case len(failed) == 0:
				delete(claims, k)
			default:
				c.Prepared = nil
				for driver, state := range c.DriverState {
					if freed[driver] {
						state.NeverCalled, state.Devices = true, nil
						c.DriverState[driver] = state
					}
				}
				claims[k] = c
			}
		}
		return nil
	})
	return errors.Join(append(failed, err)...)
}

// unprepare calls one driver. The messages are upstream's.
func (m *Manager) unprepare(ctx context.Context, driver string, claims []*drapb.Claim) error {
	i, err := m.drivers.get(driver)
	if err != nil {
		return err
	}
	answer, err := m.unprepareBy(ctx, i, &drapb.NodeUnprepareResourcesRequest{Claims: claims})
	if err != nil {
		return fmt.Errorf("NodeUnprepareResources: %w", err)
	}
	for uid, result := range answer.Claims {
		at := slices.IndexFunc(claims, func(c *drapb.Claim) bool { return c.Uid == uid })
		if at < 0 {
			return fmt.Errorf("NodeUnprepareResources returned result for unknown claim UID %s", uid)
		}
		if result.GetError() != "" {
			return fmt.Errorf("NodeUnprepareResources failed for ResourceClaim %s: %s", claims[at].Name, result.GetError())
		}
	}
	if missing := len(claims) - len(answer.Claims); missing != 0 {
		return fmt.Errorf("NodeUnprepareResources skipped %d ResourceClaims", missing)
	}
	return nil
}

// Synced tells that the node's pods are known: claims of other pods are released.
func (m *Manager) Synced() {
	select {
	case m.orphans <- struct{}{}:
	default:
	}
}

// releaseOrphans releases the claims of pods that are gone, whenever there may be any, until ctx is done.
func (m *Manager) releaseOrphans(ctx context.Context) error {
	wait := firstRetry
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.orphans:
			wait = firstRetry
		case <-m.drivers.registered: // one that was missing may be back
			if retry == nil {
				continue
			}
		case <-retry:
		}
		retry = nil
		if left := m.releaseGone(ctx); left {
			retry = m.Clock.After(wait)
			wait = min(2*wait, lastRetry)
		}
	}
}

// releaseGone makes one attempt. It returns whether claims are left.
func (m *Manager) releaseGone(ctx context.Context) (left bool) {
	users := m.claims.pods()
	known, all := m.Pods.Known()
	for uid := range users {
		if known[uid] {
			continue
		}
		if !all {
			left = true
			continue
		}
		if err := m.Release(ctx, uid); err != nil && ctx.Err() == nil {
			m.Logger.Warn("Could not unprepare the claims of a pod that is gone, retrying", "podUID", uid, "err", err)
			left = true
		}
	}
	return left
}
