// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
)

// Client implements [API] with a client of the API server.
type Client struct {
	Client   kubernetes.Interface
	NodeName string
}

// ResourceClaim implements [API].
func (c Client) ResourceClaim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	return c.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// DeleteSlices implements [API].
func (c Client) DeleteSlices(ctx context.Context, driver string) error {
	selected := fields.Set{resourceapi.ResourceSliceSelectorNodeName: c.NodeName}
	if driver != "" {
		selected[resourceapi.ResourceSliceSelectorDriver] = driver
	}
	list := metav1.ListOptions{FieldSelector: selected.String()}
	return c.Client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, list)
}
