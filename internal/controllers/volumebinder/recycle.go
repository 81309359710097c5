// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumebinder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

const (
	// recyclerName begins the name of the pod that empties a volume; the volume's name follows.
	recyclerName = "recycler-for-"
	// volumeRecycled is the reason of an event.
	volumeRecycled = "VolumeRecycled"
	// recycleAgain is when a volume that could not be recycled is tried again: upstream's controller looks at all volumes then.
	recycleAgain = 15 * time.Second
)

// recycler empties released volumes with the policy Recycle, each by a pod. Then they are available again. All messages are upstream's.
//
// One worker calls it. What it keeps in memory is which pods it has started: a pod of an earlier process is deleted, and the volume
// recycled anew.
type recycler struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	pods     cache.Indexer // by claim, too
	claims   corelisters.PersistentVolumeClaimLister
	settings *settings

	running  map[string]*recycling // by the name of the volume
	told     map[string]string     // the last event of each volume that waits for its pods
	watchers sync.WaitGroup        // those that forward events of pods
}

// recycling is a pod that empties a volume.
type recycling struct {
	volume *corev1.PersistentVolume
	pod    *corev1.Pod
	stop   context.CancelFunc // of the watcher
}

func newRecycler(client kubernetes.Interface, recorder record.EventRecorder) *recycler {
	return &recycler{client: client, recorder: recorder, running: map[string]*recycling{}, told: map[string]string{}}
}

// recycle makes the next step of a volume. It reports whether the volume is empty. A failure is a problem of the volume, with upstream's
// words; err is one of the API server.
func (r *recycler) recycle(ctx context.Context, pv *corev1.PersistentVolume) (done bool, failure string, err error) {
	run := r.running[pv.Name]
	if run != nil && run.volume.UID != pv.UID {
		r.end(pv.Name) // another volume of that name; its pod is in the way of this one's
		run = nil
	}
	if run == nil {
		failure, err := r.begin(ctx, pv)
		return false, failure, err
	}
	pod, err := r.podOf(ctx, run)
	if err != nil {
		return false, "", err
	}
	const failed = "failed to recycle volume: "
	switch {
	case pod == nil:
		r.end(pv.Name)
		return false, failed + "recycler pod was deleted", nil
	case pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed:
		return false, "", nil
	}
	r.end(pv.Name)
	deleted := r.remove(ctx, pod)
	switch {
	case pod.Status.Phase == corev1.PodFailed:
		return false, failed + cmp.Or(pod.Status.Message, "pod failed, pod.Status.Message unknown"), nil
	case deleted != nil:
		return false, "failed to delete recycler pod: " + deleted.Error(), nil
	}
	return true, "", nil
}

// podOf returns the pod as it is now; nil: it is gone.
func (r *recycler) podOf(ctx context.Context, run *recycling) (*corev1.Pod, error) {
	if obj, ok, err := r.pods.GetByKey(run.pod.Namespace + "/" + run.pod.Name); err == nil && ok {
		if pod, ok := obj.(*corev1.Pod); ok && pod.UID == run.pod.UID {
			return pod, nil
		}
	}
	// The cache may not show it yet.
	pod, err := r.client.CoreV1().Pods(run.pod.Namespace).Get(ctx, run.pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && pod.UID != run.pod.UID:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get recycler pod: %w", err)
	}
	return pod, nil
}

// empties reports whether a pod empties the volume.
func (r *recycler) empties(pv *corev1.PersistentVolume) bool {
	run := r.running[pv.Name]
	return run != nil && run.volume.UID == pv.UID
}

// used reports whether pods use a released volume that is not being emptied. Their end brings the volume back.
func (r *recycler) used(pv *corev1.PersistentVolume) (bool, error) {
	if r.empties(pv) {
		return false, nil
	}
	users, err := r.users(pv)
	if err != nil {
		return false, err
	}
	ref := pv.Spec.ClaimRef
	// A claim of that name is another one, with another volume.
	if _, err := r.claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name); len(users) > 0 && apierrors.IsNotFound(err) {
		if text := "Volume is used by pods: " + strings.Join(users, ","); r.told[pv.Name] != text {
			r.told[pv.Name] = text
			r.recorder.Event(pv, corev1.EventTypeNormal, "VolumeFailedRecycle", text)
		}
		return true, nil
	}
	delete(r.told, pv.Name)
	return false, nil
}

