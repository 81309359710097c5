// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	podresourcesv1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// pods are the pods of a node.
type pods struct {
	mu      sync.Mutex
	list    []*corev1.Pod
	unread  bool
	changes chan struct{}
}

func (p *pods) set(list ...*corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = list
	close(p.changes)
	p.changes = make(chan struct{})
}

func (p *pods) AdmittedPods() []*corev1.Pod {
	var out []*corev1.Pod
	for _, pod := range p.Pods() {
		if pod.Status.Phase != corev1.PodSucceeded {
			out = append(out, pod)
		}
	}
	return out
}

func (p *pods) Pods() []*corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*corev1.Pod
	for _, pod := range p.list {
		out = append(out, pod.DeepCopy())
	}
	return out
}

func (p *pods) FindPod(t podspec.Target) (*corev1.Pod, error) {
	for _, pod := range p.Pods() {
		if pod.Namespace == t.Namespace && pod.Name == t.Pod {
			return pod, nil
		}
	}
	return nil, apierrors.NewNotFound(corev1.Resource("pods"), t.Pod)
}

func (p *pods) Synced() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.unread
}

func (p *pods) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changes
}

// resources give each container a device of its name.
type resources struct{}

func (resources) DescribePod(pod *corev1.Pod, to *podresourcesv1.PodResources) {
	to.CpuIds = append(to.CpuIds, int64(len(pod.Name)))
}

func (resources) Describe(pod *corev1.Pod, c *corev1.Container, to *podresourcesv1.ContainerResources) {
	to.Devices = []*podresourcesv1.ContainerDevices{{ResourceName: "example.com/dev", DeviceIds: []string{pod.Name + "-" + c.Name}}}
}

func (resources) DescribeNode(to *podresourcesv1.AllocatableResourcesResponse) {
	to.Devices = []*podresourcesv1.ContainerDevices{{ResourceName: "example.com/dev", DeviceIds: []string{"all"}}}
}

func pod(name string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "init"}, {Name: "side", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}},
			Containers:     []corev1.Container{{Name: "c"}},
		},
		Status: corev1.PodStatus{Phase: phase},
	}
}

