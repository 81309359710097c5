// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package eventratelimit_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/eventratelimit"
	"github.com/mortise-dev/mortise/resource"
)

const head = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n"

// say is one event: by whom, where, about what; wait is how long it comes after the one before.
type say struct {
	user, namespace, source, object string
	dryRun, other                   bool
	wait                            time.Duration
	want                            string // the refusal; empty: it is let through
}

func TestLimits(t *testing.T) {
	refused := func(kind, key string) string {
		return "Too many requests: limit reached on type " + kind + " for key " + key
	}
	for name, c := range map[string]struct {
		limits string
		said   []say
	}{
		"server": {"{type: Server, qps: 1, burst: 2}", []say{
			{}, {namespace: "a"}, {user: "u", want: refused("Server", "")}, {dryRun: true}, {other: true}, {wait: time.Second},
			{want: refused("Server", "")},
		}},
		"namespace": {"{type: Namespace, qps: 1, burst: 1}", []say{
			{namespace: "a"}, {namespace: "b"}, {namespace: "a", want: refused("Namespace", "a")}, {namespace: "a", wait: time.Second},
		}},
		"user": {"{type: User, qps: 1, burst: 1}", []say{{user: "a"}, {user: "b"}, {user: "a", want: refused("User", "a")}}},
		"source and object": {"{type: SourceAndObject, qps: 1, burst: 1}", []say{
			{source: "s", object: "o"}, {source: "s", object: "p"}, {source: "t", object: "o"},
			{source: "s", object: "o", want: refused("SourceAndObject", "shPodnsouv1")},
		}},
		"forgotten": {"{type: Namespace, qps: 1, burst: 1, cacheSize: 2}", []say{
			{namespace: "a"}, {namespace: "b"}, {namespace: "a", want: refused("Namespace", "a")},
			{namespace: "c"}, {namespace: "b"}, {namespace: "b", want: refused("Namespace", "b")},
		}},
		"two": {"{type: Server, qps: 1, burst: 1}, {type: User, qps: 1, burst: 1}", []say{
			{user: "a"}, {user: "a", want: "Too many requests: [limit reached on type Server for key , limit reached on type User for key a]"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
			p, err := eventratelimit.New(strings.NewReader(head+"limits: ["+c.limits+"]"), clock)
			if err != nil {
				t.Fatal(err)
			}
			for i, s := range c.said {
				clock.Step(s.wait)
				a := &admit.Attributes{
					Operation: admit.Create, Version: "v1", Namespace: s.namespace, DryRun: s.dryRun, User: &user.DefaultInfo{Name: s.user},
					Descriptor: &resource.Descriptor{Resource: "events", Kind: "Event", Versions: []resource.Version{{Name: "v1"}}},
					Object: &corev1.Event{
						Source:         corev1.EventSource{Component: s.source, Host: "h"},
						InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: s.object, UID: "u", APIVersion: "v1"},
					},
				}
				if s.other {
					a.Descriptor = &resource.Descriptor{Group: "events.k8s.io", Resource: "events", Kind: "Event"}
				}
				got := ""
				if err := p.(admit.Validator).Validate(t.Context(), nil, a); err != nil {
					got = err.Error()
				}
				if got != s.want {
					t.Errorf("%d: %q, want %q", i, got, s.want)
				}
			}
		})
	}
}

// TestConfiguration: none is refused, and a bad one is.
func TestConfiguration(t *testing.T) {
	if _, err := eventratelimit.New(nil, nil); err == nil || !strings.Contains(err.Error(), "limits: Invalid value") {
		t.Errorf("without configuration: %v", err)
	}
	for in, want := range map[string]string{
		head:                  "must not be empty",
		head + "limits: [{}]": "limits[0].type",
		head + "limits: [{type: User, qps: 1, burst: 0}]":                "limits[0].burst",
		head + "limits: [{type: User, qps: -1, burst: 1}]":               "limits[0].qps",
		head + "limits: [{type: User, qps: 1, burst: 1, cacheSize: -1}]": "limits[0].cacheSize",
		head + "limits: [{type: User, qps: 1, bust: 1}]":                 "unknown field",
	} {
		if _, err := eventratelimit.New(strings.NewReader(in), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}

func FuzzNew(f *testing.F) {
	f.Add(head + "limits: [{type: Server, qps: 1, burst: 1}]")
	f.Fuzz(func(t *testing.T, in string) {
		if p, err := eventratelimit.New(strings.NewReader(in), clocktesting.NewFakeClock(time.Unix(1e9, 0))); (p == nil) != (err != nil) {
			t.Errorf("%q: %v and %v", in, p, err)
		}
	})
}
