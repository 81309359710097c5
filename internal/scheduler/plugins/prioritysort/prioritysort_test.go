// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package prioritysort_test

import (
	"testing"
	"time"

	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/plugins/prioritysort"
)

type entity struct {
	fwk.QueuedEntityInfo
	priority int32
	added    time.Time
}

func (e entity) GetPriority() int32      { return e.priority }
func (e entity) GetTimestamp() time.Time { return e.added }

func TestHighestThenOldest(t *testing.T) {
	plugin, err := prioritysort.New(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	sort, ok := plugin.(fwk.QueueSortPlugin)
	if !ok {
		t.Fatal("the plug-in does not sort")
	}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	high, old, young := entity{priority: 9, added: at.Add(time.Hour)}, entity{priority: 1, added: at},
		entity{priority: 1, added: at.Add(time.Second)}
	if !sort.Less(high, old) || sort.Less(old, high) || !sort.Less(old, young) || sort.Less(young, old) || sort.Less(old, old) {
		t.Error("want the highest priority first, and of equals the oldest")
	}
}
