// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package envtest_test

import (
	"os"
	"path/filepath"
	"testing"

	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/mortise-dev/mortise/embed/envtest"
)

// The tests of this file are the examples of docs/testing.md: a house test compares the two.

// project makes the folders of a kubebuilder project, and the one with the controllers the working directory.
func project(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for _, folder := range []string{"controller", "config/crd/bases", "config/webhook"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"config/crd/bases/widgets.yaml": definition, "config/webhook/manifests.yaml": manifests} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(filepath.Join(dir, "controller"))
}

func stop(t *testing.T, env *envtest.Environment) {
	t.Helper()
	if err := env.Stop(); err != nil {
		t.Error(err)
	}
}

func TestGuideEnvironment(t *testing.T) {
	project(t)
	testEnv := &envtest.Environment{CRDDirectoryPaths: []string{filepath.Join("..", "config", "crd", "bases")}}
	config, err := testEnv.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer stop(t, testEnv)
	if config.Host == "" || len(testEnv.CRDs) != 1 {
		t.Errorf("the API server at %q has %d definitions", config.Host, len(testEnv.CRDs))
	}
}

func TestGuideWebhooks(t *testing.T) {
	project(t)
	testEnv := &envtest.Environment{
		WebhooksInProcess:     true,
		WebhookInstallOptions: envtest.WebhookInstallOptions{Paths: []string{filepath.Join("..", "config", "webhook")}},
	}
	config, err := testEnv.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer stop(t, testEnv)
	manager, err := ctrl.NewManager(config, ctrl.Options{
		WebhookServer: testEnv.WebhookServer(), Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if manager.GetWebhookServer() == nil {
		t.Error("the manager has no webhook server")
	}
}
