// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package namespaceautoprovision_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/namespaceautoprovision"
	"github.com/mortise-dev/mortise/resource"
)

func TestScenarios(t *testing.T) { admittest.Run(t, namespaceautoprovision.New()) }

// without is a store without namespaces, in which creating one ends with an error.
type without struct {
	resource.Backend
	refuse error
}

func (without) Get(_ context.Context, r schema.GroupResource, _, name string) (resource.Object, error) {
	return nil, apierrors.NewNotFound(r, name)
}

func (w without) Create(context.Context, schema.GroupResource, resource.Object, bool) (resource.Object, error) {
	return nil, w.refuse
}

// TestNamespaceIsNotCreated: a request goes on when another one created the namespace meanwhile, and is refused when the
// namespace cannot be created.
func TestNamespaceIsNotCreated(t *testing.T) {
	for _, c := range []struct {
		refuse error
		want   string
	}{
		{apierrors.NewAlreadyExists(schema.GroupResource{Resource: "namespaces"}, "ns"), ""},
		{errors.New("disk full"), `configmaps "c" is forbidden: disk full`},
	} {
		a := &admit.Attributes{
			Operation: admit.Create, Descriptor: &resource.Descriptor{Resource: "configmaps", Kind: "ConfigMap", Namespaced: true}, Version: "v1",
			Namespace: "ns", Name: "c", Object: &corev1.ConfigMap{},
		}
		err := namespaceautoprovision.New().(admit.Mutator).Mutate(t.Context(), without{refuse: c.refuse}, a)
		if c.want == "" && err != nil || c.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: %v, want %q", c.refuse, err, c.want)
		}
	}
}
