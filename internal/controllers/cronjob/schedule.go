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

// due is the last time up to now at which a job ought to have started since the one before; zero when there is none.
// Missed counts the times since then, as if they were evenly spaced: it is exact up to a hundred or so, which is all
// that is asked of it.
//
// It does not step through all times since a CronJob was last seen to, which may be years ago: it leaps to one interval
// before now, and steps from there. When times are uneven (weekdays only) the leap may land too far; then it goes back to
// the last time known to be before now.
func (t timetable) due(cj *batchv1.CronJob, now time.Time) (last time.Time, missed int64, err error) {
	since := begin(cj)
	if d := cj.Spec.StartingDeadlineSeconds; d != nil {
		if earliest := now.Add(-time.Duration(*d) * time.Second); earliest.After(since) {
			since = earliest
		}
	}
	return t.last(since, now)
}

// begin is when starts of a CronJob have been seen to until: its last start, or when it was made.
func begin(cj *batchv1.CronJob) time.Time {
	if l := cj.Status.LastScheduleTime; l != nil {
		return l.Time
	}
	return cj.CreationTimestamp.Time
}

// last is the last time after since and up to now.
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

// slack is added to the time of the next look, so that it comes after the minute has turned.
const slack = 100 * time.Millisecond

// until is how long after now the next look is due. It is reckoned from the last start that was due, since "@every 1h" counts
// from there and not from whenever one happens to look.
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
