// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation/path"

	"github.com/mortise-dev/mortise/resource"
)

// Forbidden is the status error of a plug-in that refuses: 403, naming the object by its name, or by its generateName
// while it has none. An error that already is a 403 is returned as it is.
func Forbidden(a *Attributes, reason error) error {
	if apierrors.IsForbidden(reason) {
		return reason
	}
	return apierrors.NewForbidden(a.Descriptor.GroupResource(), a.displayName(), reason)
}

func (a *Attributes) displayName() string {
	if a.Name != "" {
		return a.Name
	}
	if a.Object != nil {
		if n := a.Object.GetName(); n != "" {
			return n
		}
		if n := a.Object.GetGenerateName(); n != "" {
			return n
		}
	}
	return "Unknown"
}

// Is reports whether the request is for the resource or the subresource of that name; "" is the resource itself.
func (a *Attributes) Is(group, name, subresource string) bool {
	return a.Descriptor.Group == group && a.Descriptor.Resource == name && a.Subresource == subresource
}

// ObjectsOf are the request's objects in their type, and whether the new one has it.
func ObjectsOf[T resource.Object](a *Attributes) (obj, old T, ok bool) {
	obj, ok = a.Object.(T)
	old, _ = a.Old.(T)
	return obj, old, ok
}

// CheckName refuses a name that no object can have, as a client does before it asks for one.
func CheckName(name string) error {
	if name == "" {
		return errors.New("resource name may not be empty")
	}
	if problems := path.IsValidPathSegmentName(name); len(problems) > 0 {
		return fmt.Errorf("invalid resource name %q: %v", name, problems)
	}
	return nil
}
