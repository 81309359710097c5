// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pluginbench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drapbv1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/dra"
	"github.com/mortise-dev/mortise/internal/agent/plugins"
)

// namespace is that of the bench's objects.
const namespace = "default"

// claimBench drives a DRA driver.
type claimBench struct {
	*bench
	pods     *pods
	managers *containermanager.Manager
	door     *door
	kubelet  *kubelet
	stop     context.CancelFunc // of the watch of slices
	devices  []resourceapi.DeviceRequestAllocationResult
	holder   *corev1.Pod // has a claim from the first preparation on
	held     *resourceapi.ResourceClaim
}

func claimSteps(b *bench) ([]step, func(), error) {
	if b.Client == nil {
		return nil, nil, errors.New("drive a DRA driver: it needs an API server")
	}
	d := &claimBench{bench: b, pods: &pods{b: b, all: map[types.UID]bool{}}, stop: func() {}}
	if err := d.start(false); err != nil {
		return nil, nil, err
	}
	return []step{
		{"registers", true, d.registers},
		{"publishes its devices", true, d.publishes},
		{"prepares a claim", true, d.prepares},
		{"gives what a runtime takes", false, d.gives},
		{"prepares a claim again", false, d.again},
		{"shares a claim of two pods", false, d.shares},
		{"prepares two claims in one call", false, d.batch},
		{"refuses a claim that is not there", false, d.refuses},
		{"unprepares a claim that it never prepared", false, d.unpreparesUnknown},
		{"survives a call that kubelet gives up", false, d.survives},
		{"serves after it hung in a call", false, claimFaults{d}.hung},
		{"publishes its devices again when they are deleted", false, d.republishes},
		{"comes back after it is killed", false, d.killed},
		{"comes back after kubelet restarts", true, d.kubeletRestarts},
		{"comes back after kubelet refuses it", false, d.kubeletRefuses},
		{"unprepares a claim", false, d.unprepares},
	}, func() { d.kubelet.stop(); d.stop() }, nil
}

func (d *claimBench) api() dra.Client { return dra.Client{Client: d.Client, NodeName: d.Node} }

// start starts kubelet's side. refuse: it refuses the first registration.
func (d *claimBench) start(refuse bool) error {
	manager, err := dra.New(dra.Options{
		Dir: d.Dir, BootID: "bench", API: d.api(), Pods: d.pods, SkipOperations: true, Ledger: d.ledger,
		Metrics: dra.NewMetrics(), Clock: clock.RealClock{}, Logger: d.said.logger(),
	})
	if err != nil {
		return err
	}
	d.managers = containermanager.New(nil, manager.Row())
	d.door = newDoor(d.bench, manager.Handler(), refuse)
	d.kubelet = startKubelet(manager.Run, func(ctx context.Context) error {
		return plugins.Run(ctx, d.registry(dra.PluginType, d.door))
	})
	return nil
}

// registered reports whether the driver is.
func (d *claimBench) registered() bool {
	p, here := d.door.here(d.report.Name)
	if here {
		d.report.Name = p.Name
	}
	return here
}

func (d *claimBench) registers(ctx context.Context) finding {
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	d.stop = stop
	watch, err := d.Client.ResourceV1().ResourceSlices().Watch(watching, metav1.ListOptions{})
	if err != nil {
		return fail("watch ResourceSlices: %v", err)
	}
	go func() {
		for range watch.ResultChan() { // it ends with the watch
			d.notify()
		}
	}()
	begun := time.Now()
	if err := d.launch(); err != nil {
		return fail("%v", err)
	}
	restarts, err := d.until(ctx, d.registered)
	if err != nil {
		return fail("no registration in %s: %v", d.registry("", nil).Dir, err)
	}
	p, _ := d.door.here(d.report.Name)
	f := ok("%s at %s, %s", p.Name, p.Endpoint, strings.Join(p.Versions, ", "))
	f.took = time.Since(begun)
	return restarted(f, restarts, "before it was registered")
}

