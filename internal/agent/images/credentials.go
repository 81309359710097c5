// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
	"github.com/mortise-dev/mortise/internal/agent/credentialprovider"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/pullmanager"
)

// openPulls opens the records of pulled images, unless the feature gate is off.
func (m *Manager) openPulls(ctx context.Context) error {
	if !componentconfig.GateOn(m.Kubelet.FeatureGates, "KubeletEnsureSecretPulledImages") {
		return nil
	}
	var err error
	m.pulls, err = pullmanager.Open(pullmanager.Options{
		Dir: m.RootDir, Policy: m.Kubelet.ImagePullCredentialsVerificationPolicy, Allowlist: m.Kubelet.PreloadedImagesVerificationAllowlist,
		Logger: m.Logger, Now: m.Clock.Now,
		Images: func() ([]*runtimeapi.Image, error) { return m.Runtime.Images.ListImages(cri.Quiet(ctx), nil) },
	})
	return err
}

// mustPull reports whether the pod must pull an image that is on the node as ref, and the event's text if it need not.
func (m *Manager) mustPull(
	c *corev1.Container, ref string, lookup func() ([]credentialprovider.Credential, error),
) (must bool, message string, err error) {
	message = fmt.Sprintf("Container image %q already present on machine", c.Image)
	if m.pulls == nil {
		return false, message, nil
	}
	must, err = m.pulls.MustPull(c.Image, ref, func() (pullmanager.Sources, error) {
		credentials, err := lookup()
		var out pullmanager.Sources
		for _, have := range credentials {
			switch {
			case have.Secret != nil:
				out.Secrets = append(out.Secrets, *have.Secret)
			case have.Account != nil && out.Account == nil:
				out.Account = have.Account
			}
		}
		return out, err
	})
	return must, message + " and can be accessed by the pod", err
}

// pullCredentials returns the credentials for the image: those in the pod's pull secrets, then those of the node's providers.
func (m *Manager) pullCredentials(ctx context.Context, pod *corev1.Pod, image string) ([]credentialprovider.Credential, error) {
	keyring := &credentialprovider.Keyring{}
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" { // the API accepts this
			continue
		}
		secret, err := m.Secrets.Secret(ctx, pod.Namespace, ref.Name)
		if err != nil {
			m.Events.Event(pod, corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
				fmt.Sprintf("Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", ref.Name))
			continue
		}
		if err := keyring.Add(secret); err != nil {
			return nil, err
		}
	}
	out, err := keyring.Lookup(image)
	if err != nil || m.Providers == nil {
		return out, err
	}
	provided, err := m.Providers.Lookup(ctx, pod, image)
	return append(out, provided...), err
}

// pullRecorded pulls the image with each of the credentials until one succeeds, and records which. The argument image is the container's.
func (m *Manager) pullRecorded(
	ctx context.Context, image string, spec *runtimeapi.ImageSpec, credentials []credentialprovider.Credential,
) (ref string, err error) {
	if m.pulls != nil {
		if err := m.pulls.Intend(image); err != nil {
			return "", err
		}
	}
	ref, used, err := m.pullWith(ctx, spec, credentials)
	switch {
	case m.pulls == nil:
	case err == nil:
		if err := m.pulls.Pulled(image, ref, used); err != nil {
			m.Logger.Warn("Could not record a pulled image, verifying credentials for it from now on", "image", image, "err", err)
		}
	case answered(ctx, err):
		if err := m.pulls.Failed(image); err != nil {
			m.Logger.Warn("Could not remove the intent to pull an image", "image", image, "err", err)
		}
	}
	return ref, err
}

// pullWith returns the image's reference, and the sources of the credentials that it was pulled with.
func (m *Manager) pullWith(
	ctx context.Context, spec *runtimeapi.ImageSpec, credentials []credentialprovider.Credential,
) (string, pullmanager.Sources, error) {
	if len(credentials) == 0 {
		ref, err := m.Runtime.Images.PullImage(cri.Quiet(ctx), spec, nil, nil)
		return ref, pullmanager.Sources{}, err
	}
	var errs []error
	for _, c := range credentials {
		ref, err := m.Runtime.Images.PullImage(cri.Quiet(ctx), spec, &runtimeapi.AuthConfig{Username: c.Username, Password: c.Password}, nil)
		if err == nil {
			return ref, sourcesOf(c), nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 1 {
		return "", pullmanager.Sources{}, errs[0]
	}
	return "", pullmanager.Sources{}, utilerrors.NewAggregate(errs)
}

func sourcesOf(c credentialprovider.Credential) pullmanager.Sources {
	out := pullmanager.Sources{Account: c.Account}
	if c.Secret != nil {
		out.Secrets = []configv1beta1.ImagePullSecret{*c.Secret}
	}
	return out
}

// answered reports whether the runtime itself ended the pull. An abandoned pull may still finish: its intent stays, so that the image does
// not count as preloaded.
func answered(ctx context.Context, err error) bool {
	code := status.Code(err)
	return ctx.Err() == nil && code != codes.Canceled && code != codes.DeadlineExceeded
}
