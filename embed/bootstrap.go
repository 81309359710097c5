// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// bootstrap makes the namespaces that kube-apiserver makes, where they are missing.
func bootstrap(ctx context.Context, p *parts, _ *options) error {
	namespaces := schema.GroupResource{Resource: "namespaces"}
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		if _, err := p.api.Backend().Get(ctx, namespaces, "", name); err == nil {
			continue
		} else if !apierrors.IsNotFound(err) {
			return fmt.Errorf("read namespace %s: %w", name, err)
		}
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}}
		if _, err := p.api.Backend().Create(ctx, namespaces, ns, false); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make namespace %s: %w", name, err)
		}
	}
	return nil
}
