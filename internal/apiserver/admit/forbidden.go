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

// Forbidden returns the 403 status error of a plug-in that rejects the request. The error names the object by its name,
// or by its generateName as long as it has no name. A reason that is a 403 already is returned as it is.
func Forbidden(a *Attributes, reason error) error {
	if apierrors.IsForbidden(reason) {
		return reason
	}
	return apierrors.NewForbidden(a.Descriptor.GroupResource(), displayName(a), reason)
}

func displayName(a *Attributes) string {
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

// ObjectsOf returns the request's objects as T, and whether the new object is one.
func ObjectsOf[T resource.Object](a *Attributes) (obj, old T, ok bool) {
	obj, ok = a.Object.(T)
	old, _ = a.Old.(T)
	return obj, old, ok
}

// CheckName rejects a name that no object can have, as client-go does before it sends a request.
func CheckName(name string) error {
	if name == "" {
		return errors.New("resource name may not be empty")
	}
	if problems := path.IsValidPathSegmentName(name); len(problems) > 0 {
		return fmt.Errorf("invalid resource name %q: %v", name, problems)
	}
	return nil
}
