// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/embed/options"
)

// publish is what a driver would: a slice of so many devices of a node.
func publish(t *testing.T, c kubernetes.Interface, node string, count int, change func(*resourcev1.Device)) {
	t.Helper()
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "d.example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	for i := range count {
		d := resourcev1.Device{Name: fmt.Sprintf("dev-%d", i)}
		if change != nil {
			change(&d)
		}
		s.Spec.Devices = append(s.Spec.Devices, d)
	}
	if _, err := c.ResourceV1().ResourceSlices().Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// one is the spec of a claim for one device of the class.
func one() resourcev1.ResourceClaimSpec {
	return resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
		Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"},
	}}}}
}

// offer makes the class of devices, which has an expression, and a template of claims for one of them.
func offer(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	if _, err := c.ResourceV1().DeviceClasses().Create(t.Context(), &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec: resourcev1.DeviceClassSpec{
			Selectors:            []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: "device.driver == 'd.example.com'"}}},
			ExtendedResourceName: ptr.To("example.com/gpu"),
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ResourceV1().ResourceClaimTemplates("default").Create(t.Context(), &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: one()},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func byTemplate(s *corev1.PodSpec) {
	s.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimTemplateName: ptr.To("gpu")}}
	s.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "c"}}
}

func addClaim(t *testing.T, c kubernetes.Interface, name string) *resourcev1.ResourceClaim {
	t.Helper()
	claim, err := c.ResourceV1().ResourceClaims("default").Create(t.Context(),
		&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: one()}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

func byName(name string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: &name}}
		s.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "c"}}
	}
}

func deletePod(t *testing.T, c kubernetes.Interface, name string) {
	t.Helper()
	if err := c.CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
}

// claims follows all claims from one moment on, and sees that no device is two claims' at once.
type claims struct {
	t    *testing.T
	feed watch.Interface
	all  map[string]*resourcev1.ResourceClaim
}

func followClaims(t *testing.T, c kubernetes.Interface) *claims {
	t.Helper()
	list, err := c.ResourceV1().ResourceClaims("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	feed, err := c.ResourceV1().ResourceClaims("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(feed.Stop)
	f := &claims{t: t, feed: feed, all: map[string]*resourcev1.ResourceClaim{}}
	for i := range list.Items {
		f.all[list.Items[i].Name] = &list.Items[i]
	}
	return f
}

func deviceOf(claim *resourcev1.ResourceClaim) string {
	if claim == nil || claim.Status.Allocation == nil || len(claim.Status.Allocation.Devices.Results) != 1 {
		return ""
	}
	r := claim.Status.Allocation.Devices.Results[0]
	return r.Pool + "/" + r.Device
}

// until reads on until the claims are as is says.
func (f *claims) until(what string, is func(map[string]*resourcev1.ResourceClaim) bool) {
	f.t.Helper()
	late := time.After(patience)
	for !is(f.all) {
		select {
		case e, ok := <-f.feed.ResultChan():
			claim, isClaim := e.Object.(*resourcev1.ResourceClaim)
			if !ok || !isClaim {
				f.t.Fatalf("the watch of claims ended with %v", e)
			}
			if e.Type == watch.Deleted {
				delete(f.all, claim.Name)
				continue
			}
			f.all[claim.Name] = claim
			for name, other := range f.all {
				if d := deviceOf(claim); d != "" && name != claim.Name && deviceOf(other) == d {
					f.t.Fatalf("%s was given to %s while %s has it", d, claim.Name, name)
				}
			}
		case <-late:
			f.t.Fatalf("%s: not so after %v; claims: %v", what, patience, f.all)
		}
	}
}

// reserved are the pods that claims are reserved for, and the device of each.
func reserved(all map[string]*resourcev1.ResourceClaim) map[string]string {
	out := map[string]string{}
	for _, claim := range all {
		for _, user := range claim.Status.ReservedFor {
			out[user.Name] = deviceOf(claim)
		}
	}
	return out
}

// TestDevicesAreGivenOnce: 200 pods want one of 120 devices each. 120 pods get one, on its node; when they go the others do; when those
// go nothing is left. At no time has one device two claims.
func TestDevicesAreGivenOnce(t *testing.T) {
	_, c := cluster(t)
	offer(t, c)
	for i := range 10 {
		addNode(t, c, fmt.Sprintf("n%d", i), "64")
		publish(t, c, fmt.Sprintf("n%d", i), 12, nil)
	}
	f := followClaims(t, c)
	var making sync.WaitGroup
	for i := range 8 {
		making.Go(func() {
			for j := range 25 {
				addPod(t, c, fmt.Sprintf("p%d", i*25+j), "10m", byTemplate)
			}
		})
	}
	making.Wait()
	f.until("120 claims are reserved", func(all map[string]*resourcev1.ResourceClaim) bool { return len(reserved(all)) == 120 })
	first := reserved(f.all)
	for _, claim := range f.all {
		if claim.Status.Allocation != nil && !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
			t.Errorf("claim %s has devices and no finalizer", claim.Name)
		}
	}
	settle := func(pods map[string]string) {
		for name, device := range pods {
			pod := awaitPod(t, c, name, func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })
			claim := f.all[*pod.Status.ResourceClaimStatuses[0].ResourceClaimName]
			if deviceOf(claim) != device || len(device) <= len(pod.Spec.NodeName) || device[:len(pod.Spec.NodeName)+1] != pod.Spec.NodeName+"/" {
				t.Errorf("pod %s is on %s, its claim %s has %q, reserved was %q", name, pod.Spec.NodeName, claim.Name, deviceOf(claim), device)
			}
		}
	}
	settle(first)
	for name := range first {
		deletePod(t, c, name)
	}
	second := map[string]string{}
	f.until("the other 80 are reserved", func(all map[string]*resourcev1.ResourceClaim) bool {
		for name, device := range reserved(all) {
			if first[name] == "" {
				second[name] = device
			}
		}
		return len(second) == 80
	})
	settle(second)
	for name := range second {
		deletePod(t, c, name)
	}
	f.until("all claims are gone", func(all map[string]*resourcev1.ResourceClaim) bool { return len(all) == 0 })
}