// begin creates the pod.
func (r *recycler) begin(ctx context.Context, pv *corev1.PersistentVolume) (failure string, err error) {
	// The cache may still show a volume that was recycled a moment ago, and is bound again.
	newest, err := r.client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && newest.ResourceVersion != pv.ResourceVersion {
		return "", nil // an event brings the volume back
	} else if err != nil {
		return "", fmt.Errorf("get volume: %w", err)
	}
	pod := r.settings.pod(pv)
	events, err := r.client.CoreV1().Events(pod.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.name", pod.Name).String(), Watch: true,
	})
	if err != nil {
		return err.Error(), nil
	}
	made, err := r.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		events.Stop()
		if !apierrors.IsAlreadyExists(err) {
			return fmt.Sprintf("unexpected error creating recycler pod:  %+v", err), nil
		}
		if err := r.remove(ctx, pod); err != nil {
			return fmt.Sprintf("failed to delete old recycler pod %s/%s: %s", pod.Namespace, pod.Name, err), nil
		}
		return "old recycler pod found, will retry later", nil
	}
	ctx, stop := context.WithCancel(ctx)
	r.running[pv.Name] = &recycling{pv, made, stop}
	r.watchers.Go(func() { r.forward(ctx, pv, events) })
	return "", nil
}

// forward records the events of a pod as those of its volume, until ctx ends.
func (r *recycler) forward(ctx context.Context, pv *corev1.PersistentVolume, events watch.Interface) {
	defer events.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-events.ResultChan():
			if !ok {
				return
			}
			if event, is := e.Object.(*corev1.Event); is && e.Type == watch.Added {
				r.recorder.Eventf(pv, event.Type, "RecyclerPod", "Recycler pod: %s", event.Message)
			}
		}
	}
}

// users returns the pods that use the volume's former claim, as namespace/name, in order.
func (r *recycler) users(pv *corev1.PersistentVolume) ([]string, error) {
	found, err := r.pods.ByIndex(workload.ByPersistentVolumeClaim, pv.Spec.ClaimRef.Namespace+"/"+pv.Spec.ClaimRef.Name)
	if err != nil {
		return nil, fmt.Errorf("find pods: %w", err)
	}
	var out []string
	for _, obj := range found {
		if pod, ok := obj.(*corev1.Pod); ok && !over(pod) {
			out = append(out, pod.Namespace+"/"+pod.Name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// over reports whether a pod uses its volumes no more.
func over(pod *corev1.Pod) bool {
	running := slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Terminated == nil && s.State.Waiting == nil
	})
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded || pod.DeletionTimestamp != nil && !running
}

// end forgets a pod.
func (r *recycler) end(pv string) {
	r.running[pv].stop()
	delete(r.running, pv)
}

// finish removes the pod of a volume that is gone when the pod is over.
func (r *recycler) finish(ctx context.Context, pv string) error {
	delete(r.told, pv)
	run := r.running[pv]
	if run == nil {
		return nil
	}
	pod, err := r.podOf(ctx, run)
	switch {
	case err != nil:
		return err
	case pod == nil:
		r.end(pv)
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		r.end(pv)
		if pod.Status.Phase == corev1.PodSucceeded {
			r.recorder.Event(run.volume, corev1.EventTypeNormal, volumeRecycled, "Volume recycled")
		}
		return r.remove(ctx, pod)
	}
	return nil
}

func (r *recycler) remove(ctx context.Context, pod *corev1.Pod) error {
	err := r.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// recyclable reports whether there is a recycler for a volume.
func recyclable(pv *corev1.PersistentVolume) bool {
	return pv.Spec.HostPath != nil || pv.Spec.NFS != nil
}

// pod returns the pod that empties a volume. It may take as many seconds as the settings say for each GiB.
func (s *settings) pod(pv *corev1.PersistentVolume) *corev1.Pod {
	of, source := s.hostPath, corev1.VolumeSource{}
	if path := pv.Spec.HostPath; path != nil {
		source.HostPath = &corev1.HostPathVolumeSource{Path: path.Path}
	} else {
		of = s.nfs
		source.NFS = &corev1.NFSVolumeSource{Server: pv.Spec.NFS.Server, Path: pv.Spec.NFS.Path}
	}
	pod := template()
	if of.template != nil {
		pod = of.template.DeepCopy()
	}
	pod.Name, pod.GenerateName, pod.Namespace = recyclerName+pv.Name, "", cmp.Or(pod.Namespace, metav1.NamespaceDefault)
	size, unit := pv.Spec.Capacity[corev1.ResourceStorage], resource.MustParse("1Gi")
	pod.Spec.ActiveDeadlineSeconds = new(max(size.Value()/unit.Value()*int64(of.increment), int64(of.minimum)))
	pod.Spec.Volumes[0].VolumeSource = source
	return pod
}

// template is kube-controller-manager's.
func template() *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Volumes:       []corev1.Volume{{Name: "vol"}},
		Containers: []corev1.Container{{
			Name: "pv-recycler", Image: "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6", Command: []string{"/bin/sh"},
			Args:         []string{"-c", `test -e /scrub && find /scrub -mindepth 1 -delete && test -z "$(ls -A /scrub)" || exit 1`},
			VolumeMounts: []corev1.VolumeMount{{Name: "vol", MountPath: "/scrub"}},
		}},
	}}
}

// errNoVolumes is upstream's.
var errNoVolumes = errors.New("does not contain any volume(s)")
