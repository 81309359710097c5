// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package sharedobjects

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// Metadata returns a metadata client whose watches share the metadata of the server's objects, if the server is in this process: labels,
// annotations, owner references and managed fields must not be changed, though they may be replaced.
func Metadata(config *rest.Config) (metadata.Interface, error) {
	config = metadata.ConfigFor(config)
	plain, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	config.GroupVersion = &schema.GroupVersion{}
	requests, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make its client of watches: %w", err)
	}
	return &metadataClient{plain, requests}, nil
}

type metadataClient struct {
	metadata.Interface
	requests rest.Interface
}

// Resource returns the client of a resource.
func (c *metadataClient) Resource(r schema.GroupVersionResource) metadata.Getter {
	getter := c.Interface.Resource(r)
	return metadataGetter{metadataOf{getter, c.requests, r, ""}, getter}
}

type metadataGetter struct {
	metadataOf
	getter metadata.Getter
}

// Namespace returns the client of a resource in a namespace.
func (g metadataGetter) Namespace(namespace string) metadata.ResourceInterface {
	return metadataOf{g.getter.Namespace(namespace), g.requests, g.resource, namespace}
}

type metadataOf struct {
	metadata.ResourceInterface
	requests  rest.Interface
	resource  schema.GroupVersionResource
	namespace string
}

// Watch watches the metadata of objects, which are shared with the server.
func (m metadataOf) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	root := []string{"apis", m.resource.Group, m.resource.Version}
	if m.resource.Group == "" {
		root = []string{"api", m.resource.Version}
	}
	request := m.requests.Get().AbsPath(root...).NamespaceIfScoped(m.namespace, m.namespace != "").Resource(m.resource.Resource).
		SetHeader("Accept", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	return watchOf(ctx, request, aheadOfMetadata, o, m.ResourceInterface.Watch)
}
