// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package version has the versions of Kubernetes and of Mortise, as the API's /version serves them.
package version

import (
	"runtime"
	"runtime/debug"

	"k8s.io/apimachinery/pkg/version"
)

// Kubernetes is the release whose behaviour Mortise has; Mortise is its own.
const (
	Kubernetes = "v1.37.1"
	Mortise    = "0.1"
)

// Get reads what the build recorded. GitVersion is v1.37.1+mortise.0.1, so that clients that compare versions see
// Kubernetes 1.37.1.
func Get() version.Info {
	v := version.Info{
		Major: "1", Minor: "37",
		EmulationMajor: "1", EmulationMinor: "37", MinCompatibilityMajor: "1", MinCompatibilityMinor: "36",
		GitVersion:   Kubernetes + "+mortise." + Mortise,
		GitTreeState: "clean", BuildDate: "1970-01-01T00:00:00Z",
		GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			switch s.Key {
			case "vcs.revision":
				v.GitCommit = s.Value
			case "vcs.time":
				v.BuildDate = s.Value
			case "vcs.modified":
				if s.Value == "true" {
					v.GitTreeState = "dirty"
				}
			}
		}
	}
	return v
}
