// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"

	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/initializers"
	"github.com/mortise-dev/mortise/resource"
)

// initializing is the kind and the plug-in that let new objects wait for initializers; both are empty if that is disabled.
type initializing struct {
	kinds   []*resource.Descriptor
	plugins admit.Chain // comes after all others
}

func makeInitializers(c *settings) (initializing, error) {
	if !c.APIServer.Admission.Initializers {
		return initializing{}, nil
	}
	kind, err := initializers.Kind()
	if err != nil {
		return initializing{}, fmt.Errorf("make initializers: %w", err)
	}
	return initializing{[]*resource.Descriptor{kind}, admit.Chain{initializers.New(clock.RealClock{})}}, nil
}
