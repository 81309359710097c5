// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package imagegc selects the images that a node removes when their file system fills up, as kubelet does: the least recently used first,
// and never images in use or images that were pulled a moment ago.
//
// It is pure, except for a [Table], which records when each image was first seen and last used. A Table is not safe for concurrent use.
package imagegc

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Image is the current state of an image.
type Image struct {
	ID    string
	Bytes int64
	// InUse means that a container uses it; Pinned, that the runtime pins it.
	InUse, Pinned bool
}

// Settings are kubelet's settings.
type Settings struct {
	High, Low int           // percent of the file system
	MinAge    time.Duration // of images that may be removed
	MaxAge    time.Duration // after which unused images are removed in any case; zero: never
}

// Table records the use of images.
type Table struct {
	since  time.Time // start of the record
	images map[string]*record
}

type record struct {
	Image
	first, used time.Time
}

// New makes a table that begins now.
func New(now time.Time) *Table { return &Table{since: now, images: map[string]*record{}} }

// See records all existing images.
func (t *Table) See(now time.Time, images []Image) {
	present := map[string]bool{}
	for _, i := range images {
		present[i.ID] = true
		r := t.images[i.ID]
		if r == nil {
			r = &record{first: now}
			t.images[i.ID] = r
		}
		r.Image = i
		if i.InUse {
			r.used = now
		}
	}
	for id := range t.images {
		if !present[id] {
			delete(t.images, id)
		}
	}
}

// unused returns the images that may be removed, the least recently used first.
func (t *Table) unused() []*record {
	var out []*record
	for _, r := range t.images {
		if !r.InUse && !r.Pinned {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *record) int {
		return cmp.Or(a.used.Compare(b.used), a.first.Compare(b.first), strings.Compare(a.ID, b.ID))
	})
	return out
}

// Old returns the images that have been unused for longer than the maximum age.
func (t *Table) Old(now time.Time, s Settings) []Image {
	var out []Image
	if s.MaxAge <= 0 || now.Sub(t.since) < s.MaxAge {
		return nil // the previous state is unknown
	}
	for _, r := range t.unused() {
		if now.Sub(later(r.used, r.first)) > s.MaxAge {
			out = append(out, r.Image)
		}
	}
	return out
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Need returns the number of bytes to free, given the size and the free bytes of a file system.
func Need(s Settings, capacity, available int64) int64 {
	if capacity <= 0 {
		return 0
	}
	available = min(available, capacity)
	if used := 100 - int(available*100/capacity); used < s.High {
		return 0
	}
	return max(capacity*int64(100-s.Low)/100-available, 0)
}

// Free returns the images to remove in order to free the given number of bytes, or all that may be removed; with any age if minimum ages do
// not apply.
func (t *Table) Free(now time.Time, need int64, minAge time.Duration) (images []Image, bytes int64) {
	for _, r := range t.unused() {
		if bytes >= need {
			break
		}
		// Keep images that were used or pulled this very moment.
		if !r.used.Before(now) || now.Sub(r.first) < minAge {
			continue
		}
		images = append(images, r.Image)
		bytes += r.Bytes
	}
	return images, bytes
}
