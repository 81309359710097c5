// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"math"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol/fair"
	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
)

// The cost of requests in seats, as upstream estimates it.
const (
	bytesPerSeat    = 100_000   // of objects that a response holds in memory
	streamedBytes   = 1_000_000 // maximum memory of a response from the cache, which is sent in parts
	maxObject       = 1_500_000 // of objects of unknown size
	maxReadSeats    = 100
	maxWriteSeats   = 10
	watchersPerSeat = 10.0
	perWatcher      = 5 * time.Millisecond // how long a write holds a seat for each of its watchers
)

// Estimate estimates how many seats a request takes, and for how long after its end.
func (c *Controller) Estimate(r *http.Request, info *requestinfo.Info, s *Schema) fair.Work {
	switch info.Verb {
	case "list", "watch":
		return fair.Work{Initial: c.readSeats(r, info, s)}
	case "create", "update", "patch", "delete":
		return c.writeWork(info, s)
	}
	return fair.Work{Initial: 1}
}

func (c *Controller) readSeats(r *http.Request, info *requestinfo.Info, s *Schema) int {
	most := s.maxSeats
	if most == 0 || most > maxReadSeats {
		most = maxReadSeats
	}
	var o metav1.ListOptions
	if r.URL.RawQuery != "" {
		q := r.URL.Query()
		if metav1.Convert_url_Values_To_v1_ListOptions(&q, &o, nil) != nil {
			return most // the request will be rejected
		}
	}
	watch := info.Verb == "watch"
	if watch && (o.SendInitialEvents == nil || !*o.SendInitialEvents) && o.ResourceVersion != "" && o.ResourceVersion != "0" {
		return 1 // the watch begins without initial objects
	}
	if c.o.Stored == nil {
		return 1
	}
	count, size, ok := c.sizes.of(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, c.o.Now(), c.o.Stored)
	if !ok {
		return 1
	}
	if size <= 0 {
		size = maxObject
	}
	cached := watch || fromCache(&o)
	loaded := count
	if o.Limit > 0 {
		loaded = min(loaded, o.Limit)
	}
	switch {
	case info.Name != "":
		loaded = 1
	case !cached && (o.FieldSelector != "" || o.LabelSelector != ""):
		loaded = max(loaded, count/2)
	}
	bytes := loaded * size
	if cached {
		bytes = min(bytes, streamedBytes)
	}
	return max(1, min(int(math.Ceil(float64(bytes)/bytesPerSeat)), most))
}

// fromCache reports whether upstream would answer a list from its cache.
func fromCache(o *metav1.ListOptions) bool {
	switch o.ResourceVersionMatch {
	case metav1.ResourceVersionMatchNotOlderThan:
		return true
	case "":
		return o.Continue == "" && (o.Limit <= 0 || o.ResourceVersion == "" || o.ResourceVersion == "0")
	}
	return false
}

func (c *Controller) writeWork(info *requestinfo.Info, s *Schema) fair.Work {
	w := fair.Work{Initial: 1}
	if info.Resource == "serviceaccounts" && info.Subresource == "token" {
		return w // no watcher receives the change
	}
	n := c.watchers(info)
	l := s.level
	l.mu.Lock()
	s.flow.Watchers.Observe(float64(n))
	l.mu.Unlock()
	if n < watchersPerSeat {
		return w
	}
	most := s.maxSeats
	if most == 0 || most > maxWriteSeats {
		most = maxWriteSeats
	}
	seats := int(math.Ceil(float64(n) / watchersPerSeat))
	work := fair.Times(float64(seats), perWatcher)
	w.Final = min(seats, most)
	w.Linger = work.Per(w.Final)
	return w
}

// fresh is how long the number and size of a resource's objects are cached.
const fresh = time.Second

// sizes caches the number and size of objects by resource.
type sizes struct {
	mu   sync.Mutex
	seen map[schema.GroupResource]sized
}

type sized struct {
	at          time.Time
	count, size int64
	ok          bool
}

func (s *sizes) of(r schema.GroupResource, now time.Time, ask func(schema.GroupResource) (count, size int64, ok bool)) (count, size int64,
	ok bool) {
	s.mu.Lock()
	was, known := s.seen[r]
	s.mu.Unlock()
	if known && now.Sub(was.at) < fresh {
		return was.count, was.size, was.ok
	}
	is := sized{at: now}
	if is.count, is.size, is.ok = ask(r); !is.ok {
		return 0, 0, false // not cached: clients can invent resources
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[schema.GroupResource]sized{}
	}
	s.seen[r] = is
	return is.count, is.size, is.ok
}