// TestPodsShareAClaim: two pods use one claim, and so are where its device is. Without them it has none.
func TestPodsShareAClaim(t *testing.T) {
	_, c := cluster(t)
	offer(t, c)
	for _, n := range []string{"a", "b"} {
		addNode(t, c, n, "4")
		publish(t, c, n, 1, nil)
	}
	f := followClaims(t, c)
	addPod(t, c, "p", "1", byName("x"))
	addPod(t, c, "q", "1", byName("x"))
	addClaim(t, c, "x") // they wait for it
	p := awaitPod(t, c, "p", func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })
	awaitPod(t, c, "q", on(p.Spec.NodeName))
	f.until("both are named", func(all map[string]*resourcev1.ResourceClaim) bool {
		return len(reserved(all)) == 2 && deviceOf(all["x"]) == p.Spec.NodeName+"/dev-0"
	})
	deletePod(t, c, "p")
	f.until("q alone is named", func(all map[string]*resourcev1.ResourceClaim) bool {
		return len(reserved(all)) == 1 && deviceOf(all["x"]) != ""
	})
	deletePod(t, c, "q")
	f.until("it has nothing", func(all map[string]*resourcev1.ResourceClaim) bool {
		return deviceOf(all["x"]) == "" && len(all["x"].Status.ReservedFor) == 0 && len(all["x"].Finalizers) == 0
	})
}

// TestAPodGoesWhileItsDeviceGetsReady: there is one device, which must become ready first. While a pod waits for that it is deleted; the
// next one, which found nothing, gets the device, waits in turn, and is bound when the driver says so.
func TestAPodGoesWhileItsDeviceGetsReady(t *testing.T) {
	_, c := cluster(t)
	offer(t, c)
	addNode(t, c, "a", "4")
	publish(t, c, "a", 1, func(d *resourcev1.Device) {
		d.BindingConditions, d.BindingFailureConditions = []string{"example.com/ready"}, []string{"example.com/broken"}
	})
	f := followClaims(t, c)
	addPod(t, c, "p", "1", byTemplate)
	awaitEvent(t, c, "p", "BindingConditionsPending", "waiting for binding conditions for device on node a")
	addPod(t, c, "q", "1", byTemplate)
	awaitPod(t, c, "q", refused("0/1 nodes are available: 1 cannot allocate all claims."))
	deletePod(t, c, "p")
	awaitEvent(t, c, "q", "BindingConditionsPending", "waiting for binding conditions for device on node a")
	f.until("q has the device", func(all map[string]*resourcev1.ResourceClaim) bool { return reserved(all)["q"] == "a/dev-0" })
	for _, claim := range f.all {
		if deviceOf(claim) == "" {
			continue
		}
		if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			claim, err := c.ResourceV1().ResourceClaims("default").Get(t.Context(), claim.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			claim.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "d.example.com", Pool: "a", Device: "dev-0",
				Conditions: []metav1.Condition{{
					Type: "example.com/ready", Status: metav1.ConditionTrue, Reason: "Attached", LastTransitionTime: metav1.Now(),
				}}}}
			_, err = c.ResourceV1().ResourceClaims("default").UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	awaitPod(t, c, "q", on("a"))
	measured(t, c, map[string]string{
		`scheduler_dra_bindingconditions_allocations_total{driver="d.example.com",profile="default-scheduler",status="success"}`:           "1",
		`scheduler_dra_bindingconditions_wait_duration_seconds_count{driver="d.example.com",profile="default-scheduler",status="success"}`: "1",
	})
}

