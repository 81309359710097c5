// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"path/filepath"
	"testing"

	"github.com/mortise-dev/mortise/store"
)

// TestEngines: each engine opens by what its entry in the table says of it, and keeps what it says it keeps.
func TestEngines(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range Engines() {
		t.Run(e.Name, func(t *testing.T) {
			if seen[e.Name] {
				t.Error("another engine has this name")
			}
			seen[e.Name] = true
			if e.Shared {
				return // test/etcd has what this engine needs
			}
			var o EngineOptions
			if e.InDataDir {
				o.Dir = filepath.Join(t.TempDir(), "store")
			}
			open := func() store.Engine {
				engine, err := e.Open(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				return engine
			}
			shut := func(engine store.Engine) {
				if err := engine.Close(); err != nil {
					t.Error(err)
				}
			}
			engine := open()
			if _, _, err := engine.Commit(t.Context(), store.Op{Key: "/registry/a", Value: []byte("v"), Expect: store.Any}); err != nil {
				t.Fatal(err)
			}
			shut(engine)
			engine = open()
			defer shut(engine)
			r, _, err := engine.Get(t.Context(), "/registry/a")
			if err != nil || (r != nil) != e.Lasting {
				t.Errorf("after a restart the store holds %v, %v; lasting is %v", r, err, e.Lasting)
			}
		})
	}
}
