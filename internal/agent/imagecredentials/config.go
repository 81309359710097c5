// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package imagecredentials

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kubelet/config/v1"
	configv1alpha1 "k8s.io/kubelet/config/v1alpha1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	protocol "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	protocolv1alpha1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1alpha1"
	protocolv1beta1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1beta1"
)

// mostConfig is the maximum size of a configuration file in bytes.
const mostConfig = 4 << 20

// versions are those of the protocol.
var versions = map[string]bool{
	protocolv1alpha1.SchemeGroupVersion.String(): true,
	protocolv1beta1.SchemeGroupVersion.String():  true,
	protocol.SchemeGroupVersion.String():         true,
}

// configDecoder decodes all versions of the configuration strictly.
func configDecoder() (runtime.Decoder, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(configv1.AddToScheme(scheme), configv1beta1.AddToScheme(scheme), configv1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer(), nil
}

// load reads the configuration: a file, or the *.json, *.yaml and *.yml files of a directory, merged in the order of their names. The hash
// is kubelet's, for kubelet_credential_provider_config_info.
func load(path string) (providers []configv1.CredentialProvider, hash string, err error) {
	files, err := configFiles(path)
	if err != nil {
		return nil, "", err
	}
	decoder, err := configDecoder()
	if err != nil {
		return nil, "", err
	}
	sum := sha256.New()
	names := map[string]bool{}
	for _, file := range files {
		text, err := read(file)
		if err != nil {
			return nil, "", fmt.Errorf("unable to read file %q: %w", file, err) // upstream's words
		}
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
		sum.Write(text)
		more, err := decodeConfig(decoder, text)
		if err != nil {
			return nil, "", fmt.Errorf("error decoding config %q: %w", file, err) // upstream's words
		}
		for _, p := range more {
			if names[p.Name] {
				return nil, "", fmt.Errorf("duplicate provider name %q found in configuration file(s)", p.Name) // upstream's words
			}
			names[p.Name] = true
			providers = append(providers, p)
		}
	}
	return providers, fmt.Sprintf("sha256:%x", sum.Sum(nil)), nil
}

// configFiles returns the files that a path stands for.
func configFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("unable to access path %q: %w", path, err) // upstream's words
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path) // sorted
	if err != nil {
		return nil, fmt.Errorf("unable to read directory %q: %w", path, err) // upstream's words
	}
	var out []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".json" || ext == ".yaml" || ext == ".yml") {
			out = append(out, filepath.Join(path, e.Name()))
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no configuration files found in directory %q", path) // upstream's words
	}
	return out, nil
}

func read(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if info.Size() > mostConfig {
		return nil, fmt.Errorf("it has %d bytes, and may have %d", info.Size(), mostConfig)
	}
	return os.ReadFile(file)
}

// decodeConfig decodes one file of any version.
func decodeConfig(decoder runtime.Decoder, text []byte) ([]configv1.CredentialProvider, error) {
	obj, gvk, err := decoder.Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	var out []configv1.CredentialProvider
	switch c := obj.(type) {
	case *configv1.CredentialProviderConfig:
		out = c.Providers
	case *configv1beta1.CredentialProviderConfig:
		for _, p := range c.Providers {
			converted := configv1.CredentialProvider{
				Name: p.Name, MatchImages: p.MatchImages, DefaultCacheDuration: p.DefaultCacheDuration, APIVersion: p.APIVersion, Args: p.Args,
			}
			for _, e := range p.Env {
				converted.Env = append(converted.Env, configv1.ExecEnvVar(e))
			}
			out = append(out, converted)
		}
	case *configv1alpha1.CredentialProviderConfig:
		for _, p := range c.Providers {
			converted := configv1.CredentialProvider{
				Name: p.Name, MatchImages: p.MatchImages, DefaultCacheDuration: p.DefaultCacheDuration, APIVersion: p.APIVersion, Args: p.Args,
			}
			for _, e := range p.Env {
				converted.Env = append(converted.Env, configv1.ExecEnvVar(e))
			}
			out = append(out, converted)
		}
	default:
		return nil, fmt.Errorf("failed to decode %q (wrong Kind)", gvk.Kind) // upstream's words
	}
	return out, nil
}

// validate returns the mistakes in a configuration, in upstream's words.
func validate(providers []configv1.CredentialProvider, tokens bool) error {
	path := field.NewPath("providers")
	var all field.ErrorList
	if len(providers) == 0 {
		all = append(all, field.Required(path, "at least 1 item in plugins is required"))
	}
	for i := range providers {
		all = append(all, validateProvider(path, &providers[i], tokens)...)
	}
	if err := all.ToAggregate(); err != nil {
		return fmt.Errorf("failed to validate credential provider config: %w", err) // upstream's words
	}
	return nil
}

