// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package eventratelimit is the EventRateLimit plug-in: it limits the events per second of the whole server, of a
// namespace, of a user, or of one source about one object. It is off by default, and needs a configuration.
package eventratelimit

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/lru"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/settings"
	"github.com/mortise-dev/mortise/resource"
)

// Configuration is eventratelimit.admission.k8s.io/v1alpha1 Configuration.
type Configuration struct {
	metav1.TypeMeta
	Limits []Limit `json:"limits"`
}

// Limit bounds the events of one Type: QPS on average, and Burst in one moment.
type Limit struct {
	Type  Type  `json:"type"`
	QPS   int32 `json:"qps"`
	Burst int32 `json:"burst"`
	// CacheSize is the maximum number of cached namespaces, users or sources; 0: 4096.
	CacheSize int32 `json:"cacheSize,omitempty"`
}

// Type selects the key by which events are counted.
type Type string

// The types.
const (
	Server          Type = "Server"
	Namespace       Type = "Namespace"
	User            Type = "User"
	SourceAndObject Type = "SourceAndObject"
)

const cacheSize = 4096

// New makes the plug-in from a [Configuration].
func New(config io.Reader, clock flowcontrol.Clock) (admit.Plugin, error) {
	var c Configuration
	if config != nil {
		kind := schema.GroupVersionKind{Group: "eventratelimit.admission.k8s.io", Version: "v1alpha1", Kind: "Configuration"}
		if err := settings.Decode(config, kind, &c); err != nil {
			return nil, err
		}
	}
	if errs := check(c); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	p := &plugin{}
	for _, l := range c.Limits {
		p.limits = append(p.limits, newLimit(l, clock))
	}
	return p, nil
}

func check(c Configuration) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("limits")
	if len(c.Limits) == 0 {
		errs = append(errs, field.Invalid(path, c.Limits, "must not be empty"))
	}
	for i, l := range c.Limits {
		at := path.Index(i)
		switch l.Type {
		case Server, Namespace, User, SourceAndObject:
		default:
			errs = append(errs, field.NotSupported(at.Child("type"), l.Type, []Type{Server, Namespace, User, SourceAndObject}))
		}
		if l.Burst <= 0 {
			errs = append(errs, field.Invalid(at.Child("burst"), l.Burst, "must be positive"))
		}
		if l.QPS <= 0 {
			errs = append(errs, field.Invalid(at.Child("qps"), l.QPS, "must be positive"))
		}
		if l.Type != Server && l.CacheSize < 0 {
			errs = append(errs, field.Invalid(at.Child("cacheSize"), l.CacheSize, "must not be negative"))
		}
	}
	return errs
}

type plugin struct{ limits []*limit }

func (*plugin) Name() string { return "EventRateLimit" }

// Validate rejects an event that exceeds any of the limits. All limits count it.
func (p *plugin) Validate(_ context.Context, _ resource.Backend, a *admit.Attributes) error {
	if a.Operation != admit.Create && a.Operation != admit.Update || a.DryRun || a.Kind().GroupKind() != (schema.GroupKind{Kind: "Event"}) {
		return nil
	}
	var errs []error
	for _, l := range p.limits {
		key := l.key(a)
		if !l.bucket(key).TryAccept() {
			errs = append(errs, fmt.Errorf("limit reached on type %v for key %v", l.kind, key)) // upstream's words
		}
	}
	if err := errors.NewAggregate(errs); err != nil {
		return apierrors.NewTooManyRequestsError(err.Error())
	}
	return nil
}

// limit holds the token buckets of one limit. Buckets that were not used for long are dropped.
type limit struct {
	kind Type
	key  func(a *admit.Attributes) string
	make func() flowcontrol.RateLimiter

	mu      sync.Mutex
	buckets *lru.Cache
}

func newLimit(l Limit, clock flowcontrol.Clock) *limit {
	size := int(l.CacheSize)
	if size == 0 {
		size = cacheSize
	}
	out := &limit{kind: l.Type, make: func() flowcontrol.RateLimiter {
		return flowcontrol.NewTokenBucketRateLimiterWithClock(float32(l.QPS), int(l.Burst), clock)
	}}
	switch l.Type {
	case Namespace:
		out.key = func(a *admit.Attributes) string { return a.Namespace }
	case User:
		out.key = func(a *admit.Attributes) string {
			if a.User == nil {
				return ""
			}
			return a.User.GetName()
		}
	case SourceAndObject:
		out.key = sourceAndObject
	default:
		size, out.key = 1, func(*admit.Attributes) string { return "" }
	}
	out.buckets = lru.New(size)
	return out
}

func (l *limit) bucket(key string) flowcontrol.RateLimiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b, ok := l.buckets.Get(key); ok {
		return b.(flowcontrol.RateLimiter) //nolint:forcetypeassert // the cache holds nothing else
	}
	b := l.make()
	l.buckets.Add(key, b)
	return b
}

func sourceAndObject(a *admit.Attributes) string {
	event, _, ok := admit.ObjectsOf[*corev1.Event](a)
	if !ok {
		return ""
	}
	about := &event.InvolvedObject
	return strings.Join([]string{event.Source.Component, event.Source.Host, about.Kind, about.Namespace, about.Name, string(about.UID),
		about.APIVersion}, "")
}
