// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

const (
	attachDriver  = "attach.example.com"
	attachVolumes = 1000
	attachNodes   = 10
	attachRounds  = 3
	attachWorkers = 16
)

// attaching is a cluster of simulated nodes with a thousand bound claims.
type attaching struct {
	*load.Server
	client kubernetes.Interface
	nodes  []string
}

// attaches adds what it costs the server to attach and detach volumes, beyond pods that have none: the attach-detach controller, the
// scheduler's look at claims, and the API server's work for both and for the attacher, which is a part of this process.
func attaches(ctx context.Context, b *bench, add adder) (err error) {
	s, err := load.Start(ctx, b.binary, "--node", "simulated", "--nodes", fmt.Sprint(attachNodes))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	s.Config.QPS = -1
	a := &attaching{Server: s}
	if a.client, err = kubernetes.NewForConfig(s.Config); err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*load.Patience)
	defer cancel()
	if err := a.prepare(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	served, end := context.WithCancel(ctx)
	group.Go(func() error { return a.attacher(served) })
	group.Go(func() error {
		defer end()
		return a.measure(ctx, add)
	})
	return group.Wait()
}

// prepare makes the volumes and their claims, and waits until they are bound.
func (a *attaching) prepare(ctx context.Context) error {
	nodes, err := a.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	defer nodes.Stop()
	if err := through(nodes, func(e watch.Event) bool { // a server is ready before its nodes are
		if n, ok := e.Object.(*corev1.Node); ok && !slices.Contains(a.nodes, n.Name) {
			a.nodes = append(a.nodes, n.Name)
		}
		return len(a.nodes) == attachNodes
	}); err != nil {
		return err
	}
	// Simulated nodes mount nothing. Volumes are attached to nodes that say that they leave it to the controller.
	managed := []byte(`{"metadata":{"annotations":{"volumes.kubernetes.io/controller-managed-attach-detach":"true"}}}`)
	for _, n := range a.nodes {
		if _, err := a.client.CoreV1().Nodes().Patch(ctx, n, types.MergePatchType, managed, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("annotate node: %w", err)
		}
	}
	w, err := a.client.CoreV1().PersistentVolumeClaims("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watch claims: %w", err)
	}
	defer w.Stop()
	if err := eachVolume(ctx, func(ctx context.Context, i int) error { return a.makeVolume(ctx, fmt.Sprint("v", i)) }); err != nil {
		return err
	}
	bound := map[string]bool{}
	return through(w, func(e watch.Event) bool {
		if c, ok := e.Object.(*corev1.PersistentVolumeClaim); ok && c.Status.Phase == corev1.ClaimBound {
			bound[c.Name] = true
		}
		return len(bound) == attachVolumes
	})
}

func (a *attaching) makeVolume(ctx context.Context, name string) error {
	size := corev1.ResourceList{corev1.ResourceStorage: apiresource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	if _, err := a.client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: attachDriver, VolumeHandle: name}},
		},
	}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create volume: %w", err)
	}
	if _, err := a.client.CoreV1().PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, VolumeName: name, StorageClassName: new(string), Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create claim: %w", err)
	}
	return nil
}

// eachVolume does something for each volume, several at once.
func eachVolume(ctx context.Context, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(attachWorkers)
	for i := range attachVolumes {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// through reads a watch until it has shown enough.
func through(w watch.Interface, enough func(e watch.Event) bool) error {
	for e := range w.ResultChan() {
		if enough(e) {
			return nil
		}
	}
	return errors.New("a watch ended too early")
}

// attacher is a driver's external-attacher: it sets its finalizer and status.attached, and removes the finalizer of what is deleted.
func (a *attaching) attacher(ctx context.Context) error {
	w, err := a.client.StorageV1().VolumeAttachments().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watch attachments: %w", err)
	}
	defer w.Stop()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(attachWorkers)
	for e := range w.ResultChan() {
		attachment, ok := e.Object.(*storagev1.VolumeAttachment)
		if !ok || e.Type == watch.Deleted {
			continue
		}
		switch {
		case attachment.DeletionTimestamp != nil && len(attachment.Finalizers) > 0:
			group.Go(func() error { return a.patch(ctx, attachment.Name, `{"metadata":{"finalizers":null}}`) })
		case attachment.DeletionTimestamp == nil && len(attachment.Finalizers) == 0:
			group.Go(func() error {
				return errors.Join(a.patch(ctx, attachment.Name, `{"metadata":{"finalizers":["external-attacher/attach-example-com"]}}`),
					a.patch(ctx, attachment.Name, `{"status":{"attached":true}}`, "status"))
			})
		}
	}
	err = group.Wait()
	if ctx.Err() != nil {
		return nil // nothing is left to attach
	}
	return err
}

func (a *attaching) patch(ctx context.Context, name, patch string, subresources ...string) error {
	_, err := a.client.StorageV1().VolumeAttachments().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{},
		subresources...)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("patch attachment: %w", err)
	}
	return nil
}