func validateProvider(path *field.Path, p *configv1.CredentialProvider, tokens bool) field.ErrorList {
	var out field.ErrorList
	name := path.Child("name")
	if strings.Contains(p.Name, "/") {
		out = append(out, field.Invalid(name, p.Name, "provider name cannot contain '/'"))
	}
	if strings.Contains(p.Name, " ") {
		out = append(out, field.Invalid(name, p.Name, "provider name cannot contain spaces"))
	}
	if p.Name == "." || p.Name == ".." {
		out = append(out, field.Invalid(name, p.Name, fmt.Sprintf("provider name cannot be '%s'", p.Name)))
	}
	if p.APIVersion == "" {
		out = append(out, field.Required(path.Child("apiVersion"), ""))
	} else if !versions[p.APIVersion] {
		out = append(out, field.NotSupported(path.Child("apiVersion"), p.APIVersion, slices.Sorted(maps.Keys(versions))))
	}
	if len(p.MatchImages) == 0 {
		out = append(out, field.Required(path.Child("matchImages"), "at least 1 item in matchImages is required"))
	}
	for _, image := range p.MatchImages {
		if _, err := url.Parse("https://" + image); err != nil {
			out = append(out, field.Invalid(path.Child("matchImages"), image, fmt.Sprintf("match image is invalid: %s", err)))
		}
	}
	switch d := p.DefaultCacheDuration; {
	case d == nil:
		out = append(out, field.Required(path.Child("defaultCacheDuration"), ""))
	case d.Duration < 0:
		out = append(out, field.Invalid(path.Child("defaultCacheDuration"), d, "must be greater than or equal to 0"))
	}
	if p.TokenAttributes != nil {
		out = append(out, validateTokens(path.Child("tokenAttributes"), p, tokens)...)
	}
	return out
}

func validateTokens(path *field.Path, p *configv1.CredentialProvider, tokens bool) field.ErrorList {
	const gate = "tokenAttributes is not supported when KubeletServiceAccountTokenForCredentialProviders feature gate is disabled"
	var out field.ErrorList
	t := p.TokenAttributes
	required, optional := path.Child("requiredServiceAccountAnnotationKeys"), path.Child("optionalServiceAccountAnnotationKeys")
	if !tokens {
		out = append(out, field.Forbidden(path, gate))
	}
	if t.ServiceAccountTokenAudience == "" {
		out = append(out, field.Required(path.Child("serviceAccountTokenAudience"), ""))
	}
	if t.RequireServiceAccount == nil {
		out = append(out, field.Required(path.Child("requireServiceAccount"), ""))
	}
	if v := protocol.SchemeGroupVersion.String(); p.APIVersion != v {
		out = append(out, field.Forbidden(path, fmt.Sprintf("tokenAttributes is only supported for %s API version", v)))
	}
	if t.RequireServiceAccount != nil && !*t.RequireServiceAccount && len(t.RequiredServiceAccountAnnotationKeys) > 0 {
		out = append(out, field.Forbidden(required, "requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set"))
	}
	out = append(out, validateKeys(required, t.RequiredServiceAccountAnnotationKeys)...)
	out = append(out, validateKeys(optional, t.OptionalServiceAccountAnnotationKeys)...)
	both := sets.New(t.RequiredServiceAccountAnnotationKeys...).Intersection(sets.New(t.OptionalServiceAccountAnnotationKeys...))
	if both.Len() > 0 {
		out = append(out, field.Invalid(path, sets.List(both), "annotation keys cannot be both required and optional"))
	}
	types := []string{string(configv1.ServiceAccountServiceAccountTokenCacheType), string(configv1.TokenServiceAccountTokenCacheType)}
	switch {
	case t.CacheType == "":
		out = append(out, field.Required(path.Child("cacheType"), fmt.Sprintf(
			"cacheType is required to be set when tokenAttributes is specified. Supported values are: %s", strings.Join(types, ", "))))
	case !slices.Contains(types, string(t.CacheType)):
		out = append(out, field.NotSupported(path.Child("cacheType"), string(t.CacheType), types))
	}
	return out
}

// validateKeys checks annotation keys: qualified names in any case.
func validateKeys(path *field.Path, keys []string) field.ErrorList {
	var out field.ErrorList
	seen := map[string]bool{}
	for _, k := range keys {
		for _, message := range validation.IsQualifiedName(strings.ToLower(k)) {
			out = append(out, field.Invalid(path, k, message))
		}
		if seen[k] {
			out = append(out, field.Duplicate(path, k))
		}
		seen[k] = true
	}
	return out
}
