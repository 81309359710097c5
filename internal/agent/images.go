// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/credentialprovider"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// ensureImageVolumes finds or pulls the images that the container mounts, each as its own policy says.
func (n *node) ensureImageVolumes(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (map[string]*runtimeapi.ImageSpec, time.Duration, *corev1.ContainerStateWaiting) {
	out := map[string]*runtimeapi.ImageSpec{}
	for _, v := range pod.Spec.Volumes {
		if v.Image == nil || !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name }) {
			continue
		}
		// Events are the pod's: nothing in it has this image but the volume.
		image, wait, failure := n.ensureImage(ctx, pod, &corev1.Container{Image: v.Image.Reference, ImagePullPolicy: v.Image.PullPolicy})
		if failure != nil {
			return nil, wait, failure
		}
		out[v.Name] = &runtimeapi.ImageSpec{Image: image.Id, UserSpecifiedImage: v.Image.Reference, Annotations: pod.Annotations}
	}
	return out, 0, nil
}

// ensureImage finds the container's image or pulls it, as its policy says.
func (n *node) ensureImage(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (*runtimeapi.Image, time.Duration, *corev1.ContainerStateWaiting) {
	found := finding{policy: c.ImagePullPolicy}
	defer func() { n.Metrics.images.found(found) }()
	name, err := withTag(c.Image)
	if err != nil {
		message := fmt.Sprintf("Failed to apply default image tag %q: %v", c.Image, err)
		n.containerEvent(pod, c, corev1.EventTypeWarning, "InspectFailed", message)
		return nil, retryLate, &corev1.ContainerStateWaiting{Reason: "InvalidImageName", Message: message}
	}
	spec := &runtimeapi.ImageSpec{Image: name, UserSpecifiedImage: c.Image, Annotations: pod.Annotations}
	present, err := n.imageOf(ctx, spec)
	if err != nil {
		message := fmt.Sprintf("Failed to inspect image %q: %v", name, cri.Message(err))
		n.containerEvent(pod, c, corev1.EventTypeWarning, "InspectFailed", message)
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
	lookup := sync.OnceValues(func() ([]credentialprovider.Credential, error) { return n.pullCredentials(ctx, pod, spec.Image) })
	if present != nil && policy != corev1.PullAlways {
		must, message, err := n.mustPull(c, present.Id, lookup)
		if err != nil {
			return nil, retryLate, &corev1.ContainerStateWaiting{Reason: err.Error(), Message: err.Error()} // as kubelet
		}
		if !must {
			found.pulling = new(false)
			n.containerEvent(pod, c, corev1.EventTypeNormal, "Pulled", message)
			return present, 0, nil
		}
	}
	if present != nil || policy != corev1.PullNever {
		found.pulling = new(true)
	}
	// Never says the same of an image that is not there and of one that the pod has no credentials for.
	if policy == corev1.PullNever {
		message := fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image)
		n.containerEvent(pod, c, corev1.EventTypeWarning, "ErrImageNeverPull", message)
		return nil, retryLate, &corev1.ContainerStateWaiting{Reason: "ErrImageNeverPull", Message: message}
	}
	return n.pull(ctx, pod, c, pulling{spec, lookup})
}

func (n *node) imageOf(ctx context.Context, spec *runtimeapi.ImageSpec) (*runtimeapi.Image, error) {
	resp, err := n.cri.Images.ImageStatus(cri.Quiet(ctx), spec, false)
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

func (n *node) pull(ctx context.Context, pod *corev1.Pod, c *corev1.Container, p pulling) (*runtimeapi.Image, time.Duration, *corev1.ContainerStateWaiting) {
	key := fmt.Sprintf("%s_%s", pod.UID, c.Image)
	start := n.Clock.Now()
	asked := start
	if until, ok := n.pullFailure(key); ok && until.at.After(start) {
		message := fmt.Sprintf("Back-off pulling image %q", c.Image)
		n.containerEvent(pod, c, corev1.EventTypeNormal, "BackOff", message)
		return nil, until.at.Sub(start), &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: message + ": " + until.message}
	}
	credentials, err := p.credentials()
	if err != nil {
		return nil, retryLate, &corev1.ContainerStateWaiting{Reason: err.Error(), Message: err.Error()} // as kubelet
	}
	n.containerEvent(pod, c, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", c.Image))
	var ref string
	release, err := n.acquirePull(ctx)
	if err == nil {
		defer release()
		start = n.Clock.Now()
		ref, err = n.pullRecorded(ctx, c.Image, p.spec, credentials)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, retrySoon, &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
		}
		n.containerEvent(pod, c, corev1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %v", c.Image, err))
		now := n.Clock.Now()
		n.imageBackoff.Next(key, now)
		until, _ := n.imageBackoff.Until(key, now)
		message := err.Error()
		n.noteFailure(key, until, "ErrImagePull: "+message)
		return nil, retrySoon, &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: message}
	}
	n.imageBackoff.Forget(func(k string) bool { return k == key })
	n.forgetFailures(func(k string) bool { return k == key })
	// What was pulled, and not what the name means by now: another pod may have pulled the name again.
	image, err := n.imageOf(ctx, &runtimeapi.ImageSpec{Image: ref})
	if image == nil {
		image = &runtimeapi.Image{}
	}
	image.Id = ref
	if err != nil {
		return nil, retryLate, &corev1.ContainerStateWaiting{Reason: "ImageInspectError", Message: cri.Message(err)}
	}
	took, waited := n.Clock.Since(start).Truncate(time.Millisecond), n.Clock.Since(asked).Truncate(time.Millisecond)
	n.Metrics.images.pulled(waited, image.Size)
	n.containerEvent(pod, c, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.", c.Image, took, waited, image.Size))
	return image, 0, nil
}

// failure is the last failure to pull an image.
type failure struct {
	at      time.Time // until when not to try again
	message string
}

func (n *node) pullFailure(key string) (failure, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f, ok := n.pullFailures[key]
	return f, ok
}

func (n *node) noteFailure(key string, until time.Time, message string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pullFailures[key] = failure{until, message}
}

func (n *node) forgetFailures(pick func(string) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for key := range n.pullFailures {
		if pick(key) {
			delete(n.pullFailures, key)
		}
	}
}

// withTag gives a name without tag and digest the tag "latest".
func withTag(image string) (string, error) {
	if image == "" || strings.ContainsAny(image, " \t\n") || strings.HasSuffix(image, ":") || strings.HasSuffix(image, "/") {
		return "", fmt.Errorf("couldn't parse image name %q: invalid reference format", image)
	}
	path := image[strings.LastIndex(image, "/")+1:]
	if name, _, _ := strings.Cut(path, ":"); strings.ToLower(image[:len(image)-len(path)]) != image[:len(image)-len(path)] && !strings.Contains(image[:len(image)-len(path)], ".") || strings.ToLower(name) != name {
		return "", fmt.Errorf("couldn't parse image name %q: invalid reference format: repository name must be lowercase", image)
	}
	if strings.ContainsAny(path, ":@") {
		return image, nil
	}
	return image + ":latest", nil
}

// runtimeHandler is the handler that the pod's runtime class names.
func (n *node) runtimeHandler(ctx context.Context, pod *corev1.Pod) (string, error) {
	if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "" {
		return "", nil
	}
	class, err := n.client.NodeV1().RuntimeClasses().Get(ctx, *pod.Spec.RuntimeClassName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("Failed to create sandbox for pod %q: %w", podspec.Describe(pod), err) // upstream's words
	}
	return class.Handler, nil
}
