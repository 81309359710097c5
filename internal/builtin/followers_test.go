// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/node"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/rbac"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/internal/kinds"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/faulty"
	"github.com/mortise-dev/mortise/store/local"
	"github.com/mortise-dev/mortise/store/local/disk"
)

// heldStore is a store on a disk in memory of which a sync can be held.
type heldStore struct {
	engine                 store.Engine
	hold, holding, release chan struct{}
	pass                   atomic.Int64 // how many syncs pass before one is held
}

func newHeldStore(t *testing.T) *heldStore {
	t.Helper()
	h := &heldStore{hold: make(chan struct{}, 1), holding: make(chan struct{}), release: make(chan struct{})}
	d := disk.NewMem()
	d.Hook = func(op, _ string) error {
		if op != "datasync" && op != "sync" {
			return nil
		}
		select {
		case <-h.hold:
			if h.pass.Add(-1) >= 0 {
				h.hold <- struct{}{}
				return nil
			}
			h.holding <- struct{}{}
			<-h.release
		default:
		}
		return nil
	}
	engine, err := local.Open("/store", local.Options{Disk: d})
	if err != nil {
		t.Fatal(err)
	}
	h.engine = engine
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// disconnect sends a request, and disconnects its client while the n-th sync that it causes is under way. It returns false, and has
// sent the request, if that causes fewer.
func (h *heldStore) disconnect(m *member, n int, method, path, body string) (*httptest.ResponseRecorder, bool) {
	h.pass.Store(int64(n) - 1)
	h.hold <- struct{}{}
	ctx, leave := context.WithCancel(m.t.Context())
	defer leave()
	served := make(chan *httptest.ResponseRecorder, 1)
	go func() { served <- m.say(ctx, "root", method, path, body) }()
	select {
	case <-h.holding:
		leave()
		h.release <- struct{}{}
		return <-served, true
	case w := <-served:
		select {
		case <-h.hold:
		case <-h.holding: // a write of a follower or controller, which came later
			h.release <- struct{}{}
		}
		return w, false
	}
}

// member is one of several API servers on a store.
type member struct {
	t      *testing.T
	server *apiserver.Server
}

func newMember(t *testing.T, s *store.Store, configure ...func(*apiserver.Options)) *member {
	t.Helper()
	return newMemberWith(t, s, nil, configure...)
}

// newMemberWith is newMember with decorated followers.
func newMemberWith(t *testing.T, s *store.Store, decorate []func(feed.Follower) feed.Follower,
	configure ...func(*apiserver.Options)) *member {
	t.Helper()
	m, roles := &member{t: t}, &rbac.Index{}
	authorized := func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorize.Standard(m.server.Authorizer())(ctx, a)
	}
	chain, err := Admission(AdmissionOptions{Disable: []string{"ServiceAccount"}})
	if err != nil {
		t.Fatal(err)
	}
	graph := node.NewGraph()
	o := apiserver.Options{
		Store: s, Admission: chain, Roles: roles, Nodes: graph,
		Authorizers: []authorize.Authorizer{&node.Authorizer{Graph: graph, Rules: upstream.NodeRules()}},
		Kinds: Kinds([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, false, kinds.RuntimeConfig{},
			Access{Authorize: authorized, Roles: roles}),
	}
	withExternalMetrics(t, &o)
	for _, f := range configure {
		f(&o)
	}
	if m.server, err = apiserver.New(o, decorate...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // until then the server does nothing between requests, so that what is synced is what the test writes
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		cancel()
		if err := m.server.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return m
}

// say sends a request as a user. The context's end is the client's disconnection.
func (m *member) say(ctx context.Context, who, method, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	u := &user.DefaultInfo{Name: who, Groups: []string{user.AllAuthenticated}}
	switch {
	case who == "root":
		u.Groups = append(u.Groups, user.SystemPrivilegedGroup)
	case strings.HasPrefix(who, "system:node:"):
		u.Groups = append(u.Groups, user.NodesGroup)
	}
	w := httptest.NewRecorder()
	m.server.Handler().ServeHTTP(w, r.WithContext(request.WithUser(ctx, u)))
	return w
}

// does sends a request that must succeed.
func (m *member) does(method, path, body string) *httptest.ResponseRecorder {
	m.t.Helper()
	w := m.say(m.t.Context(), "root", method, path, body)
	if w.Code >= 300 {
		m.t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
	return w
}

// change is a write, and what the world is to look like after it.
type change struct {
	method, path, body string
	want               string // what look returns then
}

// followed is one follower of the store, and how it can be seen that it follows.
type followed struct {
	name    string
	prepare []change // writes before; want is not looked at
	changes []change
	// look says how things stand for a server.
	look func(m *member) string
	// also is the write of another object of the same resource: when it is answered the server knows all that was written before.
	also func(n int) change
}

const (
	rbacPath      = "/apis/rbac.authorization.k8s.io/v1/"
	admissionPath = "/apis/admissionregistration.k8s.io/v1/"
	crdPath       = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	flowPath      = "/apis/flowcontrol.apiserver.k8s.io/v1/"
	space         = "/api/v1/namespaces/ns/"
)

// configMap tries to create a config map, and says with which code that is answered.
func configMap(m *member) string {
	return fmt.Sprint(m.say(m.t.Context(), "root", "POST", space+"configmaps?dryRun=All", `{"metadata":{"name":"probe"}}`).Code)
}

func definition(plural, versions string) string {
	return `{"metadata":{"name":"` + plural + `.ext.example.com"},"spec":{"group":"ext.example.com","scope":"Namespaced","names":{"plural":"` +
		plural + `","kind":"K` + plural + `"},"versions":[` + versions + `]}}`
}

func crdVersion(name string, storage bool) string {
	return fmt.Sprintf(`{"name":%q,"served":true,"storage":%v,"schema":{"openAPIV3Schema":{"type":"object"}}}`, name, storage)
}

// hook is a webhook at an address where nobody listens.
func hook(kind, name, policy string) string {
	return `{"metadata":{"name":"` + name + `"},"webhooks":[{"name":"` + name +
		`.example.com","clientConfig":{"url":"https://127.0.0.1:1/"},"admissionReviewVersions":["v1"],
		"sideEffects":"None","timeoutSeconds":1,"failurePolicy":"` + policy +
		`","rules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["` + kind + `"]}]}]}`
}

func flowSchema(name, user string) string {
	return `{"metadata":{"name":"` + name +
		`"},"spec":{"matchingPrecedence":100,"priorityLevelConfiguration":{"name":"exempt"},"rules":[{"subjects":[{"kind":"User","user":{"name":"` + user + `"}}],
		"nonResourceRules":[{"verbs":["*"],"nonResourceURLs":["*"]}]}]}}`
}

const matchConfigMaps = `"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"]}]}`

func mutating(name, value string) string {
	return `{"metadata":{"name":"` + name + `"},"spec":{` + matchConfigMaps +
		`,"reinvocationPolicy":"Never","mutations":[{"patchType":"ApplyConfiguration",
		"applyConfiguration":{"expression":"Object{metadata: Object.metadata{labels: {\"by\": \"` + value + `\"}}}"}}]}}`
}

func claim(size string) string {
	return `{"metadata":{"name":"probe"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"` + size + `"}}}}`
}

func limits(name, most string) string {
	return `{"metadata":{"name":"` + name + `"},"spec":{"limits":[{"type":"PersistentVolumeClaim","max":{"storage":"` + most + `"}}]}}`
}

const attachments = "/apis/storage.k8s.io/v1/volumeattachments"

func attachment(name, node string) string {
	return `{"metadata":{"name":"` + name + `"},"spec":{"attacher":"example.com","nodeName":"` + node +
		`","source":{"persistentVolumeName":"v"}}}`
}

// followers are all followers of the store that answer requests otherwise. The remaining one, reconciler, repairs objects later.
func followers() []followed {
	forbid := []change{{method: "POST", path: admissionPath + "validatingadmissionpolicybindings",
		body: `{"metadata":{"name":"b"},"spec":{"policyName":"p","validationActions":["Deny"]}}`}}
	mutate := []change{{method: "POST", path: admissionPath + "mutatingadmissionpolicybindings",
		body: `{"metadata":{"name":"b"},"spec":{"policyName":"p"}}`}}
	validating := func(name, expression string) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{` + matchConfigMaps + `,"validations":[{"expression":"` + expression + `"}]}}`
	}
	return []followed{
		{
			name: "customresourcedefinitions",
			changes: []change{
				{"POST", crdPath, definition("boxes", crdVersion("v1", true)), "200 404"},
				{"PATCH", crdPath + "/boxes.ext.example.com", `{"spec":{"versions":[` + crdVersion("v1", true) + `,` + crdVersion("v2", false) + `]}}`,
					"200 200"},
				// deletion takes further writes
				{"PATCH", crdPath + "/boxes.ext.example.com", `{"spec":{"versions":[` + strings.Replace(crdVersion("v1", true), "true", "false", 1) +
					`]}}`, "404 404"},
			},
			look: func(m *member) string {
				code := func(version string) int {
					return m.say(m.t.Context(), "root", "GET", "/apis/ext.example.com/"+version+"/namespaces/ns/boxes", "").Code
				}
				return fmt.Sprint(code("v1"), " ", code("v2"))
			},
			also: func(n int) change {
				return change{"POST", crdPath, definition(fmt.Sprint("others", n), crdVersion("v1", true)), ""}
			},
		},
		{
			name: "rbac",
			prepare: []change{{method: "POST", path: rbacPath + "clusterrolebindings", body: `{"metadata":{"name":"b"},
				"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"r"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"jane"}]}`}},
			changes: []change{
				{"POST", rbacPath + "clusterroles", `{"metadata":{"name":"r"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["list"]}]}`, "200"},
				{"PATCH", rbacPath + "clusterroles/r", `{"rules":[]}`, "403"},
				{"PATCH", rbacPath + "clusterroles/r", `{"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["list"]}]}`, "200"},
				{"DELETE", rbacPath + "clusterroles/r", "", "403"},
			},
			look: func(m *member) string {
				return fmt.Sprint(m.say(m.t.Context(), "jane", "GET", space+"configmaps", "").Code)
			},
			also: func(n int) change {
				return change{"POST", rbacPath + "clusterroles", fmt.Sprintf(`{"metadata":{"name":"other-%d"}}`, n), ""}
			},
		},
		{
			name: "aggregation",
			changes: []change{
				{"POST", "/apis/apiregistration.k8s.io/v1/apiservices",
					`{"metadata":{"name":"v1.agg.example.com"},"spec":{"group":"agg.example.com","version":"v1",
					"groupPriorityMinimum":100,"versionPriority":100,"insecureSkipTLSVerify":true,"service":{"namespace":"ns","name":"absent"}}}`, "503"},
				{"DELETE", "/apis/apiregistration.k8s.io/v1/apiservices/v1.agg.example.com", "", "404"},
			},
			look: func(m *member) string {
				return fmt.Sprint(m.say(m.t.Context(), "root", "GET", "/apis/agg.example.com/v1/things", "").Code)
			},
			also: func(n int) change {
				return change{"POST", "/apis/apiregistration.k8s.io/v1/apiservices",
					fmt.Sprintf(`{"metadata":{"name":"v%d.other.example.com"},"spec":{"group":"other.example.com",
					"version":"v%d","groupPriorityMinimum":100,"versionPriority":100,"insecureSkipTLSVerify":true,"service":{"namespace":"ns","name":"absent"}}}`, n, n), ""}
			},
		},
		{
			name: "flowcontrol",
			prepare: []change{{method: "POST", path: flowPath + "prioritylevelconfigurations",
				body: `{"metadata":{"name":"exempt"},"spec":{"type":"Exempt","exempt":{"nominalConcurrencyShares":0,"lendablePercent":0}}}`}},
			changes: []change{
				{"POST", flowPath + "flowschemas", flowSchema("mine", "jane"), "true"},
				{"PATCH", flowPath + "flowschemas/mine", `{"spec":` + flowSchema("mine", "joe")[strings.Index(flowSchema("mine", "joe"), `"spec":`)+7:],
					"false"},
				{"PATCH", flowPath + "flowschemas/mine", `{"spec":` +
					flowSchema("mine", "jane")[strings.Index(flowSchema("mine", "jane"), `"spec":`)+7:], "true"},
				{"DELETE", flowPath + "flowschemas/mine", "", "false"},
			},
			look: func(m *member) string {
				var mine struct{ Metadata struct{ UID string } }
				_ = json.Unmarshal(m.say(m.t.Context(), "root", "GET", flowPath+"flowschemas/mine", "").Body.Bytes(), &mine)
				uid := m.say(m.t.Context(), "jane", "GET", "/metrics", "").Header().Get("X-Kubernetes-Pf-Flowschema-Uid")
				return fmt.Sprint(uid != "" && uid == mine.Metadata.UID)
			},
			also: func(n int) change {
				return change{"POST", flowPath + "flowschemas", flowSchema(fmt.Sprint("other-", n), "nobody"), ""}
			},
		},
		{
			name: "nodes",
			changes: []change{
				{"POST", attachments, attachment("a", "n1"), "200"},
				{"DELETE", attachments + "/a", "", "403"},
			},
			look: func(m *member) string {
				return fmt.Sprint(m.say(m.t.Context(), "system:node:n1", "GET", attachments+"/a", "").Code)
			},
			also: func(n int) change { return change{"POST", attachments, attachment(fmt.Sprint("other-", n), "n2"), ""} },
		},
		{
			name: "MutatingAdmissionWebhook",
			changes: []change{
				{"POST", admissionPath + "mutatingwebhookconfigurations", hook("configmaps", "h", "Fail"), "500"},
				{"PATCH", admissionPath + "mutatingwebhookconfigurations/h", hook("configmaps", "h", "Ignore"), "201"},
				{"PATCH", admissionPath + "mutatingwebhookconfigurations/h", hook("configmaps", "h", "Fail"), "500"},
				{"DELETE", admissionPath + "mutatingwebhookconfigurations/h", "", "201"},
			},
			look: configMap,
			also: func(n int) change {
				return change{"POST", admissionPath + "mutatingwebhookconfigurations", hook("endpoints", fmt.Sprint("other-", n), "Fail"), ""}
			},
		},
		{
			name: "ValidatingAdmissionWebhook",
			changes: []change{
				{"POST", admissionPath + "validatingwebhookconfigurations", hook("configmaps", "h", "Fail"), "500"},
				{"PATCH", admissionPath + "validatingwebhookconfigurations/h", hook("configmaps", "h", "Ignore"), "201"},
				{"PATCH", admissionPath + "validatingwebhookconfigurations/h", hook("configmaps", "h", "Fail"), "500"},
				{"DELETE", admissionPath + "validatingwebhookconfigurations/h", "", "201"},
			},
			look: configMap,
			also: func(n int) change {
				return change{"POST", admissionPath + "validatingwebhookconfigurations", hook("endpoints", fmt.Sprint("other-", n), "Fail"), ""}
			},
		},
		{
			name: "ValidatingAdmissionPolicy", prepare: forbid,
			changes: []change{
				{"POST", admissionPath + "validatingadmissionpolicies", validating("p", "false"), "422"},
				{"PATCH", admissionPath + "validatingadmissionpolicies/p", validating("p", "true"), "201"},
				{"PATCH", admissionPath + "validatingadmissionpolicies/p", validating("p", "1 > 2"), "422"},
				{"DELETE", admissionPath + "validatingadmissionpolicies/p", "", "201"},
			},
			look: configMap,
			also: func(n int) change {
				return change{"POST", admissionPath + "validatingadmissionpolicies", validating(fmt.Sprint("other-", n), "true"), ""}
			},
		},
		{
			name: "MutatingAdmissionPolicy", prepare: mutate,
			changes: []change{
				{"POST", admissionPath + "mutatingadmissionpolicies", mutating("p", "one"), "one"},
				{"PATCH", admissionPath + "mutatingadmissionpolicies/p", mutating("p", "two"), "two"},
				{"DELETE", admissionPath + "mutatingadmissionpolicies/p", "", ""},
			},
			look: func(m *member) string {
				var made struct {
					Metadata struct{ Labels map[string]string }
				}
				w := m.say(m.t.Context(), "root", "POST", space+"configmaps?dryRun=All", `{"metadata":{"name":"probe"}}`)
				if err := json.Unmarshal(w.Body.Bytes(), &made); err != nil || w.Code != http.StatusCreated {
					return w.Body.String()
				}
				return made.Metadata.Labels["by"]
			},
			also: func(n int) change {
				return change{"POST", admissionPath + "mutatingadmissionpolicies", mutating(fmt.Sprint("other-", n), "other"), ""}
			},
		},
		{
			name: "LimitRanger",
			changes: []change{
				{"POST", space + "limitranges", limits("l", "1Gi"), "403"},
				{"PATCH", space + "limitranges/l", limits("l", "10Gi"), "201"},
				{"PATCH", space + "limitranges/l", limits("l", "1Gi"), "403"},
				{"DELETE", space + "limitranges/l", "", "201"},
			},
			look: func(m *member) string {
				return fmt.Sprint(m.say(m.t.Context(), "root", "POST", space+"persistentvolumeclaims?dryRun=All", claim("5Gi")).Code)
			},
			also: func(n int) change {
				return change{"POST", space + "limitranges", limits(fmt.Sprint("other-", n), "100Gi"), ""}
			},
		},
		{
			name: "ResourceQuota",
			prepare: []change{{method: "POST", path: space + "resourcequotas",
				body: `{"metadata":{"name":"q"},"spec":{"hard":{"count/configmaps":"0"}}}`}},
			changes: []change{
				{"PATCH", space + "resourcequotas/q/status", `{"status":{"hard":{"count/configmaps":"0"},"used":{"count/configmaps":"0"}}}`, "403"},
				{"PATCH", space + "resourcequotas/q/status", `{"status":{"hard":{"count/configmaps":"5"},"used":{"count/configmaps":"0"}}}`, "201"},
				{"PATCH", space + "resourcequotas/q/status", `{"status":{"hard":{"count/configmaps":"0"},"used":{"count/configmaps":"0"}}}`, "403"},
				{"DELETE", space + "resourcequotas/q", "", "201"},
			},
			look: configMap,
			also: func(n int) change {
				return change{"POST", "/api/v1/namespaces/other/resourcequotas",
					fmt.Sprintf(`{"metadata":{"name":"other-%d"},"spec":{"hard":{"count/secrets":"1"}}}`, n), ""}
			},
		},
		{
			name: "ExternalMetricsRoute",
			changes: []change{
				{"POST", routesPath, externalRoute("r", "a*"), `503 299 - "ExternalMetricsRoute r`},
				{"PATCH", routesPath + "/r", externalRoute("r", "b"), "404 "},
				{"PATCH", routesPath + "/r", externalRoute("r", "*c"), `503 299 - "ExternalMetricsRoute r`},
				{"DELETE", routesPath + "/r", "", "404 "},
			},
			look: func(m *member) string { return externalMetric(m, "ns/abc") },
			also: func(n int) change {
				return change{"POST", routesPath, externalRoute(fmt.Sprint("other-", n), "z"), ""}
			},
		},
	}
}

// TestFollowersOfTheStore: a client disconnects while its write is synced to disk. The write becomes durable, so the next request finds it
// in force; and so does one at another server on the same store, once that has made a later write, also if its watch loses every change and
// it has to load what is stored instead.
func TestFollowersOfTheStore(t *testing.T) {
	for _, f := range followers() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel() // a watch that broke is opened again after a while
			s := newHeldStore(t)
			forgetful := faulty.New(s.engine, func(c faulty.Call) (f faulty.Fault) {
				if c.Op == faulty.Next && c.Key == "/registry/" {
					f.After = store.ErrCompacted
				}
				return f
			})
			one, two, three := newMember(t, store.New(s.engine)), newMember(t, store.New(s.engine)), newMember(t, store.New(forgetful))
			for _, name := range []string{"ns", "other"} {
				one.does("POST", "/api/v1/namespaces", `{"metadata":{"name":"`+name+`"}}`)
			}
			for _, c := range f.prepare {
				one.does(c.method, c.path, c.body)
			}
			before := f.look(one)
			f.look(two)
			f.look(three)
			for n, c := range f.changes {
				if before == c.want {
					t.Fatalf("%s %s changes nothing: %s", c.method, c.path, before)
				}
				w, held := s.disconnect(one, 1, c.method, c.path, c.body)
				if !held {
					t.Fatalf("%s %s was answered before anything was synced: %d %s", c.method, c.path, w.Code, w.Body)
				}
				if got := f.look(one); got != c.want {
					t.Errorf("after %s %s of a client that left: %s, want %s; it was answered %d %s", c.method, c.path, got, c.want, w.Code,
						bytes.TrimSpace(w.Body.Bytes()))
				}
				for i, other := range []*member{two, three} {
					also := f.also(2*n + i)
					other.does(also.method, also.path, also.body)
					if got := f.look(other); got != c.want {
						t.Errorf("after %s %s at another server, %d: %s, want %s", c.method, c.path, i, got, c.want)
					}
				}
				before = c.want
			}
		})
	}
}
