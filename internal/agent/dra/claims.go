// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// key names a claim.
type key struct{ namespace, name string }

func (k key) String() string { return k.namespace + "/" + k.name }

// table has the claims that pods of the node use. What it has is on disk.
type table struct {
	path string
	boot string

	mu     sync.Mutex
	claims map[key]claim // each value is replaced, and never changed
	busy   map[key]chan struct{}
}

func openTable(dir, boot string) (*table, error) {
	t := &table{path: filepath.Join(dir, checkpointName), boot: boot, busy: map[key]chan struct{}{}}
	var err error
	t.claims, err = readCheckpoint(t.path)
	return t, err
}

// get returns a claim. The caller must not change it.
func (t *table) get(namespace, name string) (claim, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, ok := t.claims[key{namespace, name}]
	return c, ok
}

// prepared reports whether a claim was prepared since the machine started.
func (t *table) prepared(c claim) bool { return c.Prepared != nil && *c.Prepared == t.boot }

// hasAll reports whether the pod uses all of the claims, and all are prepared.
func (t *table) hasAll(pod *corev1.Pod, names []string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !slices.ContainsFunc(names, func(name string) bool {
		c, ok := t.claims[key{pod.Namespace, name}]
		return !ok || !t.prepared(c) || !c.PodUIDs.Has(string(pod.UID))
	})
}

// of returns the claims that a pod uses, sorted.
func (t *table) of(pod types.UID) []key {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []key
	for k, c := range t.claims {
		if c.PodUIDs.Has(string(pod)) {
			out = append(out, k)
		}
	}
	return sorted(out)
}

// pods returns the pods that use claims.
func (t *table) pods() map[types.UID]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[types.UID]bool{}
	for _, c := range t.claims {
		for uid := range c.PodUIDs {
			out[types.UID(uid)] = true
		}
	}
	return out
}

// each calls f with every claim.
func (t *table) each(f func(claim)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.claims {
		f(c)
	}
}

// update changes claims: change gets a copy of the table, with copies of the claims of these keys, which it may change or delete, and to
// which it may add. The new table is in effect once it is on disk; after an error nothing has changed.
func (t *table) update(keys []key, change func(claims map[key]claim) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := maps.Clone(t.claims)
	for _, k := range keys {
		if c, ok := next[k]; ok {
			next[k] = c.clone()
		}
	}
	if err := change(next); err != nil {
		return err
	}
	if err := writeCheckpoint(t.path, next); err != nil {
		return fmt.Errorf("checkpoint ResourceClaim state: %w", err) // upstream's words
	}
	t.claims = next
	return nil
}

// lock waits until no other caller has one of these claims, and has them until unlock is called. It takes them in the order of their names,
// so that two callers never wait for each other.
func (t *table) lock(ctx context.Context, keys []key) (unlock func(), err error) {
	var mine []key
	unlock = func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, k := range mine {
			close(t.busy[k])
			delete(t.busy, k)
		}
	}
	for _, k := range slices.Compact(sorted(slices.Clone(keys))) {
		for {
			t.mu.Lock()
			other := t.busy[k]
			if other == nil {
				t.busy[k] = make(chan struct{})
			}
			t.mu.Unlock()
			if other == nil {
				mine = append(mine, k)
				break
			}
			select {
			case <-other:
			case <-ctx.Done():
				unlock()
				return nil, ctx.Err()
			}
		}
	}
	return unlock, nil
}

// inUse returns how many claims are prepared, by driver, and under anyDriver all of them.
func (t *table) inUse() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[string]int{anyDriver: 0}
	for _, c := range t.claims {
		if !t.prepared(c) {
			continue
		}
		out[anyDriver]++
		for driver := range c.DriverState {
			out[driver]++
		}
	}
	return out
}

func sorted(keys []key) []key {
	slices.SortFunc(keys, func(a, b key) int { return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name)) })
	return keys
}

