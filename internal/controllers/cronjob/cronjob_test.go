// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cronjob

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{}, Controller())
}

func TestDue(t *testing.T) {
	at := func(s string) time.Time {
		v, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct {
		schedule, zone, since, now, want string
		missed                           int64
	}{
		{"*/5 * * * *", "", "2024-01-01T00:00:00Z", "2024-01-01T00:04:59Z", "", 0},
		{"*/5 * * * *", "", "2024-01-01T00:00:00Z", "2024-01-01T00:05:00Z", "2024-01-01T00:05:00Z", 1},
		{"*/5 * * * *", "", "2020-01-01T00:00:00Z", "2024-01-01T00:07:00Z", "2024-01-01T00:05:00Z", 420769},
		{"30 6 * * 1-5", "", "2024-01-04T07:00:00Z", "2024-01-08T06:29:00Z", "2024-01-05T06:30:00Z", 1},
		{"30 6 * * 1-5", "", "2024-01-03T07:00:00Z", "2024-01-07T12:00:00Z", "2024-01-05T06:30:00Z", 4},
		{"0 8 * * *", "Europe/Berlin", "2024-07-01T00:00:00Z", "2024-07-01T06:00:00Z", "2024-07-01T06:00:00Z", 1},
	} {
		cj := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(at(c.since))},
			Spec: batchv1.CronJobSpec{Schedule: c.schedule}}
		if c.zone != "" {
			cj.Spec.TimeZone = &c.zone
		}
		table, err := parse(cj)
		if err != nil {
			t.Fatal(err)
		}
		got, missed, err := table.due(cj, at(c.now))
		if err != nil {
			t.Fatal(err)
		}
		if c.want == "" && !got.IsZero() || c.want != "" && !got.Equal(at(c.want)) || missed != c.missed {
			t.Errorf("%s since %s at %s: got %v, %d missed, want %s, %d", c.schedule, c.since, c.now, got, missed, c.want, c.missed)
		}
	}
}

func TestNextLookIsReckonedFromTheLastStart(t *testing.T) {
	made := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		schedule  string
		now, want time.Duration
	}{
		{"@every 1h", 30 * time.Minute, 30*time.Minute + slack},             // not an hour from whenever one looks
		{"@every 1h", 5*time.Hour + 50*time.Minute, 10*time.Minute + slack}, // missed ones or not
		{"*/5 * * * *", 4 * time.Minute, time.Minute + slack},
		{"*/5 * * * *", 5 * time.Minute, 5*time.Minute + slack},
	} {
		cj := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(made)},
			Spec: batchv1.CronJobSpec{Schedule: c.schedule}}
		table, err := parse(cj)
		if err != nil {
			t.Fatal(err)
		}
		if got := table.until(cj, made.Add(c.now)); got != c.want {
			t.Errorf("%s, made %v ago: look again in %v, want %v", c.schedule, c.now, got, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("*/5 * * * *", "")
	f.Add("TZ=0 * * * *", "Europe/Berlin")
	f.Fuzz(func(t *testing.T, schedule, zone string) {
		table, err := parse(&batchv1.CronJob{Spec: batchv1.CronJobSpec{Schedule: schedule, TimeZone: &zone}})
		if err == nil && table.Schedule == nil {
			t.Fatal("neither a schedule nor an error")
		}
	})
}
