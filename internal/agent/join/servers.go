// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package join

import (
	"context"
	"net"
	"slices"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// service is the Service of the API servers, and their EndpointSlice.
const service = "kubernetes"

// Follow learns the addresses of the cluster's API servers, the endpoints of the Service kubernetes, until ctx ends. [Identity.Config] must
// have been called. The node's kubeconfig keeps them, so that a node that starts while its first server is dead finds the others.
func (i *Identity) Follow(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(metav1.NamespaceDefault),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, service).String()
		}))
	learn := func(obj any) {
		if slice, ok := obj.(*discoveryv1.EndpointSlice); ok {
			i.learn(endpoints(slice))
		}
	}
	informer := factory.Discovery().V1().EndpointSlices().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{ // one goroutine calls it
		AddFunc: learn, UpdateFunc: func(_, obj any) { learn(obj) },
	}); err != nil {
		return err
	}
	informer.RunWithContext(ctx)
	return nil
}

// endpoints returns the HOST:PORT of each address of a slice, in their order.
func endpoints(slice *discoveryv1.EndpointSlice) (out []string) {
	for _, port := range slice.Ports {
		if port.Port == nil || ptr.Deref(port.Name, "") != "https" {
			continue
		}
		for _, e := range slice.Endpoints {
			for _, at := range e.Addresses {
				out = append(out, net.JoinHostPort(at, strconv.Itoa(int(*port.Port))))
			}
		}
	}
	slices.Sort(out)
	return out
}

// learn makes addresses those of the servers, and keeps them.
func (i *Identity) learn(addresses []string) {
	set := i.set.Load()
	if set == nil || len(addresses) == 0 || slices.Equal(addresses, i.more) {
		return
	}
	set.Learn(addresses)
	i.more = addresses
	if err := i.writeConfig(); err != nil {
		i.log.Warn("Could not keep the addresses of the API servers", "error", err)
		return
	}
	i.log.Info("Learned the addresses of the API servers", "servers", addresses)
}