// serve serves the APIs of a node.
func serve(t *testing.T, p *pods) (resources, pods *grpc.ClientConn) {
	t.Helper()
	p.changes = make(chan struct{})
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() {
		over <- Run(ctx, Options{
			Dir: dir, Pods: p, Resources: resourcesOf(), Metrics: NewMetrics(), Logger: slog.New(slog.DiscardHandler),
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	dial := func(socket string) *grpc.ClientConn {
		soon := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1, MaxDelay: 5 * time.Millisecond},
			MinConnectTimeout: time.Minute}
		c, err := grpc.NewClient("unix:"+filepath.Join(dir, socket), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithConnectParams(soon), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	return dial(ResourcesSocket), dial(PodsSocket)
}

func resourcesOf() resources { return resources{} }

// Pods that have ended are absent, sidecars are there and init containers are not; both versions answer.
func TestPodResources(t *testing.T) {
	p := &pods{list: []*corev1.Pod{pod("a", corev1.PodRunning), pod("b", corev1.PodSucceeded)}}
	conn, _ := serve(t, p)
	client := podresourcesv1.NewPodResourcesListerClient(conn)
	list, err := client.List(t.Context(), &podresourcesv1.ListPodResourcesRequest{})
	if err != nil || len(list.GetPodResources()) != 1 ||
		len(list.GetPodResources()[0].GetCpuIds()) != 1 || len(list.GetPodResources()[0].GetContainers()) != 2 ||
		list.GetPodResources()[0].GetContainers()[0].GetName() != "side" ||
		list.GetPodResources()[0].GetContainers()[1].GetDevices()[0].GetDeviceIds()[0] != "a-c" {
		t.Errorf("%v, %v", list, err)
	}
	one, err := client.Get(t.Context(), &podresourcesv1.GetPodResourcesRequest{PodName: "a", PodNamespace: "default"})
	if err != nil || one.GetPodResources().GetName() != "a" {
		t.Errorf("%v, %v", one, err)
	}
	_, err = client.Get(t.Context(), &podresourcesv1.GetPodResourcesRequest{PodName: "x", PodNamespace: "default"})
	if status.Convert(err).Message() != "pod x in namespace default not found" {
		t.Error(err)
	}
	all, err := client.GetAllocatableResources(t.Context(), &podresourcesv1.AllocatableResourcesRequest{})
	if err != nil || all.GetDevices()[0].GetDeviceIds()[0] != "all" {
		t.Errorf("%v, %v", all, err)
	}
	old, err := podresourcesv1alpha1.NewPodResourcesListerClient(conn).List(t.Context(), &podresourcesv1alpha1.ListPodResourcesRequest{})
	if err != nil || len(old.GetPodResources()) != 2 ||
		old.GetPodResources()[0].GetContainers()[0].GetDevices()[0].GetDeviceIds()[0] != "a-c" {
		t.Errorf("%v, %v", old, err)
	}
}

// A client that asks too often is told so.
func TestRateLimit(t *testing.T) {
	conn, _ := serve(t, &pods{})
	client := podresourcesv1.NewPodResourcesListerClient(conn)
	refused := make(chan error, 200)
	var running sync.WaitGroup
	for range 200 {
		running.Go(func() {
			_, err := client.List(context.Background(), &podresourcesv1.ListPodResourcesRequest{})
			refused <- err
		})
	}
	running.Wait()
	count := 0
	for range 200 {
		if err := <-refused; status.Code(err) == codes.ResourceExhausted {
			count++
		} else if err != nil {
			t.Error(err)
		}
	}
	if count == 0 {
		t.Error("none of 200 calls at once is refused")
	}
}

// The pods API lists, gets and watches.
func TestPodsAPI(t *testing.T) {
	p := &pods{list: []*corev1.Pod{pod("b", corev1.PodRunning), pod("a", "")}}
	_, conn := serve(t, p)
	client := podsapi.NewPodsClient(conn)
	decode := func(text []byte) *corev1.Pod {
		var out corev1.Pod
		if err := out.Unmarshal(text); err != nil {
			t.Error(err)
		}
		return &out
	}
	list, err := client.ListPods(t.Context(), &podsapi.ListPodsRequest{})
	if err != nil || len(list.GetPods()) != 2 {
		t.Fatalf("%v, %v", list, err)
	}
	if first := decode(list.GetPods()[0]); first.Name != "a" || first.Status.Phase != corev1.PodPending {
		t.Errorf("first %v", first)
	}
	one, err := client.GetPod(t.Context(), &podsapi.GetPodRequest{PodUID: "b"})
	if err != nil || decode(one.GetPod()).Name != "b" {
		t.Errorf("%v, %v", one, err)
	}
	if _, err := client.GetPod(t.Context(), &podsapi.GetPodRequest{PodUID: "x"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := client.WatchPods(ctx, &podsapi.WatchPodsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := func(kind podsapi.EventType, name string) {
		t.Helper()
		e, err := stream.Recv()
		if err != nil || e.GetType() != kind || name != "" && decode(e.GetPod()).Name != name {
			t.Errorf("%v, %v", e, err)
		}
	}
	want(podsapi.EventType_ADDED, "a")
	want(podsapi.EventType_ADDED, "b")
	want(podsapi.EventType_INITIAL_SYNC_COMPLETE, "")
	p.set(pod("b", corev1.PodSucceeded), pod("c", corev1.PodPending))
	want(podsapi.EventType_DELETED, "a")
	want(podsapi.EventType_MODIFIED, "b")
	want(podsapi.EventType_ADDED, "c")
}

// Before the node has listed its pods, it knows of none.
func TestPodsAPIBeforeTheList(t *testing.T) {
	_, conn := serve(t, &pods{unread: true})
	if _, err := podsapi.NewPodsClient(conn).ListPods(t.Context(), &podsapi.ListPodsRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
}

// With its feature gate off, the pods API is not served, and the socket of a former process is gone.
func TestNoPodsAPI(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, PodsSocket)
	if err := errors.Join(os.MkdirAll(filepath.Dir(socket), 0o750), os.WriteFile(socket, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := Options{
		Dir: dir, Pods: &pods{}, Resources: resourcesOf(), Metrics: NewMetrics(), Logger: slog.New(slog.DiscardHandler), NoPodsAPI: true,
	}
	if err := Run(ctx, o); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket: %v", err)
	}
}
