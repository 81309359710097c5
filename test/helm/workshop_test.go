// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/release"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWorkshop takes our own chart through a release's life: a CRD and an object of it in one install, lookups and
// capabilities in templates, hooks of every kind, tests, dry runs, and an upgrade that fails and is rolled back.
func TestWorkshop(t *testing.T) {
	t.Parallel()
	const ns, name = "workshop", "shop"
	ch := load(t, "testdata/workshop")
	config, client := helm(t, ns)
	secret := func() *corev1.Secret {
		t.Helper()
		s, err := client.CoreV1().Secrets(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	// ran wants the hooks to have run, and clears them away.
	ran := func(hooks ...string) {
		t.Helper()
		jobs, err := client.BatchV1().Jobs(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got, want := map[string]bool{}, map[string]bool{}
		for _, j := range jobs.Items {
			got[strings.TrimPrefix(j.Name, name+"-")] = j.Status.Succeeded == 1
		}
		for _, h := range hooks {
			want[h] = true
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("hooks that ran and ended well (-want +got):\n%s", diff)
		}
		background := metav1.DeletePropagationBackground
		if err := client.BatchV1().Jobs(ns).DeleteCollection(t.Context(), metav1.DeleteOptions{PropagationPolicy: &background},
			metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	installer := func() *action.Install {
		config, _ := helm(t, ns) // a new one, as each command of Helm's has: it keeps the capabilities that it saw first
		i := action.NewInstall(config)
		i.ReleaseName, i.Namespace, i.CreateNamespace = name, ns, true
		i.WaitStrategy, i.Timeout = kube.StatusWatcherStrategy, limit
		return i
	}

	dry := installer()
	dry.DryRunStrategy, dry.CreateNamespace = action.DryRunServer, false
	if _, err := dry.RunWithContext(t.Context(), ch, values{}); err == nil || !strings.Contains(err.Error(), "workshop.example.com/v1") {
		t.Errorf("a dry run with a kind whose CRD is not there says %v", err)
	}

	r, err := installer().RunWithContext(t.Context(), ch, values{})
	wantDeployed(t, "install", r, err, 1)
	if a, err := release.NewAccessor(r); err != nil || a.Notes() != "shop is revision 1 in workshop, on 1.37.\n" {
		t.Errorf("notes %q, %v", a.Notes(), err)
	}
	ran("pre-install", "post-install")
	password := string(secret().Data["password"])
	seen, err := client.CoreV1().ConfigMaps(ns).Get(t.Context(), name+"-seen", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(seen.Data["kube"], "v1.37.1") {
		t.Errorf("templates saw version %s", seen.Data["kube"])
	}
	maps.DeleteFunc(seen.Data, func(k, _ string) bool { return k == "kube" })
	if diff := cmp.Diff(map[string]string{
		"minor": "37", "deployments": "true", "beta": "false", "benches": "true",
		"namespaces": "kube-node-lease kube-public kube-system", "absent": "true",
	}, seen.Data); diff != "" {
		t.Errorf("what templates saw (-want +got):\n%s", diff)
	}

	if _, err := installer().RunWithContext(t.Context(), ch, values{}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second install of the name says %v", err)
	}
	tests := action.NewReleaseTesting(config)
	tests.Namespace, tests.Timeout = ns, limit
	if _, after, err := tests.Run(name); err != nil {
		t.Errorf("tests: %v", err)
	} else if err := after(); err != nil {
		t.Errorf("after the tests: %v", err)
	}

	wantDeployed(t, "upgrade", upgrade(t, config, ns, name, ch, values{"replicas": 2, "image": "mortise.local/workshop:2"}), nil, 2)
	ran("pre-upgrade", "post-upgrade")
	if got := string(secret().Data["password"]); got != password {
		t.Errorf("the password is %q after the upgrade, was %q: lookup found nothing", got, password)
	}

	// An upgrade that the server refuses, and one whose hook fails, are rolled back to what was there.
	for _, bad := range []values{{"replicas": -1}, {"hookExitCode": "1"}} {
		u := action.NewUpgrade(config)
		u.Namespace, u.WaitStrategy, u.Timeout, u.RollbackOnFailure = ns, kube.StatusWatcherStrategy, 20*time.Second, true
		if _, err := u.RunWithContext(t.Context(), name, ch, bad); err == nil {
			t.Errorf("upgrade to %v did not fail", bad)
		}
		d, err := client.AppsV1().Deployments(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if image := d.Spec.Template.Spec.Containers[0].Image; *d.Spec.Replicas != 2 || image != "mortise.local/workshop:2" {
			t.Errorf("after the upgrade to %v: %d replicas of %s", bad, *d.Spec.Replicas, image)
		}
	}
	uninstall(t, config, name)
	if _, err := client.CoreV1().Secrets(ns).Get(t.Context(), name, metav1.GetOptions{}); err == nil {
		t.Error("the secret is still there after the uninstall")
	}
}
