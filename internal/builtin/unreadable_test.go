// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/initializers"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// enforced are the followers without which requests would pass, and such a request.
var enforced = map[string]struct{ path, body string }{
	"admission-mutatingadmissionwebhook":   {space + "configmaps", `{"metadata":{"name":"probe"}}`},
	"admission-validatingadmissionwebhook": {space + "configmaps", `{"metadata":{"name":"probe"}}`},
	"admission-mutatingadmissionpolicy":    {space + "configmaps", `{"metadata":{"name":"probe"}}`},
	"admission-validatingadmissionpolicy":  {space + "configmaps", `{"metadata":{"name":"probe"}}`},
	"admission-initializers":               {space + "configmaps", `{"metadata":{"name":"probe"}}`},
	"admission-limitranger":                {space + "persistentvolumeclaims", anyClaim},
	"admission-resourcequota":              {space + "persistentvolumeclaims", anyClaim},
}

var anyClaim = claim("1Gi")

// corrupted is a store with one object that cannot be decoded, of a resource that a follower follows.
type corrupted struct {
	t         *testing.T
	stored    *store.Store
	followers []feed.Follower
}

func (c *corrupted) member() *member {
	c.t.Helper()
	kind, err := initializers.Kind()
	if err != nil {
		c.t.Fatal(err)
	}
	c.followers = nil
	keep := func(f feed.Follower) feed.Follower {
		c.followers = append(c.followers, f)
		return f
	}
	return newMemberWith(c.t, c.stored, []func(feed.Follower) feed.Follower{keep}, func(o *apiserver.Options) {
		o.Log = slog.New(slog.DiscardHandler)
		o.Kinds, o.Admission = append(o.Kinds, kind), append(o.Admission, initializers.New(clock.RealClock{}))
	})
}

// key is where an object of a resource is stored.
func (c *corrupted) key(m *member, r schema.GroupResource) string {
	c.t.Helper()
	for _, d := range m.server.Kinds() {
		if d.GroupResource() == r {
			if d.Namespaced {
				return "/registry/" + d.Prefix + "/ns/corrupt"
			}
			return "/registry/" + d.Prefix + "/corrupt"
		}
	}
	c.t.Fatalf("the server has no %s", r)
	return ""
}

func openCorrupted(t *testing.T) *corrupted {
	t.Helper()
	engine := memory.Open(memory.Options{})
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	return &corrupted{t: t, stored: store.New(engine)}
}

// TestUnreadable starts a server on a store in which one object of a followed resource cannot be decoded, for each follower and each of its
// resources: the server starts, /readyz names the follower and the object, requests that the object may be about are refused, and all is
// well again when the object is gone.
func TestUnreadable(t *testing.T) {
	first := openCorrupted(t)
	first.member()
	for _, f := range first.followers {
		for _, r := range f.Resources {
			behind := f.Name == "aggregation" || f.Name == "externalmetrics"
			if f.Name == "nodes" || f.Name == "reconciler" || r.Resource == "endpointslices" || behind && r.Resource == "services" {
				continue // loaded when they are needed; in the background; not loaded, as each change is looked at
			}
			t.Run(f.Name+"/"+r.Resource, func(t *testing.T) { unreadable(t, f.Name, r) })
		}
	}
}

func unreadable(t *testing.T, name string, r schema.GroupResource) {
	c := openCorrupted(t)
	m := c.member()
	m.does("POST", "/api/v1/namespaces", `{"metadata":{"name":"ns"}}`)
	key := c.key(m, r)
	if _, err := c.stored.Create(t.Context(), key, []byte("k8s\x00 corrupt"), 0); err != nil {
		t.Fatal(err)
	}
	m = c.member()
	ready := func() string { return m.say(t.Context(), "root", "GET", "/readyz?verbose", "").Body.String() }
	if said := ready(); !strings.Contains(said, "[-]feed/"+name+" failed") {
		t.Errorf("readyz says %s", said)
	}
	if said := m.say(t.Context(), "root", "GET", "/readyz/feed/"+name, "").Body.String(); !strings.Contains(said, `corrupt"`) {
		t.Errorf("the check says %s", said)
	}
	probe, guarded := enforced[name]
	if !guarded {
		probe = enforced["admission-validatingadmissionwebhook"]
	}
	w := m.say(t.Context(), "root", "POST", probe.path+"?dryRun=All", probe.body)
	switch {
	case guarded && (w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "not yet ready to handle request: "+r.String())):
		t.Errorf("a request that it may be about: %d %s", w.Code, w.Body)
	case !guarded && w.Code != http.StatusCreated:
		t.Errorf("a request: %d %s", w.Code, w.Body)
	}
	if guarded && r.Resource != "resourcequotas" && r.Resource != "limitranges" {
		if w := m.say(t.Context(), "root", "POST", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings?dryRun=All",
			`{"metadata":{"name":"b"},"spec":{"policyName":"p","validationActions":["Deny"]}}`); w.Code != http.StatusCreated &&
			r != (schema.GroupResource{Group: "extension.mortise.dev", Resource: "initializerconfigurations"}) {
			t.Errorf("what configures admission: %d %s", w.Code, w.Body)
		}
	}
	record, _, err := c.stored.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.stored.Delete(t.Context(), key, record.Revision); err != nil {
		t.Fatal(err)
	}
	m = c.member()
	if said := ready(); strings.Contains(said, "[-]feed/") {
		t.Errorf("when it is gone, readyz says %s", said)
	}
	if w := m.say(t.Context(), "root", "POST", probe.path+"?dryRun=All", probe.body); w.Code != http.StatusCreated {
		t.Errorf("when it is gone: %d %s", w.Code, w.Body)
	}
}
