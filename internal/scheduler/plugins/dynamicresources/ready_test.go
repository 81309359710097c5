// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/devices"
)

// known is a manager of nothing but claims.
type known struct {
	fwk.SharedDRAManager
	claims *devices.Claims
}

func (k known) ResourceClaims() fwk.ResourceClaimTracker { return k.claims }

// withClaims is a plug-in that has been told of claims, and how it is told of more.
func withClaims(claims ...*resourcev1.ResourceClaim) (*plugin, cache.ResourceEventHandler) {
	all := devices.NewClaims()
	for _, c := range claims {
		all.Handler().OnAdd(c, true)
	}
	return &plugin{devices: known{claims: all}, bindingTimeout: time.Minute}, all.Handler()
}

// waiting is a claim whose device must become ready, and of which the driver has said that the conditions are true.
func waiting(version string, conditions ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x", UID: "x", ResourceVersion: version}}
	c.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Driver: "d", Pool: "p", Device: "unconditional"},
			{Driver: "d", Pool: "p", Device: "0", BindingConditions: []string{"attached", "warm"}, BindingFailureConditions: []string{"broken"}},
		}}}
	if len(conditions) > 0 {
		c.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "d", Pool: "p", Device: "0"}}
	}
	for _, name := range conditions {
		c.Status.Devices[0].Conditions = append(c.Status.Devices[0].Conditions,
			metav1.Condition{Type: name, Status: metav1.ConditionTrue, Reason: "Why", Message: "because"})
	}
	return c
}

func TestReadiness(t *testing.T) {
	free := waiting("1")
	free.Status.Allocation = nil
	for _, c := range []struct {
		what  string
		claim *resourcev1.ResourceClaim
		ready bool
		err   string
	}{
		{"no devices", free, false, ""},
		{"the driver has said nothing", waiting("1"), false, ""},
		{"one of two", waiting("1", "warm"), false, ""},
		{"both", waiting("1", "warm", "attached"), true, ""},
		{"broken", waiting("1", "warm", "attached", "broken"), false, `device binding failed: claim=x, reason=Why, message="because"`},
	} {
		ready, err := readiness(c.claim)
		if ready != c.ready || (err == nil) != (c.err == "") || err != nil && (err.Error() != c.err || !errors.Is(err, ErrDeviceBindingFailed)) {
			t.Errorf("%s: %t, %v", c.what, ready, err)
		}
	}
}

// TestDevicesGetReadyOrNot: a pod waits for its devices as long as that may take, and no longer than there is hope.
func TestDevicesGetReadyOrNot(t *testing.T) {
	gone := errors.New("the pod is gone")
	for _, c := range []struct {
		what  string
		then  func(tell cache.ResourceEventHandler, cancel context.CancelCauseFunc)
		after time.Duration
		err   error
	}{
		{"it is", func(tell cache.ResourceEventHandler, _ context.CancelCauseFunc) {
			tell.OnUpdate(nil, waiting("2", "warm"))
			synctest.Wait()
			tell.OnUpdate(nil, waiting("3", "warm", "attached"))
		}, 0, nil},
		{"it breaks", func(tell cache.ResourceEventHandler, _ context.CancelCauseFunc) {
			tell.OnUpdate(nil, waiting("2", "broken"))
		}, 0, ErrDeviceBindingFailed},
		{"it takes too long", func(cache.ResourceEventHandler, context.CancelCauseFunc) {}, time.Minute, ErrDeviceBindingTimeout},
		{"its claim goes", func(tell cache.ResourceEventHandler, _ context.CancelCauseFunc) { tell.OnDelete(waiting("2")) }, 0,
			devices.ErrNotFound},
		{"its pod goes", func(_ cache.ResourceEventHandler, cancel context.CancelCauseFunc) { cancel(gone) }, 0, gone},
		{"it was allocated long ago", func(tell cache.ResourceEventHandler, _ context.CancelCauseFunc) {
			old := waiting("2")
			old.Status.Allocation.AllocationTimestamp = &metav1.Time{Time: time.Now().Add(-time.Hour)}
			tell.OnUpdate(nil, old)
		}, 0, ErrDeviceBindingTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, tell := withClaims(waiting("1"))
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			ended := make(chan error, 1)
			began := time.Now()
			go func() { ended <- p.awaitDevices(ctx, &state{claims: []*resourcev1.ResourceClaim{waiting("1")}}) }()
			synctest.Wait()
			c.then(tell, cancel)
			if err := <-ended; !errors.Is(err, c.err) || time.Since(began) != c.after {
				t.Errorf("%s: %v after %v", c.what, err, time.Since(began))
			}
		})
	}
}

