// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podnodeselector_test

import (
	"strings"
	"testing"

	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/podnodeselector"
)

func TestScenarios(t *testing.T) {
	p, err := podnodeselector.New(strings.NewReader(
		"podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: zone=a, tight: 'env=test,zone=a', free: ''}"))
	if err != nil {
		t.Fatal(err)
	}
	admittest.Run(t, p)
}

// TestConfiguration: none is fine, a bad one is refused.
func TestConfiguration(t *testing.T) {
	if _, err := podnodeselector.New(nil); err != nil {
		t.Errorf("without configuration: %v", err)
	}
	for in, want := range map[string]string{
		"podNodeSelectorPluginConfig: {a: 'b!'}": "podNodeSelectorPluginConfig[a]",
		"podNodeSelectorPluginConfig: [a]":       "cannot unmarshal",
		"other: 1":                               "unknown field",
		"":                                       "empty",
	} {
		if _, err := podnodeselector.New(strings.NewReader(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}

func FuzzNew(f *testing.F) {
	f.Add("podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: zone=a}")
	f.Fuzz(func(t *testing.T, in string) {
		if p, err := podnodeselector.New(strings.NewReader(in)); (p == nil) != (err != nil) {
			t.Errorf("%q: %v and %v", in, p, err)
		}
	})
}
