// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/trace"
)

// A node with a ledger of its own lists its plug-ins, and the calls for a pod. Others have no such page.
func TestExtensions(t *testing.T) {
	ledger, ref := extension.NewLedger(clock.RealClock{}), extension.Ref{Point: extension.DevicePlugin, Name: "example.com/dev"}
	ledger.Register(ref, "/d.sock")
	ctx := extension.Calling(extension.For(t.Context(), "ns", "p"), "Allocate")
	if err := ledger.Call(ctx, ref, extension.Policy{}, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	f := newFixture(t)
	if code, _ := f.get(t, trace.NodeRoute); code != 404 {
		t.Errorf("without a ledger: %d", code)
	}
	f.host = start(t, f.node, f.ca, Options{Extensions: ledger})
	f.config = f.ca.config(t, f.host, "apiserver", "system:masters")
	var err error
	if f.client, err = rest.HTTPClientFor(f.config); err != nil {
		t.Fatal(err)
	}
	for query, calls := range map[string]int{"": 0, "?namespace=ns&name=p": 1, "?namespace=ns&name=q": 0} {
		code, text := f.get(t, trace.NodeRoute+query)
		var got trace.OnNode
		if err := json.Unmarshal([]byte(text), &got); code != 200 || err != nil {
			t.Fatalf("%d %s %v", code, text, err)
		}
		if len(got.Extensions) != 1 || got.Extensions[0].Name != ref.Name || len(got.Calls) != calls {
			t.Errorf("%q: %s", query, text)
		}
	}
}
