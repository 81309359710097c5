// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package imagepolicy is the ImagePolicyWebhook plug-in: it asks a backend whether the images of a pod may run
// (imagepolicy.k8s.io/v1alpha1 ImageReview), and caches its answers. It is off by default, and needs a configuration.
package imagepolicy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/api/imagepolicy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

const (
	remembered = 1024 // cached answers
	further    = 4    // retries after a call that may succeed the next time
	factor     = 1.5  // between two waits
	audited    = "imagepolicywebhook.image-policy.k8s.io/"
	sent       = ".image-policy.k8s.io/" // marks the keys of the pod's annotations that the plug-in sends to the backend
)

// New makes the plug-in from its configuration, which has no apiVersion and kind.
func New(config io.Reader) (admit.Plugin, error) {
	c, err := read(config)
	if err != nil {
		return nil, err
	}
	to, err := webhook.LoadKubeconfig(c.KubeConfigFile, nil)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %q: %w", c.KubeConfigFile, err)
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	hook, err := webhook.NewGenericWebhook(scheme, serializer.NewCodecFactory(scheme), to, []schema.GroupVersion{v1alpha1.SchemeGroupVersion},
		webhook.DefaultRetryBackoffWithInitialDelay(0))
	if err != nil {
		return nil, err
	}
	hook.RestClient.Client = egress.SameOriginClient(hook.RestClient.Client)
	return &plugin{
		config: c, client: hook.RestClient, answers: cache.NewLRUExpireCache(remembered),
		ref: extension.Ref{Point: extension.ImagePolicyWebhook, Name: to.Host},
	}, nil
}

type plugin struct {
	config  Configuration
	client  *rest.RESTClient
	ref     extension.Ref
	answers *cache.LRUExpireCache // by the request's JSON

	ledger *extension.Ledger
	log    *slog.Logger
}

func (*plugin) Name() string { return "ImagePolicyWebhook" }

// Join implements [admit.Hosted].
func (p *plugin) Join(h *admit.Host) error {
	p.ledger, p.log = h.Ledger, h.Log
	p.ledger.Register(p.ref, "ImagePolicyWebhook/"+p.config.KubeConfigFile)
	return nil
}

// Validate asks the backend about the images of a pod, or of its ephemeral containers.
func (p *plugin) Validate(ctx context.Context, _ resource.Backend, a *admit.Attributes) error {
	if a.Operation != admit.Create && a.Operation != admit.Update || !a.Is("", "pods", "") && !a.Is("", "pods", "ephemeralcontainers") {
		return nil
	}
	pod, _, ok := admit.ObjectsOf[*corev1.Pod](a)
	if !ok {
		return apierrors.NewBadRequest("Resource was marked with kind Pod but was unable to be converted") // upstream's words
	}
	review := v1alpha1.ImageReview{Spec: v1alpha1.ImageReviewSpec{Containers: images(pod, a.Subresource), Annotations: told(pod),
		Namespace: a.Namespace}}
	key, err := json.Marshal(review.Spec)
	if err != nil {
		return admit.Forbidden(a, err)
	}
	status, ok := p.recall(string(key))
	if !ok {
		if status, err = p.ask(ctx, &review); err != nil {
			return p.unanswered(ctx, a, err)
		}
		ttl := p.config.denyTTL
		if status.Allowed {
			ttl = p.config.allowTTL
		}
		p.answers.Add(string(key), status, ttl)
	}
	for k, v := range status.AuditAnnotations {
		a.Annotate(audited+k, v)
	}
	switch {
	case status.Allowed:
		return nil
	case status.Reason != "":
		return admit.Forbidden(a, fmt.Errorf("image policy webhook backend denied one or more images: %s", status.Reason)) // upstream's words
	}
	return admit.Forbidden(a, errors.New("one or more images rejected by webhook backend")) // upstream's words
}

func (p *plugin) recall(key string) (v1alpha1.ImageReviewStatus, bool) {
	entry, ok := p.answers.Get(key)
	if !ok {
		return v1alpha1.ImageReviewStatus{}, false
	}
	status, ok := entry.(v1alpha1.ImageReviewStatus)
	return status, ok
}

// ask calls the backend, and retries where that may help. It returns the call's own error: there is only one backend.
func (p *plugin) ask(ctx context.Context, review *v1alpha1.ImageReview) (v1alpha1.ImageReviewStatus, error) {
	policy := extension.Policy{Retries: further, Factor: factor, Backoff: p.config.backoff, Retry: webhook.DefaultShouldRetry}
	var own error
	var answer v1alpha1.ImageReview
	err := p.ledger.Call(ctx, p.ref, policy, func(ctx context.Context) error {
		result := p.client.Post().Body(review).Do(ctx)
		if own = result.Error(); own != nil {
			return own
		}
		answer = v1alpha1.ImageReview{}
		own = result.Into(&answer)
		return own
	})
	if own != nil {
		err = own
	}
	return answer.Status, err
}

// unanswered applies the configured default when the backend did not answer.
func (p *plugin) unanswered(ctx context.Context, a *admit.Attributes, err error) error {
	if !p.config.DefaultAllow {
		return admit.Forbidden(a, err)
	}
	p.log.WarnContext(ctx, "Image policy backend does not answer, admitting the pod", "namespace", a.Namespace, "pod", a.Name, "err", err)
	a.Annotate(audited+"failed-open", "true")
	return nil
}

func images(pod *corev1.Pod, subresource string) []v1alpha1.ImageReviewContainerSpec {
	var out []v1alpha1.ImageReviewContainerSpec
	add := func(image string) { out = append(out, v1alpha1.ImageReviewContainerSpec{Image: image}) }
	if subresource != "" {
		for i := range pod.Spec.EphemeralContainers {
			add(pod.Spec.EphemeralContainers[i].Image)
		}
		return out
	}
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			add(containers[i].Image)
		}
	}
	return out
}

// told returns the pod's annotations that are meant for the backend.
func told(pod *corev1.Pod) map[string]string {
	out := map[string]string{}
	for k, v := range pod.Annotations {
		if strings.Contains(k, sent) {
			out[k] = v
		}
	}
	return out
}

// Configuration is the plug-in's configuration. In its durations 0 is the default and -1 means never.
type Configuration struct {
	KubeConfigFile string `json:"kubeConfigFile"`
	AllowTTL       int64  `json:"allowTTL"`     // in seconds
	DenyTTL        int64  `json:"denyTTL"`      // in seconds
	RetryBackoff   int64  `json:"retryBackoff"` // in milliseconds
	DefaultAllow   bool   `json:"defaultAllow"` // admit pods when the backend does not answer

	allowTTL, denyTTL, backoff time.Duration
}
