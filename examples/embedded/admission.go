// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mortise-dev/mortise/extension/admission"
	"github.com/mortise-dev/mortise/resource"
)

// teams is an admission plug-in: config maps of the namespace default have the label team.
type teams struct{}

// Name is what --disable-admission-plugins calls it.
func (teams) Name() string { return "Teams" }

// Validate rejects the others. A method Mutate would change them.
func (teams) Validate(_ context.Context, _ resource.Backend, a *admission.Attributes) error {
	m, ok := a.Object.(*corev1.ConfigMap)
	if ok && a.Namespace == "default" && m.Name != "kube-root-ca.crt" && m.Labels["team"] == "" {
		return apierrors.NewForbidden(a.Descriptor.GroupResource(), a.Name, errors.New("it belongs to no team"))
	}
	return nil
}
