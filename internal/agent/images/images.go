// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package images pulls the images of containers, and removes unused ones, as kubelet's image manager does.
//
//	images.go       finds or pulls a container's image
//	limits.go       limits concurrent pulls
//	credentials.go  pull secrets, and the records of the secrets that images were pulled with (package pullmanager)
//	collect.go      lists images, and removes unused ones (package imagegc)
//	metrics.go      kubelet's metrics of all this
package images

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/credentialprovider"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/imagegc"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/pullmanager"
)

// The delays of a container whose image could not be pulled.
const (
	retrySoon = time.Second
	retryLate = 10 * time.Second
)

// Secrets reads pull secrets.
type Secrets interface {
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// Providers are the node's credential providers (package imagecredentials).
type Providers interface {
	// Lookup returns the credentials for the image, the most specific first. It calls no provider that the image does not match.
	Lookup(ctx context.Context, pod *corev1.Pod, image string) ([]credentialprovider.Credential, error)
}

// Pods are the pods of the node.
type Pods interface {
	// AdmittedPods returns the pods that run or are about to: their images are in use.
	AdmittedPods() []*corev1.Pod
}

// Config configures a Manager. All fields but Providers are required.
type Config struct {
	Runtime   *cri.Client
	Secrets   Secrets
	Providers Providers // nil: there are none
	Pods      Pods
	// Measure returns how full the runtime's file system of images is, under evict.ImageFSAvailable.
	Measure func(ctx context.Context) evict.Observations

	Kubelet *configv1beta1.KubeletConfiguration
	RootDir string                  // the parent directory of the records of pulled images
	Node    *corev1.ObjectReference // the object of events that do not belong to a pod
	Events  record.EventRecorder
	Metrics *Metrics
	Clock   clock.WithTicker
	Logger  *slog.Logger
}

// Manager pulls the images of containers, and removes unused ones. It is safe for concurrent use.
type Manager struct {
	Config
	limits  limits
	pulls   *pullmanager.Manager // nil: pods may use every image on the node
	backoff *backoff.Table

	mu       sync.Mutex
	failures map[string]failure // by the pod's UID and the image

	collecting sync.Mutex // held during garbage collection
	table      *imagegc.Table
	unpruned   backoff.Failures // to remove records
}

// New makes the manager, and reads the records of images that were pulled before.
func New(ctx context.Context, c Config) (*Manager, error) {
	m := &Manager{Config: c, limits: newLimits(c.Kubelet), backoff: backoff.New(backoff.Max), failures: map[string]failure{}}
	return m, m.openPulls(ctx)
}

// Forget drops the pod's failures.
func (m *Manager) Forget(pod types.UID) {
	ofPod := func(key string) bool { return strings.HasPrefix(key, string(pod)) }
	m.backoff.Forget(ofPod)
	m.forgetFailures(ofPod)
}

// containerEvent records an event for one container of the pod.
func (m *Manager) containerEvent(pod *corev1.Pod, c *corev1.Container, kind, reason, message string) {
	m.Events.Event(podspec.ContainerReference(pod, c), kind, reason, message)
}

// EnsureVolumes finds or pulls the images that the container mounts, by their own pull policies.
func (m *Manager) EnsureVolumes(
	ctx context.Context, pod *corev1.Pod, c *corev1.Container,
) (map[string]*runtimeapi.ImageSpec, time.Duration, *corev1.ContainerStateWaiting) {
	out := map[string]*runtimeapi.ImageSpec{}
	for _, v := range pod.Spec.Volumes {
		if v.Image == nil || !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name }) {
			continue
		}
		// The pod owns the events: only the volume has this image.
		image, wait, failure := m.Ensure(ctx, pod, &corev1.Container{Image: v.Image.Reference, ImagePullPolicy: v.Image.PullPolicy})
		if failure != nil {
			return nil, wait, failure
		}
		out[v.Name] = &runtimeapi.ImageSpec{Image: image.Id, UserSpecifiedImage: v.Image.Reference, Annotations: pod.Annotations}
	}
	return out, 0, nil
}

// Ensure finds or pulls the container's image, by its pull policy. If it cannot, it returns why the container waits, and for how long.
func (m *Manager) Ensure(
	ctx context.Context, pod *corev1.Pod, c *corev1.Container,
) (*runtimeapi.Image, time.Duration, *corev1.ContainerStateWaiting) {
	found := finding{policy: c.ImagePullPolicy}
	defer func() { m.Metrics.found(found) }()
	name, err := withTag(c.Image)
	if err != nil {
		message := fmt.Sprintf("Failed to apply default image tag %q: %v", c.Image, err)
		m.containerEvent(pod, c, corev1.EventTypeWarning, "InspectFailed", message)
		return nil, retryLate, &corev1.ContainerStateWaiting{Reason: "InvalidImageName", Message: message}
	}
	spec := &runtimeapi.ImageSpec{Image: name, UserSpecifiedImage: c.Image, Annotations: pod.Annotations}
	present, err := m.imageOf(ctx, spec)
	if err != nil {
		message := fmt.Sprintf("Failed to inspect image %q: %v", name, cri.Message(err))
		m.containerEvent(pod, c, corev1.EventTypeWarning, "InspectFailed", message)
		return nil, retryLate, &corev1.ContainerStateWaiting{Reason: "ImageInspectError", Message: message}
	}
	policy := c.ImagePullPolicy
	if policy == "" {
		policy = corev1.PullIfNotPresent
		if strings.HasSuffix(name, ":latest") {
			policy = corev1.PullAlways
		}
	}
	if found.policy = policy; policy != corev1.PullAlways {
		found.present = new(present != nil)
	}
	lookup := sync.OnceValues(func() ([]credentialprovider.Credential, error) { return m.pullCredentials(ctx, pod, spec.Image) })
	if present != nil && policy != corev1.PullAlways {
		must, message, err := m.mustPull(c, present.Id, lookup)
		if err != nil {
			return nil, retryLate, &corev1.ContainerStateWaiting{Reason: err.Error(), Message: err.Error()} // as kubelet does
		}
		if !must {
			found.pulling = new(false)
			m.containerEvent(pod, c, corev1.EventTypeNormal, "Pulled", message)
			return present, 0, nil
		}
	}
	if present != nil || policy != corev1.PullNever {
		found.pulling = new(true)
	}
	// With Never, the message is the same for a missing image and for missing credentials.
	if policy == corev1.PullNever {
		message := fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image)
		m.containerEvent(pod, c, corev1.EventTypeWarning, "ErrImageNeverPull", message)
		return nil, retryLate, &corev1.ContainerStateWaiting{Reason: "ErrImageNeverPull", Message: message}
	}
	return m.pull(ctx, pod, c, pulling{spec, lookup})
}

