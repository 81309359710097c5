// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"slices"
	"strings"
)

// Select returns the controllers that selection names, in the order of all. An item is a name (run it), -name (do not run it), '*' (run all
// that no item excludes) or 'none' (run nothing; it must be the only item). An empty selection means '*'. The first item that names a
// controller wins. The suffix -controller is optional. Select reports all unknown names in one error.
func Select(all []Controller, selection []string) ([]Controller, error) {
	if len(selection) == 0 {
		selection = []string{"*"}
	}
	var names, unknown []string
	for _, c := range all {
		names = append(names, c.Name)
	}
	star := false
	verdict := map[string]bool{}
	for _, item := range selection {
		switch name := strings.TrimPrefix(item, "-"); {
		case item == "*":
			star = true
		case item == "none":
			if len(selection) > 1 {
				return nil, fmt.Errorf("select controllers: none cannot be combined with other items")
			}
			return nil, nil
		default:
			excluded := name != item
			if !slices.Contains(names, name) {
				name += "-controller"
			}
			if !slices.Contains(names, name) {
				unknown = append(unknown, fmt.Sprintf("%q", strings.TrimPrefix(item, "-")))
			} else if _, ok := verdict[name]; !ok {
				verdict[name] = !excluded
			}
		}
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("select controllers: unknown %s; there are %s", strings.Join(unknown, ", "), strings.Join(names, ", "))
	}
	var picked []Controller
	for _, c := range all {
		if run, ok := verdict[c.Name]; ok && run || !ok && star {
			picked = append(picked, c)
		}
	}
	return picked, nil
}
