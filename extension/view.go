// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package extension

import "time"

// View is a server's report of its extensions, as JSON.
type View struct {
	Extensions []Row         `json:"extensions"`
	Points     []Description `json:"points"`
	// Effects are those of [Effects].
	Effects map[Point]string `json:"effects"`
}

// Row is an [Entry] in words: times in RFC 3339, durations in seconds.
type Row struct {
	Point      Point   `json:"point"`
	Name       string  `json:"name"`
	Configured string  `json:"configured,omitempty"`
	State      State   `json:"state"`
	Calls      int64   `json:"calls"`
	Failures   int64   `json:"failures"`
	Refused    int64   `json:"refused"`
	P50        float64 `json:"p50Seconds"`
	P99        float64 `json:"p99Seconds"`
	Longest    float64 `json:"longestSeconds"`
	LastError  string  `json:"lastError,omitempty"`
	// LastFailure and CertificateEnds are empty if there was none, or none was seen.
	LastFailure     string `json:"lastFailure,omitempty"`
	CertificateEnds string `json:"certificateEnds,omitempty"`
	// Waits is how many objects wait for the extension; Waiting are the oldest of them.
	Waits   int       `json:"waits,omitempty"`
	Waiting []Waiting `json:"waiting,omitempty"`
	// Affects is what the extension's death affects, by its configuration; empty: see the effects of its point.
	Affects []Affected `json:"affects,omitempty"`
}

// Row is the entry in words.
func (e *Entry) Row() Row {
	r := Row{
		Point: e.Point, Name: e.Name, Configured: e.Where, State: e.State, Calls: e.Calls, Failures: e.Failures, Refused: e.Refused,
		P50: e.P50.Seconds(), P99: e.P99.Seconds(), Longest: e.Longest.Seconds(), LastError: e.LastError,
		Waits: e.Waits, Waiting: e.Waiting,
	}
	if !e.LastFailure.IsZero() {
		r.LastFailure = e.LastFailure.UTC().Format(time.RFC3339)
	}
	if !e.Certificate.IsZero() {
		r.CertificateEnds = e.Certificate.UTC().Format(time.RFC3339)
	}
	return r
}
