// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package imagegc selects the images that a node removes when their file system fills up, as kubelet does: the least
// recently used first, none that is in use, and none that was pulled a moment ago.
//
// It is pure but for a [Table], which records when each image was first seen and last used. It is not safe for concurrent
// use.
package imagegc

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Image is an image as it is now.
type Image struct {
	ID    string
	Bytes int64
	// InUse says that a container is made from it; Pinned, that the runtime wants it to stay.
	InUse, Pinned bool
}

// Settings are kubelet's.
type Settings struct {
	High, Low int           // hundredths of the file system
	MinAge    time.Duration // of images that are removed
	MaxAge    time.Duration // after which images that are not used go in any case; zero: never
}

// Table remembers images.
type Table struct {
	since  time.Time // images are watched
	images map[string]*record
}

type record struct {
	Image
	first, used time.Time
}

// New makes a table that begins to watch now.
func New(now time.Time) *Table { return &Table{since: now, images: map[string]*record{}} }

// See takes note of all images that there are.
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

// unused are the images that may go, the one that was not used for longest first.
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

// Old are the images that have not been used for longer than the greatest age.
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

// Need is how many bytes must be freed of a file system of so many bytes, of which so many are free.
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

// Free are the images to remove so that as many bytes are freed as are needed, or all that may go; with any age where
// minimum ages do not hold.
func (t *Table) Free(now time.Time, need int64, minAge time.Duration) (images []Image, bytes int64) {
	for _, r := range t.unused() {
		if bytes >= need {
			break
		}
		// What was used this very moment, or came a moment ago, stays.
		if !r.used.Before(now) || now.Sub(r.first) < minAge {
			continue
		}
		images = append(images, r.Image)
		bytes += r.Bytes
	}
	return images, bytes
}