// published returns the driver's devices of this node.
func (d *claimBench) published(ctx context.Context) (out []resourceapi.DeviceRequestAllocationResult) {
	slicesOfNode, err := d.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	for _, s := range slicesOfNode.Items {
		if s.Spec.Driver != d.report.Name || s.Spec.NodeName == nil || *s.Spec.NodeName != d.Node {
			continue
		}
		for _, device := range s.Spec.Devices {
			out = append(out, resourceapi.DeviceRequestAllocationResult{
				Request: "r", Driver: d.report.Name, Pool: s.Spec.Pool.Name, Device: device.Name,
			})
		}
	}
	return out
}

func (d *claimBench) publishes(ctx context.Context) finding {
	if _, err := d.until(ctx, func() bool { return len(d.published(ctx)) > 0 }); err != nil {
		return fail("no ResourceSlice of the driver with spec.nodeName %s: %v", d.Node, err)
	}
	d.devices = d.published(ctx)
	return ok("%d devices", len(d.devices))
}

// claim makes a claim of a device, reserved for the pods.
func (d *claimBench) claim(ctx context.Context, name string, device int, users ...*corev1.Pod) (*resourceapi.ResourceClaim, error) {
	claims := d.Client.ResourceV1().ResourceClaims(namespace)
	c, err := claims.Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "bench", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			},
		}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{d.devices[device%len(d.devices)]},
	}}
	for _, u := range users {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: u.Name, UID: u.UID})
	}
	return claims.UpdateStatus(ctx, c, metav1.UpdateOptions{})
}

// using returns a pod that uses claims.
func (d *claimBench) using(name string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)}}
	p.Spec.Containers = []corev1.Container{{Name: "c"}}
	for _, c := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c, ResourceClaimName: &c})
		p.Spec.Containers[0].Resources.Claims = append(p.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: c})
	}
	return p
}

// prepare prepares a pod's claims as the node does.
func (d *claimBench) prepare(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	d.pods.set(pod.UID, true)
	begun := time.Now()
	err := d.managers.Prepare(ctx, pod)
	return time.Since(begun), err
}

func (d *claimBench) release(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	defer d.pods.set(pod.UID, false)
	begun := time.Now()
	err := d.managers.Release(ctx, pod.UID)
	return time.Since(begun), err
}

func (d *claimBench) prepares(ctx context.Context) finding {
	d.holder = d.using("holder", "held")
	var err error
	if d.held, err = d.claim(ctx, "held", 0, d.holder, d.using("second")); err != nil {
		return fail("make a claim: %v", err)
	}
	took, err := d.prepare(ctx, d.holder)
	if err != nil {
		return fail("%v", err).kubeletSays("FailedPrepareDynamicResources: " + err.Error())
	}
	return d.slow(ok("the device %s of the pool %s", d.devices[0].Device, d.devices[0].Pool), took)
}

func (d *claimBench) gives(ctx context.Context) finding {
	given, err := d.managers.Options(ctx, d.holder, &d.holder.Spec.Containers[0])
	if err != nil {
		return fail("%v", err)
	}
	return examine(given, d.CDIDirs)
}

// probe calls the driver at its socket, with the newest API that it has.
func (d *claimBench) probe(ctx context.Context, call func(context.Context, drapb.DRAPluginClient) finding) finding {
	p, here := d.door.here(d.report.Name)
	if !here {
		return fail("the driver is not registered")
	}
	connection, err := connect(p.Endpoint)
	if err != nil {
		return fail("%v", err)
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(ctx, d.Wait)
	defer cancel()
	begun := time.Now()
	return d.slow(call(ctx, clientOf(p, connection)), time.Since(begun))
}

func request(c *resourceapi.ResourceClaim) []*drapb.Claim {
	return []*drapb.Claim{{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}}
}

func (d *claimBench) again(ctx context.Context) finding {
	return d.probe(ctx, func(ctx context.Context, c drapb.DRAPluginClient) finding {
		var before string
		for range 2 {
			answer, err := c.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: request(d.held)})
			one := answer.GetClaims()[string(d.held.UID)]
			switch {
			case err != nil:
				return fail("a claim that is prepared: %v", err)
			case one == nil:
				return fail("the answer leaves out the claim").kubeletSays(fmt.Sprintf(
					"NodePrepareResources skipped claims for driver %s", d.report.Name))
			case one.GetError() != "":
				return fail("a claim that is prepared: %s", one.GetError())
			}
			now := fmt.Sprint(one.GetDevices())
			if before != "" && now != before {
				return fail("a claim that is prepared has other devices: %s, before %s", now, before)
			}
			before = now
		}
		return ok("the same devices")
	})
}

