// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package translations keeps kubectl from loading its message catalogues when a process starts: a package variable of k8s.io/kubectl would
// do that, in the server too, for 15 ms and 4 MB. The package has the only init function of this project (see
// docs/decisions/0003-kubectl-in-the-binary.md): the hook must be set before that variable is initialized, and Go initializes this package
// first because it has fewer imports.
package translations

import "k8s.io/kubectl/pkg/util/i18n"

func init() {
	i18n.SetLoadTranslationsFunc(func() error { return nil })
}
