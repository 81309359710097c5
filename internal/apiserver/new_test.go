// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/internal/apiserver/impersonate"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/faulty"
	"github.com/mortise-dev/mortise/store/memory"
)

var _ admit.Follower = failing{}

// failing is an admission plug-in that can fail to join a server, and to load the objects that it follows.
type failing struct{ join, load error }

func (failing) Name() string { return "Failing" }

func (f failing) Join(*admit.Host) error { return f.join }

func (failing) Follows() []schema.GroupResource {
	return []schema.GroupResource{{Resource: "configmaps"}}
}

func (f failing) Load(context.Context, feed.Lister) error { return f.load }

func (failing) Apply(context.Context, *feed.Change) error { return nil }

// TestNewLeavesNothing lets each step of New fail in turn. A leaked goroutine would keep the bubble from ending; open
// files are counted.
func TestNewLeavesNothing(t *testing.T) {
	broken := errors.New("broken on purpose")
	material, err := serving.LoadOrCreate("", []string{"localhost"}, serving.Options{})
	if err != nil {
		t.Fatal(err)
	}
	unsigned := *material // a key of a curve that cannot sign tokens
	if unsigned.ServiceAccount, err = ecdsa.GenerateKey(elliptic.P224(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	fail := func(op faulty.Op) faulty.Plan {
		return func(c faulty.Call) (f faulty.Fault) {
			if c.Op == op {
				f.Before = broken
			}
			return f
		}
	}
	none := 0
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "twice", Help: "A collector that is registered twice."})
	for _, c := range []struct {
		step, want string
		change     func(o *Options)
		plan       faulty.Plan
	}{
		{step: "check the options", want: "no store", change: func(o *Options) { o.Store = nil }},
		{step: "make flow control", want: "no seats", change: func(o *Options) {
			o.FlowControl.MaxReads, o.FlowControl.MaxWrites = &none,
				&none
		}},
		{step: "register collectors", want: "duplicate", change: func(o *Options) { o.Collectors = []prometheus.Collector{counter, counter} }},
		{step: "register the impersonator", want: "duplicate", change: func(o *Options) {
			o.Collectors = []prometheus.Collector{impersonate.New(nil)}
		}},
		{step: "make authentication", want: "unknown public key type", change: func(o *Options) { o.Material = &unsigned }},
		{step: "join admission", want: broken.Error(), change: func(o *Options) { o.Admission = admit.Chain{failing{join: broken}} }},
		{step: "load the last follower", want: broken.Error(), change: func(o *Options) { o.Admission = admit.Chain{failing{load: broken}} }},
		{step: "load the first follower", want: broken.Error(), plan: fail(faulty.Range)},
		{step: "follow the store", want: broken.Error(), plan: fail(faulty.Watch)},
		{step: "none"},
	} {
		t.Run(c.step, func(t *testing.T) {
			before := openFiles(t)
			synctest.Test(t, func(t *testing.T) {
				var engine store.Engine = memory.Open(memory.Options{})
				if c.plan != nil {
					engine = faulty.New(engine, c.plan)
				}
				s := store.New(engine)
				defer func() { _ = s.Close() }()
				o := Options{Store: s, Kinds: []*resource.Descriptor{configMaps(), pods()}, Material: material}
				if c.change != nil {
					c.change(&o)
				}
				server, err := New(o)
				if c.want == "" {
					if err != nil {
						t.Fatal(err)
					}
					server.Close()
					return
				}
				if err == nil {
					server.Close()
				}
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("New answers %v, want an error with %q", err, c.want)
				}
			})
			if after := openFiles(t); after != before {
				t.Errorf("%d files are open, %d were before", after, before)
			}
		})
	}
}

// openFiles returns the number of this process's open files, including listeners.
func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}
