// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cronjob

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
)

// timetable is a parsed schedule.
type timetable struct{ cron.Schedule }

// parse reads the schedule of a CronJob, in its time zone. The parser is known to panic on some texts.
func parse(cj *batchv1.CronJob) (t timetable, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("parse schedule %q: %v", cj.Spec.Schedule, v)
		}
	}()
	text := cj.Spec.Schedule
	if zone := cj.Spec.TimeZone; zone != nil && !strings.Contains(text, "TZ") {
		if _, err := time.LoadLocation(*zone); err == nil {
			text = fmt.Sprintf("TZ=%s %s", *zone, text)
		}
	}
	s, err := cron.ParseStandard(text)
	return timetable{s}, err
}

// due returns the last time, up to now, at which a job should have started since the previous start; zero if there is none. missed counts
// the due times since then as if they were evenly spaced: it is exact up to a hundred or so, and no caller needs more.
//
// due does not step through all times since the previous start, which may be years ago: it jumps to one interval before now, and steps from
// there. With uneven times (weekdays only) the jump may land too far; due then goes back to the last time known to be before now.
func (t timetable) due(cj *batchv1.CronJob, now time.Time) (last time.Time, missed int64, err error) {
	since := begin(cj)
	if d := cj.Spec.StartingDeadlineSeconds; d != nil {
		if earliest := now.Add(-time.Duration(*d) * time.Second); earliest.After(since) {
			since = earliest
		}
	}
	return t.last(since, now)
}

// begin returns the time up to which the CronJob's starts are handled: its last start, or its creation.
func begin(cj *batchv1.CronJob) time.Time {
	if l := cj.Status.LastScheduleTime; l != nil {
		return l.Time
	}
	return cj.CreationTimestamp.Time
}

// last returns the last due time after since and up to now.
func (t timetable) last(since, now time.Time) (last time.Time, missed int64, err error) {
	first := t.Next(since)
	if first.IsZero() || first.After(now) {
		return time.Time{}, 0, nil
	}
	second := t.Next(first)
	if second.IsZero() || second.After(now) {
		return first, 1, nil
	}
	interval := int64(second.Sub(first).Round(time.Second).Seconds())
	if interval < 1 {
		return time.Time{}, 0, errors.New("time difference between two schedules is less than 1 second")
	}
	missed = int64(now.Sub(first).Seconds())/interval + 1
	last = first
	leap := first.Add(time.Duration((missed-2)*interval) * time.Second)
	for at := t.Next(leap); !at.IsZero() && !at.After(now); at = t.Next(at) {
		last = at
	}
	if last.Equal(first) {
		for at := second; !at.IsZero() && !at.After(now); at = t.Next(at) {
			last = at
		}
	}
	return last, missed, nil
}

// slack delays the next sync a little, so that it comes after the minute has turned.
const slack = 100 * time.Millisecond

// until returns how long after now the next start is due. It counts from the last start that was due: "@every 1h" counts from there, not
// from the time of the sync.
func (t timetable) until(cj *batchv1.CronJob, now time.Time) time.Duration {
	from, missed, err := t.last(begin(cj), now)
	switch {
	case err != nil:
		from = now
	case from.IsZero() && missed == 0:
		from = begin(cj)
	}
	next := t.Next(from)
	if next.IsZero() {
		return 0
	}
	return max(next.Add(slack).Sub(now), slack)
}
