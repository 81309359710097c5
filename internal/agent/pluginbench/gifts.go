// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pluginbench

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
)

// examine checks what a container would get: a runtime refuses what is not there.
func examine(given *containermanager.Options, cdiDirs []string) finding {
	for _, m := range given.Mounts {
		if f := paths("mount", m.GetHostPath(), m.GetContainerPath()); f.result != OK {
			return f
		}
	}
	for _, d := range given.Devices {
		if f := paths("device", d.GetHostPath(), d.GetContainerPath()); f.result != OK {
			return f
		}
		if p := d.GetPermissions(); p == "" || strings.Trim(p, "rwm") != "" {
			return fail("the device %s has the permissions %q, which are of r, w and m", d.GetHostPath(), p)
		}
	}
	for name := range given.Envs {
		if name == "" || strings.Contains(name, "=") {
			return fail("an environment variable has the name %q", name)
		}
	}
	for _, c := range given.CDIDevices {
		if f := cdi(c.GetName(), cdiDirs); f.result != OK {
			return f
		}
	}
	if len(given.Mounts)+len(given.Devices)+len(given.Envs)+len(given.CDIDevices)+len(given.Annotations) == 0 {
		return warn("nothing: the container does not see its device")
	}
	return ok("%d mounts, %d device nodes, %d environment variables, %d CDI devices, %d annotations",
		len(given.Mounts), len(given.Devices), len(given.Envs), len(given.CDIDevices), len(given.Annotations))
}

// paths checks a path on the host and one in the container.
func paths(what, host, container string) finding {
	if !filepath.IsAbs(container) {
		return fail("a %s has the container path %q, which is not absolute", what, container)
	}
	if _, err := os.Stat(host); err != nil {
		return fail("a %s is not there, so that the runtime refuses the container: %v", what, err)
	}
	return ok("")
}

// cdi checks that a CDI device is named as the specification has it, and that a file defines it.
func cdi(name string, dirs []string) finding {
	kind, device, found := strings.Cut(name, "=")
	if vendor, class, slash := strings.Cut(kind, "/"); !found || !slash || vendor == "" || class == "" || device == "" {
		return fail("the CDI device %q is not named VENDOR/CLASS=NAME", name)
	}
	var seen []string
	for _, dir := range dirs {
		for _, pattern := range []string{"*.json", "*.yaml"} {
			files, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				continue // the directory's name is no pattern
			}
			for _, file := range files {
				if defines(file, kind, device) {
					return ok("")
				}
			}
			seen = append(seen, files...)
		}
	}
	return fail("no file of %d in %s defines the CDI device %q: the runtime refuses the container", len(seen), strings.Join(dirs, ", "), name).
		kubeletSays(fmt.Sprintf("Error: failed to create containerd container: CDI device injection failed: unresolvable CDI devices %s", name))
}

// defines reports whether a CDI specification has the device.
func defines(file, kind, device string) bool {
	text, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	var spec struct {
		Kind    string `json:"kind"`
		Devices []struct {
			Name string `json:"name"`
		} `json:"devices"`
	}
	if yaml.Unmarshal(text, &spec) != nil || spec.Kind != kind {
		return false
	}
	for _, d := range spec.Devices {
		if d.Name == device {
			return true
		}
	}
	return false
}
