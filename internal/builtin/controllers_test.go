// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"crypto/x509"
	"net/netip"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// TestInputs: what a controller declares as input it watches whole, in full, since others rely on that cache.
func TestInputs(t *testing.T) {
	cluster := controllers.Cluster{
		RootCA: []byte("PEM"), Signer: &controllers.Authority{Certificate: &x509.Certificate{}},
		Tokens:      func(context.Context, string, string, string, string) (string, error) { return "", nil },
		ServiceCIDR: netip.MustParsePrefix("10.0.0.0/24"), AdvertiseAddress: netip.MustParseAddr("192.0.2.1"),
	}
	for _, c := range Controllers() {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				scheme := runtime.NewScheme()
				if err := metav1.AddMetaToScheme(scheme); err != nil {
					t.Fatal(err)
				}
				client := fake.NewClientset()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				deps := &controllers.Deps{Client: client, Discovery: client.Discovery(), Metadata: metadatafake.NewSimpleMetadataClient(scheme)}
				if err := controllers.RunWith(ctx, []controllers.Controller{c}, deps, controllers.Options{Cluster: cluster}); err != nil {
					t.Fatal(err)
				}
				whole := map[schema.GroupVersionResource]bool{}
				for _, a := range client.Actions() {
					if w, ok := a.(clienttesting.WatchAction); ok && a.GetNamespace() == "" && w.GetWatchRestrictions().Fields.Empty() &&
						w.GetWatchRestrictions().Labels.Empty() {
						whole[a.GetResource()] = true
					}
				}
				for _, in := range c.Inputs {
					if !whole[in] {
						t.Errorf("%s is not watched", in)
					}
					// Others find the cache. An informer has the type of its objects in its own.
					named := &controllers.Deps{Informers: informers.NewSharedInformerFactory(client, 0)}
					named.Typed = map[schema.GroupVersionResource]bool{in: true}
					other, err := named.Informers.ForResource(in)
					if err != nil {
						t.Fatal(err)
					}
					if informer := named.Informer(in); informer == nil || reflect.TypeOf(informer) != reflect.TypeOf(other.Informer()) {
						t.Errorf("Deps.Informer(%s) is a %T, want a %T", in, informer, other.Informer())
					}
				}
			})
		})
	}
}