func measured(t *testing.T, c kubernetes.Interface, want map[string]string) {
	t.Helper()
	got := scraped(t, c)
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %q, want %s", name, got[name], value)
		}
	}
}

// TestExtendedResourcesAreDevices: a pod asks for what a class stands behind; a claim is made for it, and the pod's status names it.
func TestExtendedResourcesAreDevices(t *testing.T) {
	_, c := cluster(t)
	addNode(t, c, "a", "4")
	addPod(t, c, "p", "1", func(s *corev1.PodSpec) {
		two := corev1.ResourceList{"example.com/gpu": resource.MustParse("2")}
		s.Containers[0].Resources = corev1.ResourceRequirements{Requests: two, Limits: two}
	})
	awaitPod(t, c, "p", refused("0/1 nodes are available: 1 Insufficient example.com/gpu."))
	offer(t, c)
	publish(t, c, "a", 3, nil)
	pod := awaitPod(t, c, "p", on("a"))
	if pod.Status.ExtendedResourceClaimStatus == nil {
		t.Fatalf("the status names no claim: %+v", pod.Status)
	}
	got := pod.Status.ExtendedResourceClaimStatus
	if m := got.RequestMappings; len(m) != 1 || m[0] != (corev1.ContainerExtendedResourceRequest{ContainerName: "c",
		ResourceName: "example.com/gpu", RequestName: "container-0-request-0"}) {
		t.Errorf("the mappings are %+v", m)
	}
	claim, err := c.ResourceV1().ResourceClaims("default").Get(t.Context(), got.ResourceClaimName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(claim.Status.Allocation.Devices.Results); n != 2 || len(claim.Status.ReservedFor) != 1 ||
		claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" {
		t.Errorf("the claim has %d devices: %+v", n, claim)
	}
	measured(t, c, map[string]string{
		`dynamic_resource_allocation_resourceclaim_creates_total{admin_access="false",owner_api_group="",owner_api_kind="Pod",status="success"}`: "1",
	})
}

// TestDevicesArePacked: the profile would have the devices behind an extended resource fill up node by node. Pods come one after the other,
// so that each finds what the one before has taken.
func TestDevicesArePacked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scheduler.yaml")
	if err := os.WriteFile(file, []byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- pluginConfig:
  - {name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, resources: [{name: example.com/gpu}]}}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	c := embedtest.Start(t, &embed.Server{Node: embed.NodeNone,
		APIServer: options.APIServer{Scheduler: options.Scheduler{ConfigFile: file}}}).Client()
	offer(t, c)
	for _, n := range []string{"a", "b", "c"} {
		addNode(t, c, n, "4")
		publish(t, c, n, 3, nil)
	}
	var nodes []string
	for i := range 9 {
		name := fmt.Sprint("p", i)
		addPod(t, c, name, "100m", func(s *corev1.PodSpec) {
			one := corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
			s.Containers[0].Resources = corev1.ResourceRequirements{Requests: one, Limits: one}
		})
		nodes = append(nodes, awaitPod(t, c, name, func(p *corev1.Pod) bool { return p.Spec.NodeName != "" }).Spec.NodeName)
	}
	if x := slices.Compact(slices.Clone(nodes)); len(x) != 3 {
		t.Errorf("the pods went to %v", nodes)
	}
}

// TestIdleClaimsGiveWay: a claim has a device where the pod can not go, and nobody uses it.
func TestIdleClaimsGiveWay(t *testing.T) {
	_, c := cluster(t)
	offer(t, c)
	for _, n := range []string{"a", "b"} {
		addNode(t, c, n, "4")
		publish(t, c, n, 1, nil)
	}
	addClaim(t, c, "x")
	addPod(t, c, "p", "1", byName("x"))
	p := awaitPod(t, c, "p", func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })
	other := map[string]string{"a": "b", "b": "a"}[p.Spec.NodeName]
	f := followClaims(t, c)
	addPod(t, c, "q", "1", func(s *corev1.PodSpec) {
		byName("x")(s)
		s.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{other}}},
			}}}}}
	})
	awaitPod(t, c, "q", func(p *corev1.Pod) bool {
		return strings.Contains(condition(p).Message, "1 resourceclaim not available on the node")
	})
	deletePod(t, c, "p")
	awaitPod(t, c, "q", on(other))
	f.until("the device is another", func(all map[string]*resourcev1.ResourceClaim) bool { return reserved(all)["q"] == other+"/dev-0" })
}