func (m *Manager) imageOf(ctx context.Context, spec *runtimeapi.ImageSpec) (*runtimeapi.Image, error) {
	resp, err := m.Runtime.Images.ImageStatus(cri.Quiet(ctx), spec, false)
	if err != nil {
		return nil, err
	}
	return resp.GetImage(), nil
}

// pulling is an image to pull, and the credentials for it.
type pulling struct {
	spec        *runtimeapi.ImageSpec
	credentials func() ([]credentialprovider.Credential, error)
}

func (m *Manager) pull(
	ctx context.Context, pod *corev1.Pod, c *corev1.Container, p pulling,
) (*runtimeapi.Image, time.Duration, *corev1.ContainerStateWaiting) {
	key := fmt.Sprintf("%s_%s", pod.UID, c.Image)
	start := m.Clock.Now()
	asked := start
	if until, ok := m.pullFailure(key); ok && until.at.After(start) {
		message := fmt.Sprintf("Back-off pulling image %q", c.Image)
		m.containerEvent(pod, c, corev1.EventTypeNormal, "BackOff", message)
		return nil, until.at.Sub(start), &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: message + ": " + until.message}
	}
	credentials, err := p.credentials()
	if err != nil {
		return nil, retryLate, &corev1.ContainerStateWaiting{Reason: err.Error(), Message: err.Error()} // as kubelet does
	}
	m.containerEvent(pod, c, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", c.Image))
	var ref string
	release, err := m.limits.acquire(ctx)
	if err == nil {
		defer release()
		start = m.Clock.Now()
		ref, err = m.pullRecorded(ctx, c.Image, p.spec, credentials)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, retrySoon, &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
		}
		m.containerEvent(pod, c, corev1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %v", c.Image, err))
		now := m.Clock.Now()
		m.backoff.Next(key, now)
		until, _ := m.backoff.Until(key, now)
		message := err.Error()
		m.noteFailure(key, until, "ErrImagePull: "+message)
		return nil, retrySoon, &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: message}
	}
	m.backoff.Forget(func(k string) bool { return k == key })
	m.forgetFailures(func(k string) bool { return k == key })
	// Use the pulled image, not what its name refers to now: another pod may have pulled the name again.
	image, err := m.imageOf(ctx, &runtimeapi.ImageSpec{Image: ref})
	if image == nil {
		image = &runtimeapi.Image{}
	}
	image.Id = ref
	if err != nil {
		return nil, retryLate, &corev1.ContainerStateWaiting{Reason: "ImageInspectError", Message: cri.Message(err)}
	}
	took, waited := m.Clock.Since(start).Truncate(time.Millisecond), m.Clock.Since(asked).Truncate(time.Millisecond)
	m.Metrics.pulled(waited, image.Size)
	message := fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.", c.Image, took, waited,
		image.Size)
	m.containerEvent(pod, c, corev1.EventTypeNormal, "Pulled", message)
	return image, 0, nil
}

// failure is the last failed pull of an image.
type failure struct {
	at      time.Time // earliest time of the next attempt
	message string
}

func (m *Manager) pullFailure(key string) (failure, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.failures[key]
	return f, ok
}

func (m *Manager) noteFailure(key string, until time.Time, message string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failures[key] = failure{until, message}
}

func (m *Manager) forgetFailures(pick func(string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.failures {
		if pick(key) {
			delete(m.failures, key)
		}
	}
}

// withTag appends the tag "latest" to a name without tag and digest.
func withTag(image string) (string, error) {
	if image == "" || strings.ContainsAny(image, " \t\n") || strings.HasSuffix(image, ":") || strings.HasSuffix(image, "/") {
		return "", fmt.Errorf("couldn't parse image name %q: invalid reference format", image)
	}
	path := image[strings.LastIndex(image, "/")+1:]
	before := image[:len(image)-len(path)]
	if name, _, _ := strings.Cut(path, ":"); strings.ToLower(before) != before && !strings.Contains(before, ".") ||
		strings.ToLower(name) != name {
		return "", fmt.Errorf("couldn't parse image name %q: invalid reference format: repository name must be lowercase", image)
	}
	if strings.ContainsAny(path, ":@") {
		return image, nil
	}
	return image + ":latest", nil
}
