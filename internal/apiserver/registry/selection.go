// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// Selection is which objects a list or watch is about, and from when.
type Selection struct {
	metav1.ListOptions
	Labels      labels.Selector // nil: all
	Fields      fields.Selector // nil: all
	Name        string          // the only name that can match; empty: any
	Initialized bool            // those alone that wait for no initializer
	// VersionFields are the fields of objects where the version has others than the kind; Foresee has it make them of many at once.
	VersionFields func(hub resource.Object) (fields.Set, error)
	Foresee       func([]*store.Record) error
}

// All reports whether no selector excludes objects.
func (s *Selection) All() bool { return s.Labels == nil && s.Fields == nil }

// Picks reports whether a record is selected. It decodes only if necessary.
func (s *Selection) Picks(k *Kind, rec *store.Record) (bool, error) {
	if s.Initialized {
		if h, err := held(k, rec); err != nil || h {
			return false, err
		}
	}
	if s.All() && s.Name == "" {
		return true, nil
	}
	read := k.Listed
	if s.Watch {
		read = k.Cached // other watchers want them too
	}
	f, err := read(rec)
	if err != nil {
		return false, err
	}
	if s.Name != "" && f.Hub.GetName() != s.Name {
		return false, nil
	}
	return s.matches(f)
}

// matches reports whether an object is selected.
func (s *Selection) matches(f *watchcache.CachedObject) (bool, error) {
	if s.Labels != nil && !s.Labels.Matches(labels.Set(f.Hub.GetLabels())) {
		return false, nil
	}
	if s.Fields == nil {
		return true, nil
	}
	if s.VersionFields == nil {
		return s.Fields.Matches(f.Fields()), nil
	}
	set, err := s.VersionFields(f.Hub)
	if err != nil {
		return false, err
	}
	set["metadata.name"] = f.Hub.GetName()
	if f.Kind.Namespaced {
		set["metadata.namespace"] = f.Hub.GetNamespace()
	}
	return s.Fields.Matches(set), nil
}

// ParseResourceVersion reads a resourceVersion; 0 is unset or any.
func ParseResourceVersion(s string) (int64, error) {
	if s == "" || s == "0" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resourceVersion: Invalid value: %q: %w", s, err)
	}
	return int64(min(n, 1<<63-1)), nil
}
