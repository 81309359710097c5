// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	apiserverv1alpha1 "k8s.io/apiserver/pkg/apis/apiserver/v1alpha1"
	apiserverv1beta1 "k8s.io/apiserver/pkg/apis/apiserver/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/webhook"
	"github.com/mortise-dev/mortise/internal/builtin"
)

// makeAdmission reads the admission configuration and creates the plug-ins, before anything is written.
func makeAdmission(c *settings) (admit.Chain, error) {
	a, w := c.APIServer.Admission, c.APIServer.Webhooks
	if err := w.Check(); err != nil {
		return nil, err
	}
	opts := builtin.AdmissionOptions{Enable: a.Enable, Disable: a.Disable, Webhooks: webhook.Protection{
		Deadline: w.Deadline, Failures: w.BreakerFailures, Pause: w.BreakerPause, Guard: w.LockoutGuard, Configurations: w.NameConfigurations,
	}}
	if a.ConfigFile != "" {
		plugins, err := readAdmission(a.ConfigFile)
		if err != nil {
			return nil, fmt.Errorf("read admission configuration %s: %w", a.ConfigFile, err)
		}
		opts.Configuration = func(name string) (io.Reader, error) {
			return pluginConfiguration(plugins, filepath.Dir(a.ConfigFile), name)
		}
	}
	opts.NotReadySeconds, opts.UnreachableSeconds = a.NotReadySeconds, a.UnreachableSeconds
	opts.More = c.Extensions.Admission
	return builtin.Admission(opts)
}

// readAdmission reads an AdmissionConfiguration or the older form: the configuration of one of two plug-ins, without a kind.
func readAdmission(path string) ([]apiserver.AdmissionPluginConfiguration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		apiserver.AddToScheme, apiserverv1alpha1.AddToScheme, apiserverv1beta1.AddToScheme, apiserverv1.AddToScheme,
	} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("make scheme: %w", err)
		}
	}
	obj, err := runtime.Decode(serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDecoder(), data)
	if runtime.IsMissingVersion(err) || runtime.IsMissingKind(err) {
		var opaque map[string]any
		if yaml.Unmarshal(data, &opaque) == nil {
			for key, name := range map[string]string{"imagePolicy": "ImagePolicyWebhook", "podNodeSelectorPluginConfig": "PodNodeSelector"} {
				if opaque[key] != nil {
					return []apiserver.AdmissionPluginConfiguration{{Name: name, Path: filepath.Base(path)}}, nil
				}
			}
		}
	}
	if err != nil {
		return nil, err
	}
	c, ok := obj.(*apiserver.AdmissionConfiguration)
	if !ok {
		return nil, fmt.Errorf("it is a %T", obj)
	}
	return c.Plugins, nil
}

// pluginConfiguration returns one plug-in's configuration, inline or from a file of its own; nil: none.
func pluginConfiguration(plugins []apiserver.AdmissionPluginConfiguration, dir, name string) (io.Reader, error) {
	i := slices.IndexFunc(plugins, func(p apiserver.AdmissionPluginConfiguration) bool { return p.Name == name })
	switch {
	case i < 0:
		return nil, nil
	case plugins[i].Configuration != nil:
		return bytes.NewReader(plugins[i].Configuration.Raw), nil
	case plugins[i].Path == "":
		return nil, nil
	}
	path := plugins[i].Path
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return bytes.NewReader(data), nil
}