// slow is an allocator that finds nothing until it is called off.
type slow struct{}

func (slow) Allocate(ctx context.Context, _ *corev1.Node, _ []*resourcev1.ResourceClaim) ([]resourcev1.AllocationResult, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestAllocationsAreCalledOff(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	synctest.Test(t, func(t *testing.T) {
		p, s := &plugin{filterTimeout: 10 * time.Second}, &state{allocator: slow{}}
		began := time.Now()
		st := p.allocate(t.Context(), s, node, &placement{})
		if st.Code() != fwk.Error || st.Message() != "node a: timed out trying to allocate devices" || time.Since(began) != 10*time.Second {
			t.Errorf("after the timeout: %v %q, after %v", st.Code(), st.Message(), time.Since(began))
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("enough is found"))
		if st = p.allocate(ctx, s, node, &placement{}); st.Code() != fwk.UnschedulableAndUnresolvable ||
			st.Message() != "asked by caller to stop allocating devices: enough is found" {
			t.Errorf("called off: %v %q", st.Code(), st.Message())
		}
	})
}

func TestHints(t *testing.T) {
	claim := func(name string, has bool) *resourcev1.ResourceClaim {
		c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
		if has {
			c.Status.Allocation = &resourcev1.AllocationResult{}
		}
		return c
	}
	name, template := "x", "t"
	uses := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
		Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: &name}}}}
	misses := uses.DeepCopy()
	misses.Spec.ResourceClaims = append(misses.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "d", ResourceClaimTemplateName: &template})
	made := misses.DeepCopy()
	made.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "d"}} // none was needed
	labelled := claim("x", false)
	labelled.Labels = map[string]string{"a": "b"}
	p, _ := withClaims(claim("x", false))
	for _, c := range []struct {
		what     string
		pod      *corev1.Pod
		old, now any
		want     fwk.QueueingHint
	}{
		{"the pod's claim comes", uses, nil, claim("x", false), fwk.Queue},
		{"one of its claims, while another is missing", misses, nil, claim("x", false), fwk.QueueSkip},
		{"another's claim comes", uses, nil, claim("o", false), fwk.QueueSkip},
		{"its claim gets devices", uses, claim("x", false), claim("x", true), fwk.Queue},
		{"another's gets devices", uses, claim("o", false), claim("o", true), fwk.QueueSkip},
		{"its claim gets a label", uses, claim("x", false), labelled, fwk.QueueSkip},
		{"another's claim loses its devices", uses, claim("o", true), claim("o", false), fwk.Queue},
		{"so it does, while a claim is missing", misses, claim("o", true), claim("o", false), fwk.QueueSkip},
		{"another's claim goes, with devices", uses, claim("o", true), nil, fwk.Queue},
		{"another's claim goes, without", uses, claim("o", false), nil, fwk.QueueSkip},
		{"a claim of which nothing is known", uses, nil, nil, fwk.Queue},
	} {
		if got, err := p.afterClaim(klog.Logger{}, c.pod, c.old, c.now); got != c.want || err != nil {
			t.Errorf("%s: %v, %v", c.what, got, err)
		}
	}
	if got, _ := p.afterPod(klog.Logger{}, misses, misses, made); got != fwk.Queue {
		t.Errorf("the pod's claims are made: %v", got)
	}
	if got, _ := p.afterPod(klog.Logger{}, misses, misses, misses); got != fwk.QueueSkip {
		t.Errorf("a claim is missing still: %v", got)
	}
}
