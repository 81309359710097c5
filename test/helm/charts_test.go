// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/release"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// values are a chart's values.
type values = map[string]any

// TestCharts takes charts that other people ship through a release's whole life: installed with all that they wait for,
// upgraded to other values, rolled back, uninstalled with nothing left behind. Both ways that Helm has to write are taken:
// server-side apply and the three-way patch of Helm 3.
func TestCharts(t *testing.T) {
	for _, c := range []struct {
		name, module, folder string
		first, second        values
		deployment           string
		changed              func(replicas int32, image string) bool // by the second values
		serverSide           bool
	}{
		{
			name: "cert-manager", module: "github.com/cert-manager/cert-manager", folder: "deploy/charts/cert-manager",
			first:      values{"crds": values{"enabled": true, "keep": false}, "podDisruptionBudget": values{"enabled": true}},
			second:     values{"crds": values{"enabled": true, "keep": false}, "podDisruptionBudget": values{"enabled": true}, "replicaCount": 2},
			deployment: "cert-manager", changed: func(n int32, _ string) bool { return n == 2 }, serverSide: true,
		},
		{
			name: "ingress-nginx", module: "k8s.io/ingress-nginx", folder: "charts/ingress-nginx",
			first: values{"controller": values{
				"service": values{"type": "ClusterIP"}, "admissionWebhooks": values{"enabled": true},
				"autoscaling": values{"enabled": true, "minReplicas": 2}, "networkPolicy": values{"enabled": true},
			}, "defaultBackend": values{"enabled": true}},
			second: values{"controller": values{
				"service": values{"type": "NodePort"}, "admissionWebhooks": values{"enabled": false},
				"replicaCount": 3, "image": values{"tag": "v9", "digest": ""},
			}},
			deployment: "ingress-nginx-controller", changed: func(_ int32, image string) bool { return strings.HasSuffix(image, ":v9") },
		},
		{
			name: "metrics-server", module: "sigs.k8s.io/metrics-server", folder: "charts/metrics-server",
			first:      values{"apiService": values{"create": false}, "podDisruptionBudget": values{"enabled": true, "minAvailable": 1}},
			second:     values{"apiService": values{"create": false}, "replicas": 2, "addonResizer": values{"enabled": true}},
			deployment: "metrics-server", changed: func(n int32, _ string) bool { return n == 2 }, serverSide: true,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ch := shipped(t, c.module, c.folder)
			config, client := helm(t, c.name)
			state := func() (int32, string) {
				t.Helper()
				d, err := client.AppsV1().Deployments(c.name).Get(t.Context(), c.deployment, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if want := *d.Spec.Replicas; d.Status.ReadyReplicas != want || d.Status.ObservedGeneration != d.Generation {
					t.Errorf("%s: Helm did not wait: %d of %d ready", c.deployment, d.Status.ReadyReplicas, want)
				}
				return *d.Spec.Replicas, d.Spec.Template.Spec.Containers[0].Image
			}

			install := action.NewInstall(config)
			install.ReleaseName, install.Namespace, install.CreateNamespace = c.name, c.name, true
			install.WaitStrategy, install.WaitForJobs, install.Timeout = kube.StatusWatcherStrategy, true, limit
			install.ServerSideApply = c.serverSide
			r, err := install.RunWithContext(t.Context(), ch, c.first)
			wantDeployed(t, "install", r, err, 1)
			n, image := state()
			if c.changed(n, image) {
				t.Fatalf("after the install: %d replicas of %s", n, image)
			}

			wantDeployed(t, "upgrade", upgrade(t, config, c.name, c.name, ch, c.second), nil, 2)
			if n, image := state(); !c.changed(n, image) {
				t.Errorf("after the upgrade: %d replicas of %s", n, image)
			}

			rollback := action.NewRollback(config)
			rollback.Version, rollback.WaitStrategy, rollback.Timeout = 1, kube.StatusWatcherStrategy, limit
			if err := rollback.Run(c.name); err != nil {
				t.Fatalf("rollback: %v", err)
			}
			if n2, image2 := state(); n2 != n || image2 != image {
				t.Errorf("after the rollback: %d replicas of %s, want %d of %s", n2, image2, n, image)
			}
			history, err := action.NewHistory(config).Run(c.name)
			if err != nil || len(history) != 3 {
				t.Errorf("history has %d revisions, %v; want 3", len(history), err)
			}
			uninstall(t, config, c.name)
			left, err := client.AppsV1().Deployments(c.name).List(t.Context(), metav1.ListOptions{})
			if err != nil || len(left.Items) != 0 {
				t.Errorf("deployments after the uninstall: %v, %v", left, err)
			}
		})
	}
}

// upgrade upgrades a release and waits for it.
func upgrade(t *testing.T, config *action.Configuration, namespace, name string, ch chart.Charter, v values) release.Releaser {
	t.Helper()
	u := action.NewUpgrade(config)
	u.Namespace, u.WaitStrategy, u.WaitForJobs, u.Timeout = namespace, kube.StatusWatcherStrategy, true, limit
	r, err := u.RunWithContext(t.Context(), name, ch, v)
	if err != nil {
		t.Fatalf("upgrade: %v", err)
	}
	return r
}

// uninstall removes a release and waits until its objects are gone. It waits as --wait=legacy does, which asks for each object:
// the status watcher may see those that are gone before it has seen one that is not, and then calls the wait off (helm/helm#32261).
func uninstall(t *testing.T, config *action.Configuration, name string) {
	t.Helper()
	u := action.NewUninstall(config)
	u.WaitStrategy, u.Timeout, u.DeletionPropagation = kube.LegacyStrategy, limit, "foreground"
	if _, err := u.Run(name); err != nil {
		t.Fatalf("uninstall: %v", err)
	}
	if _, err := action.NewGet(config).Run(name); err == nil {
		t.Error("the release is still known after its uninstall")
	}
}

// wantDeployed wants a release that is deployed at a revision.
func wantDeployed(t *testing.T, what string, r release.Releaser, err error, revision int) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	a, err := release.NewAccessor(r)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if a.Status() != "deployed" || a.Version() != revision {
		t.Errorf("%s: %s at revision %d, want deployed at %d", what, a.Status(), a.Version(), revision)
	}
}
