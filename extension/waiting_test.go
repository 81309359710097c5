// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package extension

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"
)

// TestWaiting tells of what waits for extensions that drive themselves, listed or not.
func TestWaiting(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	l := NewLedger(clocktesting.NewFakeClock(now))
	listed, gone, failed := Ref{Initializer, "a.example.com"}, Ref{Initializer, "gone.example.com"}, Ref{Initializer, "failed.example.com"}
	l.Register(listed, "InitializerConfiguration/c")
	l.Book(listed, 2*time.Second, nil)
	l.Book(failed, time.Second, errors.New("deadline passed"))
	old, young := Waiting{Object: "pods default/old", Since: now.Add(-time.Minute)}, Waiting{Object: "pods default/young", Since: now}
	l.Waits(func() map[Ref][]Waiting {
		many := make([]Waiting, MostWaiting+7)
		for i := range many {
			many[i] = Waiting{Object: fmt.Sprint(i), Since: now.Add(time.Duration(i))}
		}
		return map[Ref][]Waiting{listed: {young, old}, gone: many, failed: {young}}
	})
	rows := map[string]Row{}
	for _, e := range l.Snapshot() {
		rows[e.Name] = e.Row()
	}
	if r := rows[listed.Name]; r.State != WaitedFor || r.Calls != 1 || r.Waits != 2 || cmp.Diff([]Waiting{old, young}, r.Waiting) != "" {
		t.Errorf("listed: %+v", r)
	}
	if r := rows[gone.Name]; r.State != WaitedFor || r.Waits != MostWaiting+7 || len(r.Waiting) != MostWaiting {
		t.Errorf("not listed: %+v", r)
	}
	if r := rows[failed.Name]; r.State != Failing || r.Failures != 1 || r.LastError != "deadline passed" || r.Waits != 1 {
		t.Errorf("failed: %+v", r)
	}
}
