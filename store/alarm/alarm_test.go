// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package alarm_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mortise-dev/mortise/store/alarm"
)

// TestAlarm rings at the soonest time that was set, once, and again only when set again.
func TestAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var rang []time.Duration
		a := alarm.New(alarm.System{}, func() { rang = append(rang, time.Since(began)) })
		a.Set(time.Time{})
		a.Set(began.Add(time.Minute))
		a.Set(began.Add(time.Second))
		a.Set(began.Add(time.Hour))
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if len(rang) != 1 || rang[0] != time.Second {
			t.Fatalf("rang at %v", rang)
		}
		a.Set(began) // a time that is past
		synctest.Wait()
		if len(rang) != 2 || rang[1] != 2*time.Minute {
			t.Fatalf("rang at %v", rang)
		}
		a.Set(time.Now().Add(time.Second))
		a.Stop()
		a.Set(time.Now().Add(time.Second))
		<-time.After(time.Minute)
		if len(rang) != 2 {
			t.Errorf("rang after it was stopped: %v", rang)
		}
	})
}
