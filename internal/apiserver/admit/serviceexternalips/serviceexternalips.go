// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package serviceexternalips is the DenyServiceExternalIPs plug-in: it rejects new external IPs of Services, since such an
// address intercepts traffic to it. It is off by default.
package serviceexternalips

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "DenyServiceExternalIPs" }

// Validate rejects new addresses. Existing ones may stay or be removed.
func (plugin) Validate(_ context.Context, _ resource.Backend, a *admit.Attributes) error {
	if !a.Is("", "services", "") || a.Operation != admit.Create && a.Operation != admit.Update {
		return nil
	}
	service, old, ok := admit.ObjectsOf[*corev1.Service](a)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("Expected Service resource, got: %v", a.Kind())) //nolint:staticcheck // upstream's words
	}
	for _, ip := range service.Spec.ExternalIPs {
		if old == nil || !slices.Contains(old.Spec.ExternalIPs, ip) {
			return admit.Forbidden(a, errors.New("Use of external IPs is denied by admission control")) //nolint:staticcheck // upstream's words
		}
	}
	return nil
}
