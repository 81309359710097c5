// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command clients has one example of each extension that is a client of the API, a file each: a controller of a custom resource, a second
// scheduler, a certificate signer, a load balancer and a cloud controller. They use sigs.k8s.io/controller-runtime, and nothing of Mortise.
//
// The cluster is that of $KUBECONFIG. Its arguments name the examples to run: crontabs, scheduler, signer, load-balancer, cloud.
package main

import (
	"log/slog"
	"os"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func main() {
	ctrl.SetLogger(klog.Background())
	if err := run(); err != nil {
		slog.Error("The clients end", "error", err)
		os.Exit(1)
	}
}

func run() error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		return err
	}
	ca, err := newAuthority()
	if err != nil {
		return err
	}
	cronTab := &unstructured.Unstructured{}
	cronTab.SetAPIVersion("stable.example.com/v1")
	cronTab.SetKind("CronTab")
	c := mgr.GetClient()
	for _, x := range []struct {
		name string
		of   client.Object
		reconcile.Reconciler
	}{
		{"crontabs", cronTab, &cronTabs{c}},
		{"scheduler", &corev1.Pod{}, &scheduler{c}},
		{"signer", &certificatesv1.CertificateSigningRequest{}, &signer{c, ca}},
		{"load-balancer", &corev1.Service{}, &loadBalancer{c}},
		{"cloud", &corev1.Node{}, &cloud{c}},
	} {
		if !slices.Contains(os.Args[1:], x.name) {
			continue
		}
		if err := ctrl.NewControllerManagedBy(mgr).Named(x.name).For(x.of).Complete(x); err != nil {
			return err
		}
	}
	ctx := ctrl.SetupSignalHandler()
	go func() {
		if mgr.GetCache().WaitForCacheSync(ctx) {
			slog.Info("Ready", "clients", os.Args[1:])
		}
	}()
	return mgr.Start(ctx)
}