func (d *claimBench) shares(ctx context.Context) finding {
	second := d.using("second", "held")
	if _, err := d.prepare(ctx, second); err != nil {
		return fail("%v", err)
	}
	if _, err := d.release(ctx, second); err != nil {
		return fail("%v", err)
	}
	return ok("it stays prepared until the last of them ends")
}

func (d *claimBench) batch(ctx context.Context) finding {
	pod := d.using("batch", "batch-1", "batch-2")
	for i, name := range []string{"batch-1", "batch-2"} {
		if _, err := d.claim(ctx, name, i+1, pod); err != nil {
			return fail("make a claim: %v", err)
		}
	}
	took, err := d.prepare(ctx, pod)
	if err != nil {
		return fail("%v", err)
	}
	if _, err := d.release(ctx, pod); err != nil {
		return fail("unprepare: %v", err)
	}
	return d.slow(ok("2 claims"), took)
}

func (d *claimBench) refuses(ctx context.Context) finding {
	gone := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gone", UID: "gone"}}
	return d.probe(ctx, func(ctx context.Context, c drapb.DRAPluginClient) finding {
		answer, err := c.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: request(gone)})
		if err != nil {
			return warn("the whole call fails, and with it other claims in it: %v", err)
		}
		said := answer.GetClaims()["gone"].GetError()
		if said == "" {
			return fail("it prepares a claim that the API server does not have")
		}
		return ok("%s", said).kubeletSays(fmt.Sprintf("NodePrepareResources failed for ResourceClaim gone: %s", said))
	})
}

func (d *claimBench) unpreparesUnknown(ctx context.Context) finding {
	gone := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gone", UID: "gone"}}
	return d.probe(ctx, func(ctx context.Context, c drapb.DRAPluginClient) finding {
		answer, err := c.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: request(gone)})
		one, answered := answer.GetClaims()["gone"]
		switch {
		case err != nil:
			return fail("%v: the pod of such a claim never ends", err)
		case !answered:
			return fail("the answer leaves out the claim").kubeletSays(fmt.Sprintf(
				"NodeUnprepareResources skipped claims for driver %s", d.report.Name))
		case one.GetError() != "":
			return fail("%s: the pod of such a claim never ends", one.GetError())
		}
		return ok("nothing to do")
	})
}

func (d *claimBench) survives(ctx context.Context) finding {
	return d.probe(ctx, func(ctx context.Context, c drapb.DRAPluginClient) finding {
		for range 10 {
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			_, _ = c.NodePrepareResources(short, &drapb.NodePrepareResourcesRequest{Claims: request(d.held)}) // given up, or answered
			cancel()
		}
		answer, err := c.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: request(d.held)})
		if err != nil || answer.GetClaims()[string(d.held.UID)].GetError() != "" {
			return fail("it no longer prepares the claim: %v%s", err, answer.GetClaims()[string(d.held.UID)].GetError())
		}
		return ok("it still prepares the claim")
	})
}

// clientOf returns the client of the newest API that the driver has.
func clientOf(p plugins.Plugin, c *grpc.ClientConn) drapb.DRAPluginClient {
	if slices.Contains(p.Versions, drapb.DRAPluginService) {
		return drapb.NewDRAPluginClient(c)
	}
	return drapbv1beta1.V1Beta1ClientWrapper{DRAPluginClient: drapbv1beta1.NewDRAPluginClient(c)}
}

// claimFaults makes the calls in which a driver hangs or dies.
type claimFaults struct{ *claimBench }

// asks has the driver prepare the claim that it has prepared.
func (d claimFaults) asks(ctx context.Context, c *grpc.ClientConn) error {
	p, _ := d.door.here(d.report.Name)
	_, err := clientOf(p, c).NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: request(d.held)})
	return err
}

// unprepared is what kubelet says of a pod for which NodePrepareResources has failed.
func unprepared(err error) string {
	return fmt.Sprintf("FailedPrepareDynamicResources: Failed to prepare dynamic resources: prepare dynamic resources: "+
		"NodePrepareResources: %v", err)
}