// newClaim returns the table's entry of an allocated claim. No driver has been called for it.
func newClaim(from *resourceapi.ResourceClaim, skipOperations bool) (claim, error) {
	if from.Status.Allocation == nil {
		return claim{}, errors.New("not allocated") // upstream's words
	}
	devices := map[string]int{}
	skips := map[string]map[resourceapi.SkipNodeOperation]int{}
	for _, r := range from.Status.Allocation.Devices.Results {
		devices[r.Driver]++
		if skips[r.Driver] == nil {
			skips[r.Driver] = map[resourceapi.SkipNodeOperation]int{}
		}
		if slices.Contains(r.SkipNodeOperations, resourceapi.SkipNodeOperationAll) {
			skips[r.Driver][resourceapi.SkipNodeOperationAll]++
			continue
		}
		for _, operation := range r.SkipNodeOperations {
			skips[r.Driver][operation]++
		}
	}
	out := claim{ClaimUID: from.UID, ClaimName: from.Name, Namespace: from.Namespace, DriverState: map[string]driverState{}}
	for driver, all := range devices {
		skipped := skippedByAll(skips[driver], all)
		if len(skipped) > 0 && !skipOperations {
			return claim{}, errors.New("DRAOptionalNodeOperations feature gate is disabled on kubelet") // upstream's words
		}
		out.DriverState[driver] = driverState{SkipNodeOperations: skipped, NeverCalled: true}
	}
	return out, nil
}

// skippedByAll returns the operations that all of a driver's devices skip.
func skippedByAll(counts map[resourceapi.SkipNodeOperation]int, devices int) []resourceapi.SkipNodeOperation {
	whole := counts[resourceapi.SkipNodeOperationAll]
	if whole == devices {
		return []resourceapi.SkipNodeOperation{resourceapi.SkipNodeOperationAll}
	}
	var out []resourceapi.SkipNodeOperation
	for operation, n := range counts {
		if operation != resourceapi.SkipNodeOperationAll && n+whole == devices {
			out = append(out, operation)
		}
	}
	slices.Sort(out)
	return out
}

// names returns the names of a pod's claims, and the references that they come from. A reference without a claim is passed over.
func names(pod *corev1.Pod) (out []podClaim, err error) {
	for i := range pod.Spec.ResourceClaims {
		name, mustOwn, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name != nil {
			out = append(out, podClaim{*name, mustOwn})
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		out = append(out, podClaim{name: s.ResourceClaimName})
	}
	return out, nil
}

// podClaim is a claim that a pod refers to.
type podClaim struct {
	name    string
	mustOwn bool // the claim was made for the pod
}

// use is what a container uses of a claim.
type use struct{ claim, request string } // an empty request: all of it

// usesOf returns what the container uses, in the order of its definition.
func usesOf(pod *corev1.Pod, container *corev1.Container) ([]use, error) {
	var out []use
	for _, wanted := range container.Resources.Claims {
		i := slices.IndexFunc(pod.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool { return c.Name == wanted.Name })
		if i < 0 {
			continue
		}
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name != nil {
			out = append(out, use{*name, wanted.Request})
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		for _, mapped := range s.RequestMappings {
			wanted, ok := container.Resources.Requests[corev1.ResourceName(mapped.ResourceName)]
			if mapped.ContainerName == container.Name && ok && !wanted.IsZero() && extended(mapped.ResourceName) {
				out = append(out, use{s.ResourceClaimName, mapped.RequestName})
			}
		}
	}
	return out, nil
}

// extended reports whether a resource may be one of dynamic resource allocation.
func extended(name string) bool {
	if strings.HasPrefix(name, resourceapi.ResourceDeviceClassPrefix) {
		return true
	}
	return strings.Contains(name, "/") && !strings.Contains(name, corev1.ResourceDefaultNamespacePrefix) &&
		!strings.HasPrefix(name, corev1.DefaultResourceRequestsPrefix) &&
		len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+name)) == 0
}
