// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/mortise-dev/mortise/extension"
)

// Prepare prepares the pod's claims with their drivers. It calls no driver if all are prepared.
func (m *Manager) Prepare(ctx context.Context, pod *corev1.Pod) error {
	if !hasClaims(pod) {
		return nil
	}
	claims, err := names(pod)
	if err == nil {
		var list []string
		for _, c := range claims {
			list = append(list, c.name)
		}
		if m.claims.hasAll(pod, list) {
			return nil
		}
	}
	start := m.Clock.Now()
	ctx = extension.For(ctx, pod.Namespace, pod.Name)
	if err == nil {
		err = m.prepare(ctx, pod, claims)
	}
	m.Metrics.operation("PrepareResources", m.Clock.Since(start), err)
	if err != nil {
		return fmt.Errorf("Failed to prepare dynamic resources: prepare dynamic resources: %w", err) // upstream's words
	}
	return nil
}

func (m *Manager) prepare(ctx context.Context, pod *corev1.Pod, claims []podClaim) error {
	// What can be wrong is found before anything is noted: then the pod needs nothing when it ends.
	var all []claim
	var keys []key
	for _, c := range claims {
		w, err := m.want(ctx, pod, c)
		if err != nil {
			return err
		}
		all, keys = append(all, w), append(keys, w.key())
	}
	unlock, err := m.claims.lock(ctx, keys)
	if err != nil {
		return err
	}
	defer unlock()
	b, err := m.attach(pod.UID, keys, all)
	if err != nil || len(b.claims) == 0 {
		return err
	}
	err = b.callAll(ctx, m)
	if noted := m.note(keys, b, err == nil); err == nil {
		err = noted
	} else if noted != nil {
		m.Logger.Warn("Could not note which drivers were called for a pod's claims", "pod", pod.Namespace+"/"+pod.Name, "err", noted)
	}
	return err
}

// want reads a claim, and checks that the pod may use it and that its drivers are there. The messages are upstream's.
func (m *Manager) want(ctx context.Context, pod *corev1.Pod, c podClaim) (claim, error) {
	read, err := m.API.ResourceClaim(ctx, pod.Namespace, c.name)
	if err != nil {
		return claim{}, fmt.Errorf("fetch ResourceClaim %s: %w", c.name, err)
	}
	if c.mustOwn {
		if err := resourceclaim.IsForPod(pod, read, m.PodGroups); err != nil {
			return claim{}, err
		}
	}
	if !resourceclaim.IsReservedForPod(pod, read, m.PodGroups) {
		return claim{}, fmt.Errorf("pod %s (%s) is not allowed to use ResourceClaim %s (%s)", pod.Name, pod.UID, c.name, read.UID)
	}
	w, err := newClaim(read, m.SkipOperations)
	if err != nil {
		return claim{}, fmt.Errorf("ResourceClaim %s: %w", read.Name, err)
	}
	// Even if the claim is prepared: without its driver, something is wrong with the node.
	for _, driver := range slices.Sorted(maps.Keys(w.DriverState)) {
		if w.DriverState[driver].skips(resourceapi.SkipNodeOperationNodePrepareResources) {
			continue
		}
		if _, err := m.drivers.get(driver); err != nil {
			return claim{}, err
		}
	}
	return w, nil
}

// attach writes to the checkpoint that the pod uses the claims, and that the node is about to call the drivers of unprepared claims.
func (m *Manager) attach(pod types.UID, keys []key, all []claim) (*batches, error) {
	b := newBatches()
	err := m.claims.update(keys, func(claims map[key]claim) error {
		for _, w := range all {
			k := w.key()
			c, ok := claims[k]
			if !ok {
				c = w.clone()
				c.PodUIDs = sets.Set[string]{}
			}
			if c.ClaimUID != w.ClaimUID {
				return fmt.Errorf("old ResourceClaim with same name %s and different UID %s still exists (previous pod force-deleted?!)",
					k.name, c.ClaimUID) // upstream's words
			}
			c.PodUIDs.Insert(string(pod))
			if !m.claims.prepared(c) {
				c.Prepared = nil
				b.add(c, m.Metrics)
			}
			claims[k] = c
		}
		return nil
	})
	return b, err
}

