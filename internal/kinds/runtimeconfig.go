// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// RuntimeConfig selects the served group-versions and resources, as kube-apiserver's flag --runtime-config does. The zero value serves the
// stable ones.
type RuntimeConfig struct {
	all       map[string]bool // by api/all, api/ga, api/beta, api/alpha
	versions  map[schema.GroupVersion]bool
	resources map[schema.GroupVersionResource]bool
}

// maturity are the keys that stand for many versions, in increasing precedence.
var maturity = []struct {
	key     string
	matches *regexp.Regexp
}{
	{"api/all", regexp.MustCompile(``)},
	{"api/ga", regexp.MustCompile(`^v\d+$`)},
	{"api/beta", regexp.MustCompile(`^v\d+beta\d+$`)},
	{"api/alpha", regexp.MustCompile(`^v\d+alpha\d+$`)},
}

// ParseRuntimeConfig parses KEY=true|false pairs. A key is api/all, api/ga, api/beta, api/alpha, GROUP/VERSION or GROUP/VERSION/RESOURCE.
// It refuses what upstream refuses, with upstream's errors.
func ParseRuntimeConfig(config map[string]string) (RuntimeConfig, error) {
	c := RuntimeConfig{all: map[string]bool{}, versions: map[schema.GroupVersion]bool{}, resources: map[schema.GroupVersionResource]bool{}}
	if config["api/all"] == "false" && len(config) == 1 {
		return c, errors.New("invalid runtime-config with only api/all=false")
	}
	rest := maps.Clone(config)
	for _, m := range maturity {
		value, ok := config[m.key]
		if !ok {
			continue
		}
		if value != "true" && value != "false" {
			return c, fmt.Errorf("invalid value %s=%s", m.key, value)
		}
		c.all[m.key] = value == "true"
		delete(rest, m.key)
	}
	keys := slices.Sorted(maps.Keys(rest))
	parsed := make([]schema.GroupVersionResource, len(keys))
	var unknown []string
	for i, key := range keys {
		parts := strings.Split(key, "/")
		if len(parts) != 2 && len(parts) != 3 {
			return c, fmt.Errorf("runtime-config invalid key %s", key)
		}
		gv, err := schema.ParseGroupVersion(parts[0] + "/" + parts[1])
		if err != nil {
			return c, fmt.Errorf("runtime-config invalid key %s", key)
		}
		if len(parts) == 3 {
			parsed[i] = gv.WithResource(parts[2])
		} else {
			parsed[i] = gv.WithResource("")
		}
		if registered()[gv.Group] == nil && !slices.Contains(unknown, gv.String()) {
			unknown = append(unknown, gv.String())
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return c, fmt.Errorf("unknown api groups %s", strings.Join(unknown, ","))
	}
	for i, key := range keys {
		gv := parsed[i].GroupVersion()
		if !slices.Contains(registered()[gv.Group], gv.Version) {
			return c, fmt.Errorf("group version %s that has not been registered", gv)
		}
		on := true
		if value := config[key]; value != "" {
			var err error
			if on, err = strconv.ParseBool(value); err != nil {
				return c, fmt.Errorf("invalid value of %s: %s, err: %w", key, value, err)
			}
		}
		r := parsed[i].Resource
		switch {
		case strings.Count(key, "/") == 1:
			c.versions[gv] = on
		case strings.ToLower(r) != r:
			return c, fmt.Errorf("invalid key %v: group/version/resource and resource is always lowercase plural, not %q", key, r)
		default:
			c.resources[parsed[i]] = on
		}
	}
	return c, nil
}

// Serves reports whether a resource is served in a version.
func (c RuntimeConfig) Serves(r schema.GroupVersionResource) bool {
	if on, ok := c.resources[r]; ok {
		return on
	}
	if on, ok := c.versions[r.GroupVersion()]; ok {
		return on
	}
	serves := maturity[1].matches.MatchString(r.Version)
	for _, m := range maturity {
		if on, ok := c.all[m.key]; ok && m.matches.MatchString(r.Version) {
			serves = on
		}
	}
	return serves
}

// registered returns the versions of each group that Kubernetes 1.37 registers, served or not.
func registered() map[string][]string {
	return map[string][]string{
		"":                             {"v1"},
		"admission.k8s.io":             {"v1", "v1beta1"},
		"admissionregistration.k8s.io": {"v1", "v1beta1", "v1alpha1"},
		"apiextensions.k8s.io":         {"v1", "v1beta1"},
		"apiregistration.k8s.io":       {"v1", "v1beta1"},
		"apps":                         {"v1", "v1beta2", "v1beta1"},
		"authentication.k8s.io":        {"v1", "v1beta1", "v1alpha1"},
		"authorization.k8s.io":         {"v1", "v1beta1"},
		"autoscaling":                  {"v2", "v1"},
		"batch":                        {"v1", "v1beta1"},
		"certificates.k8s.io":          {"v1", "v1beta1", "v1alpha1"},
		"coordination.k8s.io":          {"v1", "v1beta1", "v1alpha2"},
		"discovery.k8s.io":             {"v1", "v1beta1"},
		"events.k8s.io":                {"v1", "v1beta1"},
		"extensions":                   {"v1beta1"},
		"flowcontrol.apiserver.k8s.io": {"v1", "v1beta3", "v1beta2", "v1beta1"},
		"imagepolicy.k8s.io":           {"v1alpha1"},
		"internal.apiserver.k8s.io":    {"v1alpha1"},
		"lifecycle.k8s.io":             {"v1alpha1"},
		"networking.k8s.io":            {"v1", "v1beta1"},
		"node.k8s.io":                  {"v1", "v1beta1", "v1alpha1"},
		"policy":                       {"v1", "v1beta1"},
		"rbac.authorization.k8s.io":    {"v1", "v1beta1", "v1alpha1"},
		"resource.k8s.io":              {"v1", "v1beta2", "v1beta1", "v1alpha3"},
		"scheduling.k8s.io":            {"v1", "v1beta1", "v1alpha3"},
		"storage.k8s.io":               {"v1", "v1beta1", "v1alpha1"},
		"storagemigration.k8s.io":      {"v1", "v1beta1"},
	}
}
