// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcequota

import (
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	quotaconfig "k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota/install"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota/validation"
)

// readConfig reads the resources that may not be used without a quota that covers them.
func readConfig(r io.Reader) ([]quotaconfig.LimitedResource, error) {
	if r == nil {
		return nil, nil
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	obj, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), data)
	if err != nil {
		return nil, fmt.Errorf("decode configuration: %w", err)
	}
	c, ok := obj.(*quotaconfig.Configuration)
	if !ok {
		return nil, fmt.Errorf("unexpected type: %T", obj) // upstream's words
	}
	if errs := validation.ValidateConfiguration(c); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	return c.LimitedResources, nil
}
