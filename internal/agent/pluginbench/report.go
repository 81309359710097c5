// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pluginbench

import (
	"fmt"
	"time"

	"github.com/mortise-dev/mortise/extension"
)

// Result is what came of a check.
type Result string

// The results. Only Fail means that the plug-in does not conform.
const (
	OK   Result = "ok"
	Warn Result = "warn"
	Fail Result = "fail"
	Skip Result = "skip"
)

// Check is one line of the report.
type Check struct {
	Name    string
	Result  Result
	What    string        // what was found
	Kubelet string        // what kubelet says in this case; empty: nothing
	Took    time.Duration // of the plug-in's part
}

// Calls are those of one extension point.
type Calls struct {
	Name              string
	Calls, Failures   int64
	P50, P99, Longest time.Duration
}

// Report is what a bench has found.
type Report struct {
	Protocol Protocol
	Name     string // of the resource, the driver or the provider
	Checks   []Check
	Calls    []Calls
}

// Failed reports whether a check has failed.
func (r *Report) Failed() bool {
	for _, c := range r.Checks {
		if c.Result == Fail {
			return true
		}
	}
	return false
}

func (r *Report) add(name string, f finding, took time.Duration) {
	if f.result == Skip {
		took = 0
	}
	r.Checks = append(r.Checks, Check{Name: name, Result: f.result, What: f.what, Kubelet: f.kubelet, Took: took})
}

func (r *Report) calls(entries []extension.Entry) {
	for _, e := range entries {
		r.Calls = append(r.Calls, Calls{
			Name: fmt.Sprintf("%s %s", e.Point, e.Name), Calls: e.Calls, Failures: e.Failures, P50: e.P50, P99: e.P99, Longest: e.Longest,
		})
	}
}

// finding is what a check has found.
type finding struct {
	result        Result
	what, kubelet string
	took          time.Duration // 0: all of the check
}

func ok(format string, args ...any) finding {
	return finding{result: OK, what: fmt.Sprintf(format, args...)}
}
func warn(format string, args ...any) finding {
	return finding{result: Warn, what: fmt.Sprintf(format, args...)}
}
func skip(format string, args ...any) finding {
	return finding{result: Skip, what: fmt.Sprintf(format, args...)}
}
func fail(format string, args ...any) finding {
	return finding{result: Fail, what: fmt.Sprintf(format, args...)}
}

// kubeletSays adds kubelet's words.
func (f finding) kubeletSays(text string) finding {
	f.kubelet = text
	return f
}
