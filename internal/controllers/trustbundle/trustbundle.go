// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package trustbundle publishes the CA of the API server's serving certificate as a ClusterTrustBundle, which pods can
// project into their volumes. The bundle's name contains a hash of its contents; other bundles of the signer are deleted.
package trustbundle

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/certificates/v1"

	"github.com/mortise-dev/mortise/internal/controllers"
)

const signer = "kubernetes.io/kube-apiserver-serving"

// Controller describes the loop.
func Controller() controllers.Controller {
	bundles := certificatesv1.SchemeGroupVersion.WithResource("clustertrustbundles")
	return controllers.Controller{
		Name:    "kube-apiserver-serving-clustertrustbundle-publisher-controller",
		Account: "kube-apiserver-serving-clustertrustbundle-publisher",
		Inputs:  []schema.GroupVersionResource{bundles},
		Outputs: []schema.GroupVersionResource{bundles},
		New:     build,
	}
}

type controller struct {
	client kubernetes.Interface
	lister listers.ClusterTrustBundleLister
	bundle string
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	if len(d.Cluster.RootCA) == 0 {
		return controllers.RunnerFunc(func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}), nil
	}
	informer := d.Informers.Certificates().V1().ClusterTrustBundles()
	c := &controller{client: d.Client, lister: informer.Lister(), bundle: string(d.Cluster.RootCA)}
	queue := controllers.NewQueue[string](d, "ca_cert_publisher_cluster_trust_bundles", 1)
	err := controllers.Subscribe(d, informer.Informer(), controllers.OnAny(func(b *certificatesv1.ClusterTrustBundle) {
		if b.Spec.SignerName == signer {
			queue.Add("")
		}
	}))
	return controllers.RunnerFunc(func(ctx context.Context) error {
		queue.Add("")
		return queue.Run(ctx, c.sync)
	}), err
}

// name returns upstream's name for a bundle's contents.
func name(bundle string) string {
	sum := sha256.Sum256([]byte(bundle))
	return fmt.Sprintf("%s:%x", strings.ReplaceAll(signer, "/", ":"), sum[:12])
}

func (c *controller) sync(ctx context.Context, _ string) error {
	want := name(c.bundle)
	client := c.client.CertificatesV1().ClusterTrustBundles()
	have, err := c.lister.Get(want)
	switch {
	case apierrors.IsNotFound(err):
		_, err = client.Create(ctx, &certificatesv1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: want},
			Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: c.bundle},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
	case err == nil && have.Spec.TrustBundle != c.bundle:
		have = have.DeepCopy()
		have.Spec.TrustBundle = c.bundle
		_, err = client.Update(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write trust bundle: %w", err)
	}
	all, err := c.lister.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list trust bundles: %w", err)
	}
	var errs []error
	for _, b := range all {
		if b.Spec.SignerName != signer || b.Name == want {
			continue
		}
		if err := client.Delete(ctx, b.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete trust bundle: %w", err))
		}
	}
	return errors.Join(errs...)
}
