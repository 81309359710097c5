// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"testing"

	"github.com/anishathalye/porcupine"
)

// TestSoakSeesFaults gives the model histories that a wrong server would leave.
func TestSoakSeesFaults(t *testing.T) {
	did := func(verb, value string, expect, version int64) action {
		return action{verb: verb, value: value, expect: expect, result: result{done: true, found: register{true, value, version}}}
	}
	read := func(value string, version int64) action { return did("get", value, 0, version) }
	none := action{verb: "get", result: result{absent: true}}
	lost := action{verb: "merge", value: "b", result: result{unknown: true}}
	for name, c := range map[string]struct {
		history []action
		want    porcupine.CheckResult
	}{
		"all is well": {[]action{did("create", "a", 0, 5), did("update", "b", 5, 6), read("b", 6), did("delete", "", 0, 0),
			none}, porcupine.Ok},
		"acknowledged and lost": {[]action{did("create", "a", 0, 5), none}, porcupine.Illegal},
		"an older state":        {[]action{did("create", "a", 0, 5), did("merge", "b", 0, 6), read("a", 5)}, porcupine.Illegal},
		"two create one name":   {[]action{did("create", "a", 0, 5), did("create", "b", 0, 6)}, porcupine.Illegal},
		"two update one revision": {[]action{did("create", "a", 0, 5), did("update", "b", 5, 6), did("update", "c", 5, 7)},
			porcupine.Illegal},
		"a revision goes back":    {[]action{did("create", "a", 0, 5), did("merge", "b", 0, 4)}, porcupine.Illegal},
		"deleted and back":        {[]action{did("create", "a", 0, 5), did("delete", "", 0, 0), read("a", 5)}, porcupine.Illegal},
		"unknown, and done":       {[]action{did("create", "a", 0, 5), lost, read("b", 6)}, porcupine.Ok},
		"unknown, and not done":   {[]action{did("create", "a", 0, 5), lost, read("a", 5)}, porcupine.Ok},
		"unknown, and done later": {[]action{did("create", "a", 0, 5), lost, read("a", 5), read("b", 6)}, porcupine.Illegal},
		"refused for a reason not there": {[]action{did("create", "a", 0, 5), {verb: "update", expect: 5, result: result{stale: true}}},
			porcupine.Illegal},
	} {
		var ops []porcupine.Operation
		for i, a := range c.history {
			ops = append(ops, porcupine.Operation{Input: a, Call: int64(2 * i), Output: a.result, Return: int64(2*i + 1)})
		}
		if got := porcupine.CheckOperationsTimeout(registerModel(register{}), ops, 0); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
