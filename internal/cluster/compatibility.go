// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/version"
)

// checkCompatibility refuses to emulate any version of Kubernetes but the server's own.
func checkCompatibility(o *options.Compatibility) error {
	own := version.Get()
	if err := checkVersions("emulated-version", o.EmulatedVersions, own.EmulationMajor+"."+own.EmulationMinor); err != nil {
		return err
	}
	return checkVersions("min-compatibility-version", o.MinCompatibilityVersions, own.MinCompatibilityMajor+"."+own.MinCompatibilityMinor)
}

// checkVersions refuses versions, as a flag has them, other than the one that is supported.
func checkVersions(flag string, versions []string, supported string) error {
	for _, text := range versions {
		component, number, named := strings.Cut(text, "=")
		if !named {
			component, number = "kube", text
		}
		if component = strings.TrimSpace(component); component != "kube" {
			return fmt.Errorf("--%s %s: unknown component %q: want kube=%s", flag, text, component, supported)
		}
		v, err := utilversion.Parse(strings.TrimSpace(number))
		if err != nil || !v.EqualTo(utilversion.MustParse(supported)) {
			return fmt.Errorf("--%s %s is not supported: this server is Kubernetes %s and supports kube=%s only", flag, text,
				strings.TrimPrefix(version.Kubernetes, "v"), supported)
		}
	}
	return nil
}
