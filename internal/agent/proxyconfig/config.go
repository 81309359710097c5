// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package proxyconfig reads KubeProxyConfiguration files of kubeproxy.config.k8s.io/v1alpha1 as kube-proxy does.
//
// [Load] reads a file. It decodes the file strictly; if it has an unknown or duplicate field, it decodes it again
// leniently, and Lenient has the strict error, as in kube-proxy 1.37 for this version. It applies the command line over it,
// defaults.go sets kube-proxy's defaults, and validate.go validates everything and returns one error with all mistakes,
// with kube-proxy's paths and messages. settings.go has the service proxy's view of it.
//
// Not every field has an effect here. fields.go lists all of them: those with an effect, those without one
// ([Config.Warnings] lists the ones that a file sets), and those that are rejected.
//
// A configuration does not change after Load.
package proxyconfig

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
)

// Config is a loaded configuration.
type Config struct {
	// KubeProxyConfiguration has its defaults set.
	*proxyv1alpha1.KubeProxyConfiguration
	// Lenient is the error of strict decoding; nil: the file is strictly valid.
	Lenient error

	written *proxyv1alpha1.KubeProxyConfiguration // the file with the command line's values
}

// Flags are the values of the command line, which take precedence over the file. The zero value sets nothing.
type Flags struct {
	Mode              string
	NodePortAddresses []string
	MasqueradeAll     *bool
}

// Load reads a file.
func Load(file string, flags Flags) (*Config, error) {
	data, err := componentconfig.Read("kube-proxy", file)
	if err != nil {
		return nil, err
	}
	c, err := Parse(data, flags)
	if err != nil {
		return nil, fmt.Errorf("read kube-proxy configuration %s: %w", file, err)
	}
	return c, nil
}

// Parse reads the contents of one file, YAML or JSON, sets defaults and validates it.
func Parse(data []byte, flags Flags) (*Config, error) {
	written, lenient, err := decode(data)
	if err != nil {
		return nil, err
	}
	flags.over(written)
	c := &Config{KubeProxyConfiguration: written.DeepCopy(), Lenient: lenient, written: written}
	SetDefaults(c.KubeProxyConfiguration)
	if err := Validate(c.KubeProxyConfiguration); err != nil {
		return nil, err
	}
	return c, nil
}

// over applies the flags to a file.
func (f Flags) over(c *proxyv1alpha1.KubeProxyConfiguration) {
	componentconfig.Value(&f.Mode, string(c.Mode))
	c.Mode = proxyv1alpha1.ProxyMode(f.Mode)
	if len(f.NodePortAddresses) > 0 {
		c.NodePortAddresses = f.NodePortAddresses
	}
	if f.MasqueradeAll != nil {
		c.IPTables.MasqueradeAll, c.NFTables.MasqueradeAll = *f.MasqueradeAll, *f.MasqueradeAll
	}
}

// decode decodes one document; lenient is the error of strict decoding.
func decode(data []byte) (c *proxyv1alpha1.KubeProxyConfiguration, lenient, err error) {
	s := runtime.NewScheme()
	if err := proxyv1alpha1.AddToScheme(s); err != nil {
		return nil, nil, fmt.Errorf("make scheme: %w", err)
	}
	if err := componentconfig.One(data); err != nil {
		return nil, nil, err
	}
	obj, gvk, err := serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDeserializer().Decode(data, nil, nil)
	if runtime.IsStrictDecodingError(err) {
		lenient = err
		if obj, gvk, err = serializer.NewCodecFactory(s, serializer.DisableStrict).UniversalDeserializer().Decode(data, nil, nil); err != nil {
			return nil, nil, fmt.Errorf("failed lenient decoding: %w", lenient) // upstream's words
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("failed to decode: %w", err) // upstream's words
	}
	c, ok := obj.(*proxyv1alpha1.KubeProxyConfiguration)
	if !ok {
		return nil, nil, fmt.Errorf("want a KubeProxyConfiguration, found %s", gvk)
	}
	return c, lenient, nil
}
