// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubeletconfig reads KubeletConfiguration files of kubelet.config.k8s.io/v1beta1 as kubelet does.
//
// [Load] reads a file and a directory of drop-ins. It decodes each file strictly: an unknown or duplicate field is an error
// with its path. It merges drop-ins in the order of their names, as JSON merge patches over the file with its defaults, as
// kubelet does; then defaults.go sets the defaults of kubelet 1.37, and validate.go validates everything and returns one
// error with all mistakes.
//
// Not every field has an effect here. fields.go lists all of them: those with an effect, those without one
// ([Unheeded] lists the ones that a configuration sets), and those that are rejected because a node without them would be
// less safe than its administrator expects.
//
// A configuration does not change after Load.
package kubeletconfig

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
)

// dropInSuffix is the suffix of drop-ins' names.
const dropInSuffix = ".conf"

// Load reads a file and drop-ins; either may be empty. It returns as skipped the files of the directory that are no drop-ins.
func Load(file, dir string) (config *configv1beta1.KubeletConfiguration, skipped []string, err error) {
	return LoadUnder(file, dir, nil)
}

// LoadUnder is Load for a program whose flags win over the files: override sets the fields of the flags that were given. Nil sets none.
func LoadUnder(
	file, dir string, override func(*configv1beta1.KubeletConfiguration),
) (config *configv1beta1.KubeletConfiguration, skipped []string, err error) {
	config = &configv1beta1.KubeletConfiguration{}
	if file != "" {
		data, err := componentconfig.Read("kubelet", file)
		if err != nil {
			return nil, nil, err
		}
		if config, err = decode(data); err != nil {
			return nil, nil, fmt.Errorf("read kubelet configuration %s: %w", file, err)
		}
		for _, path := range paths(config) {
			if *path != "" && !filepath.IsAbs(*path) {
				*path = filepath.Join(filepath.Dir(file), *path)
			}
		}
	}
	SetDefaults(config)
	if dir != "" {
		if config, skipped, err = dropIns(config, dir); err != nil {
			return nil, nil, err
		}
	}
	if override != nil {
		override(config)
	}
	if err := Validate(config); err != nil {
		return nil, nil, fmt.Errorf("check kubelet configuration: %w", err)
	}
	return config, skipped, nil
}

// Parse reads the contents of one file, YAML or JSON, sets defaults and validates it.
func Parse(data []byte) (*configv1beta1.KubeletConfiguration, error) {
	config, err := decode(data)
	if err != nil {
		return nil, err
	}
	SetDefaults(config)
	if err := Validate(config); err != nil {
		return nil, err
	}
	return config, nil
}

// Default returns the configuration of an empty file.
func Default() *configv1beta1.KubeletConfiguration {
	config := &configv1beta1.KubeletConfiguration{}
	SetDefaults(config)
	return config
}

// decode decodes one document strictly.
func decode(data []byte) (*configv1beta1.KubeletConfiguration, error) {
	s := runtime.NewScheme()
	if err := configv1beta1.AddToScheme(s); err != nil {
		return nil, fmt.Errorf("make scheme: %w", err)
	}
	if err := componentconfig.One(data); err != nil {
		return nil, err
	}
	obj, gvk, err := serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		return nil, err
	}
	config, ok := obj.(*configv1beta1.KubeletConfiguration)
	if !ok {
		return nil, fmt.Errorf("want a KubeletConfiguration, found %s", gvk)
	}
	return config, nil
}

// dropIns merges the directory's drop-ins into the configuration.
func dropIns(base *configv1beta1.KubeletConfiguration, dir string) (*configv1beta1.KubeletConfiguration, []string, error) {
	merged, err := json.Marshal(base)
	if err != nil {
		return nil, nil, fmt.Errorf("encode kubelet configuration: %w", err)
	}
	var skipped []string
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			return nil
		case filepath.Ext(entry.Name()) != dropInSuffix:
			skipped = append(skipped, path)
			return nil
		}
		data, err := componentconfig.Read("kubelet", path)
		if err != nil {
			return err
		}
		if _, err := decode(data); err != nil {
			return fmt.Errorf("read drop-in %s: %w", path, err)
		}
		patch, err := utilyaml.ToJSON(data)
		if err != nil {
			return fmt.Errorf("read drop-in %s: %w", path, err)
		}
		if merged, err = jsonpatch.MergePatch(merged, patch); err != nil {
			return fmt.Errorf("merge drop-in %s: %w", path, err)
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read kubelet drop-ins %s: %w", dir, err)
	}
	config, err := decode(merged)
	if err != nil {
		return nil, nil, fmt.Errorf("read merged kubelet configuration: %w", err)
	}
	SetDefaults(config)
	return config, skipped, nil
}

// paths returns the fields with names of files; relative names are relative to the file that contains them.
func paths(c *configv1beta1.KubeletConfiguration) []*string {
	out := []*string{&c.StaticPodPath, &c.Authentication.X509.ClientCAFile, &c.TLSCertFile, &c.TLSPrivateKeyFile, &c.VolumePluginDir,
		&c.PodLogsDir}
	if c.ResolverConfig != nil {
		out = append(out, c.ResolverConfig)
	}
	return out
}