// hung has the driver's program hang in NodePrepareResources.
func (d claimFaults) hung(ctx context.Context) finding {
	p, _ := d.door.here(d.report.Name)
	return d.hangs(ctx, p.Endpoint, d.asks, func(err error) string { return "after 45 s: " + unprepared(err) }, func() finding {
		if _, err := d.until(ctx, d.serves(ctx)); err != nil {
			return fail("%v", err)
		}
		return ok("")
	})
}

func (d *claimBench) republishes(ctx context.Context) finding {
	if err := d.api().DeleteSlices(ctx, d.report.Name); err != nil {
		return fail("delete the driver's slices, as kubelet does: %v", err)
	}
	if _, err := d.until(ctx, func() bool { return len(d.published(ctx)) >= len(d.devices) }); err != nil {
		return fail("kubelet deletes the slices of a driver that was away for 30 s; the driver does not publish them again: %v", err)
	}
	return ok("%d devices", len(d.devices))
}

func (d *claimBench) killed(ctx context.Context) finding {
	if d.process == nil {
		return skip("the bench has not started the driver's program")
	}
	p, _ := d.door.here(d.report.Name)
	broken, err := d.breakOff(ctx, p.Endpoint, claimFaults{d}.asks)
	if err != nil {
		return fail("%v", err)
	}
	begun := time.Now()
	if err := d.launch(); err != nil {
		return fail("%v", err)
	}
	restarts, err := d.until(ctx, d.serves(ctx))
	if err != nil {
		return fail("no registration after kill -9 and a start: %v", err)
	}
	f := ok("registered again, and prepares the claim that it had prepared").kubeletSays("of the call: " + unprepared(broken))
	f.took = time.Since(begun)
	return restarted(f, restarts, "before it was registered")
}

// serves reports whether the driver is registered and prepares the pod's claim.
func (d *claimBench) serves(ctx context.Context) func() bool {
	return func() bool {
		return d.registered() && d.probe(ctx, func(ctx context.Context, c drapb.DRAPluginClient) finding {
			answer, err := c.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: request(d.held)})
			if one := answer.GetClaims()[string(d.held.UID)]; err != nil || one == nil || one.GetError() != "" {
				return fail("")
			}
			return ok("")
		}).result != Fail
	}
}

func (d *claimBench) kubeletRestarts(ctx context.Context) finding {
	d.kubelet.stop()
	begun := time.Now()
	if err := d.start(false); err != nil {
		return fail("%v", err)
	}
	restarts, err := d.until(ctx, d.registered)
	if err != nil {
		return fail("kubelet finds the socket in plugins_registry, but the registration fails: %v", err)
	}
	took := time.Since(begun)
	if _, err := d.prepare(ctx, d.holder); err != nil {
		return fail("the pod that has a claim: %v", err)
	}
	f := ok("registered again, its pod keeps its claim")
	f.took = took
	return restarted(f, restarts, "when kubelet restarted")
}

func (d *claimBench) kubeletRefuses(ctx context.Context) finding {
	d.kubelet.stop()
	begun := time.Now()
	if err := d.start(true); err != nil {
		return fail("%v", err)
	}
	restarts, err := d.until(ctx, d.registered)
	if err != nil {
		return fail("no registration after kubelet refused one: %v", err)
	}
	f := ok("registered at the next attempt")
	f.took = time.Since(begun)
	return restarted(f, restarts, "when it was refused")
}

func (d *claimBench) unprepares(ctx context.Context) finding {
	took, err := d.release(ctx, d.holder)
	if err != nil {
		return fail("%v", err).kubeletSays(err.Error())
	}
	f := d.probe(ctx, func(ctx context.Context, c drapb.DRAPluginClient) finding {
		answer, err := c.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: request(d.held)})
		if one, answered := answer.GetClaims()[string(d.held.UID)]; err != nil || !answered || one.GetError() != "" {
			return fail("a second time: %v%s", err, one.GetError())
		}
		return ok("also a second time")
	})
	if err := d.Client.ResourceV1().ResourceClaims(namespace).Delete(ctx, "held", metav1.DeleteOptions{}); err != nil &&
		!apierrors.IsNotFound(err) {
		return fail("delete the claim: %v", err)
	}
	return d.slow(f, took)
}