// note writes what the drivers have answered; done: all have prepared all.
func (m *Manager) note(keys []key, b *batches, done bool) error {
	return m.claims.update(keys, func(claims map[key]claim) error {
		for _, driver := range b.order {
			for _, asked := range b.byDriver[driver] {
				k := key{asked.Namespace, asked.Name}
				state := claims[k].DriverState[driver]
				if devices, ok := b.answers[driver][asked.Uid]; ok {
					state.Devices = devices
				}
				if b.fresh[freshCall{k, driver}] && !b.sent[driver] {
					state.NeverCalled = true
				}
				claims[k].DriverState[driver] = state
			}
		}
		if !done {
			return nil
		}
		for k := range b.claims {
			c := claims[k]
			c.Prepared = new(m.claims.boot)
			claims[k] = c
		}
		return nil
	})
}

// batches are the calls of drivers, each for several claims.
type batches struct {
	claims   map[key]bool // that are to be prepared, also without a call
	byDriver map[string][]*drapb.Claim
	order    []string
	fresh    map[freshCall]bool
	sent     map[string]bool                // drivers to which a call has gone out
	answers  map[string]map[string][]device // by driver and the claim's UID
}

// freshCall is the first call of a driver for a claim.
type freshCall struct {
	claim  key
	driver string
}

func newBatches() *batches {
	return &batches{
		claims: map[key]bool{}, byDriver: map[string][]*drapb.Claim{}, fresh: map[freshCall]bool{}, sent: map[string]bool{},
		answers: map[string]map[string][]device{},
	}
}

// add adds a claim, and marks its drivers as called. Drivers that have prepared it before are called again: they may have had to be asked
// because of another one that failed, or because the machine has started anew.
func (b *batches) add(c claim, metrics *Metrics) {
	k := c.key()
	b.claims[k] = true
	for _, driver := range slices.Sorted(maps.Keys(c.DriverState)) {
		state := c.DriverState[driver]
		if state.skips(resourceapi.SkipNodeOperationNodePrepareResources) {
			metrics.skipped(driver, true)
			continue
		}
		if state.NeverCalled {
			b.fresh[freshCall{k, driver}] = true
			state.NeverCalled = false
			c.DriverState[driver] = state
		}
		if b.byDriver[driver] == nil {
			b.order = append(b.order, driver)
		}
		b.byDriver[driver] = append(b.byDriver[driver], &drapb.Claim{Namespace: c.Namespace, Uid: string(c.ClaimUID), Name: c.ClaimName})
	}
}

// callAll calls the drivers one after the other. The first failure ends it.
func (b *batches) callAll(ctx context.Context, m *Manager) error {
	for _, driver := range b.order {
		claims := b.byDriver[driver]
		i, err := m.drivers.get(driver)
		if err != nil {
			return err
		}
		answer, sent, err := m.prepareBy(ctx, i, &drapb.NodePrepareResourcesRequest{Claims: claims})
		b.sent[driver] = sent
		if err != nil {
			return fmt.Errorf("NodePrepareResources: %w", err) // upstream's words
		}
		b.answers[driver] = map[string][]device{}
		for _, uid := range slices.Sorted(maps.Keys(answer.Claims)) {
			if err := b.take(driver, claims, uid, answer.Claims[uid]); err != nil {
				return err
			}
		}
		if missing := len(claims) - len(answer.Claims); missing != 0 {
			return fmt.Errorf("NodePrepareResources skipped %d ResourceClaims", missing) // upstream's words
		}
	}
	return nil
}

// take takes a driver's answer for one claim.
func (b *batches) take(driver string, asked []*drapb.Claim, uid string, answer *drapb.NodePrepareResourceResponse) error {
	i := slices.IndexFunc(asked, func(c *drapb.Claim) bool { return c.Uid == uid })
	if i < 0 {
		return fmt.Errorf("NodePrepareResources returned result for unknown claim UID %s", uid) // upstream's words
	}
	if answer.GetError() != "" {
		return fmt.Errorf("NodePrepareResources failed for ResourceClaim %s: %s", asked[i].Name, answer.GetError()) // upstream's words
	}
	devices := []device{}
	for _, d := range answer.GetDevices() {
		devices = append(devices, device{
			PoolName: d.PoolName, DeviceName: d.DeviceName, ShareID: (*types.UID)(d.ShareId), RequestNames: d.RequestNames,
			CDIDeviceIDs: d.CdiDeviceIds,
		})
	}
	b.answers[driver][uid] = devices
	return nil
}
