// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package encryption

import (
	"context"
	"crypto/aes"
	gocipher "crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/apiserver/pkg/storage/value/encrypt/secretbox"

	"github.com/mortise-dev/mortise/store/sealed"
)

// Config is an encryption configuration that was read and validated.
type Config struct {
	File   string
	hash   string
	config *apiserver.EncryptionConfiguration
}

// Load reads and validates a file. With reload it must be suitable for reloads.
func Load(file string, reload bool) (*Config, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read encryption configuration: %w", err)
	}
	return Parse(file, data, reload)
}

// Parse validates the content of a file.
func Parse(file string, data []byte, reload bool) (*Config, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("encryption configuration %s is empty", file)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(apiserver.AddToScheme(scheme), apiserverv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("make scheme: %w", err)
	}
	obj, gvk, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder().Decode(data, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("decode encryption configuration %s: %w", file, err)
	}
	config, ok := obj.(*apiserver.EncryptionConfiguration)
	if !ok {
		return nil, fmt.Errorf("decode encryption configuration %s: it is a %v", file, gvk)
	}
	if err := validation.ValidateEncryptionConfiguration(config, reload).ToAggregate(); err != nil {
		return nil, fmt.Errorf("check encryption configuration %s: %w", file, err)
	}
	c := &Config{File: file, hash: fmt.Sprintf("sha256:%x", sha256.Sum256(data)), config: config}
	if err := c.checkRules(); err != nil {
		return nil, fmt.Errorf("check encryption configuration %s: %w", file, err)
	}
	return c, nil
}

// checkRules rejects configurations that pass validation but cannot be used: rules that an earlier one hides, and
// version 1 of KMS.
func (c *Config) checkRules() error {
	seen := map[schema.GroupResource]bool{}
	for i := range c.config.Resources {
		rule := &c.config.Resources[i]
		for _, name := range rule.Resources {
			gr := schema.ParseGroupResource(name)
			for _, wider := range []schema.GroupResource{{Group: gr.Group, Resource: "*"}, everything} {
				if seen[wider] {
					return fmt.Errorf("resource %q is masked by earlier rule %q", written(gr), written(wider)) // upstream's words
				}
			}
			seen[gr] = true
		}
		for j := range rule.Providers {
			if k := rule.Providers[j].KMS; k != nil && k.APIVersion == "v1" {
				return fmt.Errorf("KMS provider %q: apiVersion v1 is not served (Kubernetes 1.37 has it behind a gate that is off); use v2", k.Name)
			}
		}
	}
	return nil
}

// written returns a resource as files write it.
func written(gr schema.GroupResource) string {
	if gr.Group == "" && gr.Resource == "*" {
		return "*."
	}
	return gr.String()
}

// setUp makes the ciphers of a configuration, and the clients of its plug-ins. The returned context ends when the setup does.
func (t *Transformers) setUp(c *Config) (*setup, context.Context, error) {
	ctx, end := context.WithCancel(t.context)
	s := &setup{hash: c.hash, ciphers: map[schema.GroupResource]*cipher{}, needs: map[schema.GroupResource][]*plugin{}, end: end}
	providers := map[schema.GroupResource][]value.PrefixTransformer{}
	for i := range c.config.Resources {
		rule := &c.config.Resources[i]
		var list []value.PrefixTransformer
		var plugins []*plugin
		for j := range rule.Providers {
			p, err := local(&rule.Providers[j])
			if err != nil {
				end()
				return nil, nil, err
			}
			if k := rule.Providers[j].KMS; k != nil {
				remote, err := t.newPlugin(ctx, k)
				if err != nil {
					end()
					return nil, nil, err
				}
				plugins = append(plugins, remote)
				p = value.PrefixTransformer{
					Prefix:      []byte(sealed.Prefix + "kms:v2:" + k.Name + ":"),
					Transformer: kmsv2.NewEnvelopeTransformer(remote.service, k.Name, remote.now, t.opts.ServerID),
				}
			}
			list = append(list, p)
		}
		s.plugins = append(s.plugins, plugins...)
		for _, name := range rule.Resources {
			gr := schema.ParseGroupResource(name)
			providers[gr] = append(providers[gr], list...)
			s.needs[gr] = append(s.needs[gr], plugins...)
		}
	}
	for gr, list := range providers {
		s.ciphers[gr] = &cipher{value.NewPrefixTransformers(errors.New("no matching prefix found"), list...)} // upstream's words
	}
	return s, ctx, nil
}

// local returns the transformer of a provider whose keys are in the file; nil for KMS.
func local(p *apiserver.ProviderConfiguration) (value.PrefixTransformer, error) {
	switch {
	case p.AESGCM != nil:
		return keyed("aesgcm:v1:", "AES", p.AESGCM.Keys, aesBlock(func(b gocipher.Block) (value.Transformer,
			error) {
			return aestransformer.NewGCMTransformer(b)
		}))
	case p.AESCBC != nil:
		return keyed("aescbc:v1:", "AES", p.AESCBC.Keys, aesBlock(func(b gocipher.Block) (value.Transformer, error) {
			return padded{aestransformer.NewCBCTransformer(b)}, nil
		}))
	case p.Secretbox != nil:
		return keyed("secretbox:v1:", "Secretbox", p.Secretbox.Keys, func(key []byte) (value.Transformer, error) {
			if len(key) != 32 {
				return nil, fmt.Errorf("expected key size 32 for secretbox provider, got %v", len(key)) // upstream's words
			}
			return secretbox.NewSecretboxTransformer([32]byte(key)), nil
		})
	case p.Identity != nil:
		return value.PrefixTransformer{Prefix: []byte{}, Transformer: identity.NewEncryptCheckTransformer()}, nil
	}
	return value.PrefixTransformer{}, nil
}

// padded is AES-CBC with a check of the length: the library ends the process on a value that consists of an
// initialization vector only. Valid data has at least one block of padding.
type padded struct{ value.Transformer }

// TransformFromStorage implements [value.Transformer].
func (p padded) TransformFromStorage(ctx context.Context, data []byte, of value.Context) ([]byte, bool, error) {
	if len(data) == aes.BlockSize {
		return nil, false, errors.New("invalid PKCS7 data (empty or not padded)") // upstream's words
	}
	return p.Transformer.TransformFromStorage(ctx, data, of)
}

func aesBlock(make func(gocipher.Block) (value.Transformer, error)) func([]byte) (value.Transformer, error) {
	return func(key []byte) (value.Transformer, error) {
		b, err := aes.NewCipher(key)
		if err != nil {
			return nil, fmt.Errorf("make cipher: %w", err)
		}
		return make(b)
	}
}

// keyed returns a provider with named keys: the first key encrypts, all keys decrypt.
func keyed(prefix, title string, keys []apiserver.Key, make func(key []byte) (value.Transformer, error)) (value.PrefixTransformer, error) {
	var list []value.PrefixTransformer
	for _, k := range keys {
		key, err := base64.StdEncoding.DecodeString(k.Secret)
		if err != nil {
			return value.PrefixTransformer{}, fmt.Errorf("decode key %s: %w", k.Name, err)
		}
		t, err := make(key)
		if err != nil {
			return value.PrefixTransformer{}, fmt.Errorf("use key %s: %w", k.Name, err)
		}
		list = append(list, value.PrefixTransformer{Prefix: []byte(k.Name + ":"), Transformer: t})
	}
	return value.PrefixTransformer{
		Prefix: []byte(sealed.Prefix + prefix),
		// upstream's words
		Transformer: value.NewPrefixTransformers(fmt.Errorf("no matching key was found for the provided %s transformer", title), list...),
	}, nil
}