// measure takes turns: pods without volumes, and pods with them.
func (a *attaching) measure(ctx context.Context, add adder) error {
	var up, down, until []float64
	var rounds [2][2]time.Duration
	for range attachRounds {
		for with := range 2 {
			began := time.Now()
			attached, detached, took, err := a.round(ctx, with == 1)
			if err != nil {
				return fmt.Errorf("round of %v: %w", time.Since(began), err)
			}
			if rounds[with] = [2]time.Duration{attached, detached}; with == 1 {
				until = append(until, took.Seconds())
			}
		}
		up = append(up, load.Ms(rounds[1][0]-rounds[0][0])/attachVolumes)
		down = append(down, load.Ms(rounds[1][1]-rounds[0][1])/attachVolumes)
	}
	add(fmt.Sprintf("%d volumes attached to %d simulated nodes, server CPU beyond that of pods without: a volume", attachVolumes, attachNodes),
		report.Value{Name: "attach", Unit: "ms", Number: medianOf(up), Bound: report.AtMost(5)},
		report.Value{Name: "detach", Unit: "ms", Number: medianOf(down), Bound: report.AtMost(5)},
		report.Value{Name: "first pod's create → all attached", Unit: "s", Number: medianOf(until)})
	return nil
}

func medianOf(numbers []float64) float64 {
	slices.Sort(numbers)
	return numbers[len(numbers)/2]
}

// round creates pods until all run and all volumes are attached, and deletes them until all are gone and detached. It returns the server's
// CPU of both, and how long the first took.
func (a *attaching) round(ctx context.Context, with bool) (up, down, took time.Duration, err error) {
	kind := "plain"
	if with {
		kind = "held"
	}
	pods, err := a.client.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, 0, 0, fmt.Errorf("watch pods: %w", err)
	}
	defer pods.Stop()
	began, before, err := a.now()
	if err != nil {
		return 0, 0, 0, err
	}
	if err := eachVolume(ctx, func(ctx context.Context, i int) error { return a.makePod(ctx, kind, i, with) }); err != nil {
		return 0, 0, 0, err
	}
	running := map[string]bool{}
	if err := through(pods, func(e watch.Event) bool {
		if p, ok := e.Object.(*corev1.Pod); ok && p.Status.Phase == corev1.PodRunning {
			running[p.Name] = true
		}
		return len(running) == attachVolumes
	}); err != nil {
		return 0, 0, 0, err
	}
	if err := a.untilListed(ctx, with, attachVolumes); err != nil {
		return 0, 0, 0, err
	}
	ended, middle, err := a.now()
	if err != nil {
		return 0, 0, 0, err
	}
	if err := a.client.CoreV1().Pods("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return 0, 0, 0, fmt.Errorf("delete pods: %w", err)
	}
	gone := 0
	if err := through(pods, func(e watch.Event) bool {
		if e.Type == watch.Deleted {
			gone++
		}
		return gone == attachVolumes
	}); err != nil {
		return 0, 0, 0, err
	}
	if err := errors.Join(a.untilListed(ctx, with, 0), a.untilDetached(ctx)); err != nil {
		return 0, 0, 0, err
	}
	_, after, err := a.now()
	return middle - before, after - middle, ended.Sub(began), err
}

func (a *attaching) now() (time.Time, time.Duration, error) {
	used, err := a.Cpu()
	return time.Now(), used, err
}

func (a *attaching) makePod(ctx context.Context, kind string, i int, with bool) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", kind, i)},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: a.nodes[i%attachNodes]},
			TerminationGracePeriodSeconds: new(int64), Containers: []corev1.Container{{Name: "c", Image: "i"}},
		},
	}
	if with {
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("v", i)},
		}}}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	}
	_, err := a.client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create pod: %w", err)
	}
	return nil
}

// untilListed waits until the nodes list so many volumes as attached.
func (a *attaching) untilListed(ctx context.Context, with bool, want int) error {
	if !with {
		return nil
	}
	w, err := a.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	defer w.Stop()
	listed := map[string]int{}
	return through(w, func(e watch.Event) bool {
		node, ok := e.Object.(*corev1.Node)
		if !ok {
			return false
		}
		listed[node.Name] = len(node.Status.VolumesAttached)
		total := 0
		for _, n := range listed {
			total += n
		}
		return len(listed) == attachNodes && total == want
	})
}

// untilDetached waits until there is no VolumeAttachment.
func (a *attaching) untilDetached(ctx context.Context) error {
	left, err := a.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list attachments: %w", err)
	}
	if len(left.Items) == 0 {
		return nil
	}
	w, err := a.client.StorageV1().VolumeAttachments().Watch(ctx, metav1.ListOptions{ResourceVersion: left.ResourceVersion})
	if err != nil {
		return fmt.Errorf("watch attachments: %w", err)
	}
	defer w.Stop()
	gone := 0
	return through(w, func(e watch.Event) bool {
		if e.Type == watch.Deleted {
			gone++
		}
		return gone == len(left.Items)
	})
}
