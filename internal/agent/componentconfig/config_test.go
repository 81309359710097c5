// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package componentconfig

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type sample struct {
	Embedded `json:""`

	Mode  string          `json:"mode"`
	Gates map[string]bool `json:"featureGates,omitempty"`
	Part  section         `json:"part"`
	Other section         `json:"other"`
}

type section struct {
	All  bool     `json:"all"`
	List []string `json:"list"`
}

// Embedded has no fields of the configuration's own.
type Embedded struct {
	Kind string `json:"kind"`
}

func TestFieldsBySection(t *testing.T) {
	if diff := cmp.Diff([]string{"featureGates", "mode", "other", "part.all", "part.list"},
		Names(reflect.TypeFor[sample](), "part")); diff != "" {
		t.Error(diff)
	}
	have := &sample{Embedded: Embedded{Kind: "Sample"}, Mode: "a", Gates: map[string]bool{"AllBeta": true}, Part: section{List: []string{"x"}},
		Other: section{All: true}}
	set := Set(have, &sample{Mode: "a"}, "part")
	if diff := cmp.Diff(map[string]bool{"featureGates": true, "part.list": true, "other": true}, set); diff != "" {
		t.Error(diff)
	}
	fields := Sorted(Each(Without, "nobody asks", "part.list", "part.all"), Each(Honoured, "it is", "mode", "featureGates"),
		Each(Refused, "it would hurt", "other"))
	want := []string{"part.list is without effect: nobody asks",
		"featureGates are without effect beyond what is checked of this configuration"}
	if diff := cmp.Diff(want, Unheeded(fields, set)); diff != "" {
		t.Error(diff)
	}
	if errs := Unsupported(fields, set, nil); len(errs) != 1 || errs[0].Error() != "other is not supported: it would hurt" {
		t.Errorf("unsupported: %v", errs)
	}
	if errs := Unsupported(fields, set, map[string]bool{"other": true}); len(errs) != 0 {
		t.Errorf("unsupported: %v", errs)
	}
	if table := Table(fields); !strings.HasPrefix(table, "| `featureGates` | honoured | it is |\n| `mode` |") ||
		strings.Count(table, "\n") != 5 {
		t.Errorf("table: %s", table)
	}
}

func TestGates(t *testing.T) {
	errs := CheckGates(map[string]bool{
		"AllAlpha": true, "ContextualLogging": false, "NodeSwap": true, "GitRepoVolumeDriver": false, // these are fine
		"NodeLogQuery": false, "SeparateCacheWatchRPC": true, "None": false,
	})
	var got []string
	for _, err := range errs {
		got = append(got, err.Error())
	}
	want := []string{
		"cannot set feature gate NodeLogQuery to false, feature is locked to true",
		"unrecognized feature gate: None",
		"cannot set feature gate SeparateCacheWatchRPC to true, feature is locked to false",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !GateOn(nil, "NodeSwap") || GateOn(nil, "AllAlpha") || !GateOn(map[string]bool{"AllAlpha": true}, "AllAlpha") || GateOn(nil, "None") {
		t.Error("gates that are on")
	}
}
