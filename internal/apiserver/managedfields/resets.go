// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/mortise-dev/mortise/resource"
)

// resets returns the fields that a write to the resource or subresource never changes, whatever the client sends. No
// manager owns them through it.
func resets(d *resource.Descriptor, subresource string) map[fieldpath.APIVersion]fieldpath.Filter {
	paths := resetPaths(d, subresource)
	if len(paths) == 0 {
		return nil
	}
	out := map[fieldpath.APIVersion]*fieldpath.Set{}
	for _, v := range d.Versions {
		out[fieldpath.APIVersion(schema.GroupVersion{Group: d.Group, Version: v.Name}.String())] = fieldpath.NewSet(paths...)
	}
	return fieldpath.NewExcludeFilterSetMap(out)
}

func resetPaths(d *resource.Descriptor, subresource string) []fieldpath.Path {
	requests := d.GroupResource() == schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}
	switch subresource {
	case "":
		switch {
		case requests:
			return fields("spec", "status")
		case d.Subresource("status") == nil:
			return nil
		}
		return fields("status")
	case "finalize":
		return fields("status")
	case "approval":
		return fields("spec", "status.certificate")
	case "status":
		if requests {
			return fields("spec", "status.conditions")
		}
		return statusResets(d)
	}
	return nil
}

// statusResets returns the fields besides the spec that a write to status does not change. Most kinds let it change the
// metadata; some do not.
func statusResets(d *resource.Descriptor) []fieldpath.Path {
	if custom(d) {
		return fields("spec", "metadata")
	}
	switch d.Group + "/" + d.Resource {
	case "/pods":
		return fields("spec", "metadata.deletionTimestamp", "metadata.ownerReferences")
	case "apps/deployments":
		return fields("spec", "metadata.labels")
	case "admissionregistration.k8s.io/validatingadmissionpolicies", "apiregistration.k8s.io/apiservices",
		"certificates.k8s.io/podcertificaterequests", "flowcontrol.apiserver.k8s.io/flowschemas",
		"flowcontrol.apiserver.k8s.io/prioritylevelconfigurations", "internal.apiserver.k8s.io/storageversions",
		"networking.k8s.io/servicecidrs", "resource.k8s.io/devicetaintrules", "resource.k8s.io/resourceclaims",
		"resource.k8s.io/resourcepoolstatusrequests", "storage.k8s.io/csinodes", "storage.k8s.io/volumeattachments",
		"storagemigration.k8s.io/storageversionmigrations":
		return fields("spec", "metadata")
	}
	return fields("spec")
}

// fields returns the paths of top-level fields, or of fields one level below.
func fields(names ...string) []fieldpath.Path {
	out := make([]fieldpath.Path, len(names))
	for i, name := range names {
		for _, part := range strings.Split(name, ".") {
			out[i] = append(out[i], fieldpath.PathElement{FieldName: &part})
		}
	}
	return out
}
