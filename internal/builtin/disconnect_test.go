// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/initializers"
	"github.com/mortise-dev/mortise/internal/apiserver/audit"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// read decodes what a GET answers.
func read[T any](m *member, path string) (v T) {
	m.t.Helper()
	if err := json.Unmarshal(m.does("GET", path, "").Body.Bytes(), &v); err != nil {
		m.t.Fatal(err)
	}
	return v
}

// named is a list of objects of which the names matter.
type named struct {
	Items []struct {
		Metadata struct{ Name string }
	}
}

// names are those in a list, sorted.
func (m *member) names(path string) string {
	m.t.Helper()
	var names []string
	for _, item := range read[named](m, path).Items {
		names = append(names, item.Metadata.Name)
	}
	slices.Sort(names)
	return fmt.Sprint(names)
}

// allocated are the cluster IPs and node ports that are taken, and those that services have.
func (m *member) allocated() (taken, used string) {
	m.t.Helper()
	var ips []string
	var ports []int32
	for _, svc := range read[corev1.ServiceList](m, "/api/v1/services").Items {
		ips = append(ips, svc.Spec.ClusterIPs...)
		for _, p := range svc.Spec.Ports {
			if p.NodePort != 0 {
				ports = append(ports, p.NodePort)
			}
		}
	}
	slices.Sort(ips)
	slices.Sort(ports)
	const first, last = 30000, 32767
	value, _, err := m.server.Backend().(resource.RecordStore).Record(m.t.Context(), "ranges/servicenodeports")
	if err != nil {
		m.t.Fatal(err)
	}
	var stored []int32
	if value != nil {
		kind := corev1.SchemeGroupVersion.WithKind("RangeAllocation")
		codec := resource.ProtobufCodec(kind, func() resource.Object { return &corev1.RangeAllocation{} })
		obj, err := codec.Decode(value)
		if err != nil {
			m.t.Fatal(err)
		}
		bits := new(big.Int).SetBytes(obj.(*corev1.RangeAllocation).Data)
		for port := int32(first); port <= last; port++ {
			if bits.Bit(int(port-first)) == 1 {
				stored = append(stored, port)
			}
		}
	}
	return fmt.Sprintf("%s %v", m.names("/apis/networking.k8s.io/v1/ipaddresses"), stored), fmt.Sprintf("%v %v", ips, ports)
}

// TestDisconnectedAllocations: whenever the client of a service's write disconnects, the cluster IPs and node ports that are allocated are
// those that stored services have; also when the write is the first one since the server started.
func TestDisconnectedAllocations(t *testing.T) {
	t.Parallel()
	const services = space + "services"
	service := func(name, kind string) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{"type":"` + kind + `","ports":[{"port":80}]}}`
	}
	for _, c := range []struct {
		name         string
		before       string // the type of the service that is there before; empty: there is none
		method, body string
		syncs        int // how many syncs the write causes at least
	}{
		{"create", "", "POST", "NodePort", 3},
		{"allocate a port", "ClusterIP", "PATCH", `{"spec":{"type":"NodePort"}}`, 2},
		{"release a port", "NodePort", "PATCH", `{"spec":{"type":"ClusterIP","ports":[{"port":80,"nodePort":null}]}}`, 2},
		{
			"release all", "NodePort", "PATCH",
			`{"spec":{"type":"ExternalName","externalName":"example.com","clusterIP":null,"clusterIPs":null,"ports":null}}`, 3,
		},
		{"delete", "NodePort", "DELETE", "", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newHeldStore(t)
			m := newMember(t, store.New(s.engine))
			m.does("POST", "/api/v1/namespaces", `{"metadata":{"name":"ns"}}`)
			m.does("POST", services, service("other", "NodePort"))
			for n := 1; ; n++ {
				name := fmt.Sprint("s", n)
				path, body := services+"/"+name, c.body
				if c.before == "" {
					path, body = services, service(name, c.body)
				} else {
					m.does("POST", services, service(name, c.before))
				}
				if n > 1 {
					m = newMember(t, store.New(s.engine))
				}
				w, held := s.disconnect(m, n, c.method, path, body)
				if taken, used := m.allocated(); taken != used {
					t.Errorf("after the client left at sync %d: %s are allocated, and services have %s; it was answered %d", n, taken, used, w.Code)
				}
				if held {
					continue
				}
				if w.Code >= 300 {
					t.Errorf("%s %s: %d %s", c.method, path, w.Code, w.Body)
				}
				if n <= c.syncs {
					t.Errorf("%s %s was answered after %d syncs", c.method, path, n-1)
				}
				return
			}
		})
	}
}

// TestDisconnectedCharges: whenever the client of a write that is charged to a quota disconnects, what the quota says is used is what
// is there.
func TestDisconnectedCharges(t *testing.T) {
	t.Parallel()
	s := newHeldStore(t)
	m := newMember(t, store.New(s.engine))
	m.does("POST", "/api/v1/namespaces", `{"metadata":{"name":"ns"}}`)
	const hard = `"hard":{"count/configmaps":"100","services.nodeports":"100"}`
	m.does("POST", space+"resourcequotas", `{"metadata":{"name":"q"},"spec":{`+hard+`}}`)
	m.does("PATCH", space+"resourcequotas/q/status", `{"status":{`+hard+`,"used":{"count/configmaps":"0","services.nodeports":"0"}}}`)
	charged := func() string {
		used := read[corev1.ResourceQuota](m, space+"resourcequotas/q").Status.Used
		return fmt.Sprint(used.Name("count/configmaps", "").Value(), used.Name("services.nodeports", "").Value())
	}
	stored := func() string {
		ports := 0
		for _, svc := range read[corev1.ServiceList](m, space+"services").Items {
			ports += map[corev1.ServiceType]int{corev1.ServiceTypeNodePort: 1}[svc.Spec.Type]
		}
		return fmt.Sprint(len(read[named](m, space+"configmaps").Items), ports)
	}
	for _, c := range []struct{ name, prepare, method, path, body string }{
		{"create", "", "POST", "configmaps", `{"metadata":{"name":"NAME"}}`},
		{"update", `{"metadata":{"name":"NAME"},"spec":{"ports":[{"port":80}]}}`, "PATCH", "services/NAME", `{"spec":{"type":"NodePort"}}`},
	} {
		for n := 1; ; n++ {
			name := strings.NewReplacer("NAME", fmt.Sprint("x", n))
			if c.prepare != "" {
				m.does("POST", space+"services", name.Replace(c.prepare))
			}
			w, held := s.disconnect(m, n, c.method, space+name.Replace(c.path), name.Replace(c.body))
			if used, want := charged(), stored(); used != want {
				t.Fatalf("%s: after the client left at sync %d, %s are charged, and %s are there; it was answered %d", c.name, n, used, want, w.Code)
			}
			if !held {
				if w.Code >= 300 || n < 3 {
					t.Errorf("%s was answered after %d syncs: %d %s", c.name, n-1, w.Code, w.Body)
				}
				break
			}
		}
	}
}

// lines takes the lines that an auditor writes.
type lines struct {
	mu  sync.Mutex
	all []auditinternal.Event
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var e auditinternal.Event
	err := json.Unmarshal(bytes.TrimSpace(b), &e)
	l.all = append(l.all, e)
	return len(b), err
}

// last is what the audit log says at last of a verb.
func (l *lines) last(verb string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range slices.Backward(l.all) {
		if e.Verb == verb && e.ResponseStatus != nil {
			return fmt.Sprint(e.Stage, " ", e.ResponseStatus.Code)
		}
	}
	return ""
}

// TestDisconnectedRecords: the audit log and the ledger of writes tell what became of a write whose client disconnected.
func TestDisconnectedRecords(t *testing.T) {
	t.Parallel()
	s, log := newHeldStore(t), &lines{}
	m := newMember(t, store.New(s.engine), func(o *apiserver.Options) {
		policy := &auditinternal.Policy{Rules: []auditinternal.PolicyRule{{Level: auditinternal.LevelMetadata}}}
		o.Audit = audit.New(policy, slog.New(slog.DiscardHandler), audit.NewLog(log, audit.LogOptions{Mode: audit.Blocking}))
		o.Explain = apiserver.Explain{On: true}
	})
	m.does("POST", "/api/v1/namespaces", `{"metadata":{"name":"ns"}}`)
	for i, c := range []struct {
		verb, method, path, body string
		code, objects            int
	}{
		{"create", "POST", "configmaps", `{"metadata":{"name":"m"}}`, http.StatusCreated, 1},
		{"patch", "PATCH", "configmaps/m", `{"data":{"a":"b"}}`, http.StatusOK, 1},
		{"delete", "DELETE", "configmaps/m", "", http.StatusOK, 1},
	} {
		if _, held := s.disconnect(m, 1, c.method, space+c.path, c.body); !held {
			t.Fatalf("%s synced nothing", c.verb)
		}
		if got, want := log.last(c.verb), fmt.Sprint("ResponseComplete ", c.code); got != want {
			t.Errorf("%s: the audit log says %q, want %q", c.verb, got, want)
		}
		view := read[trace.View](m, trace.Route+"?"+url.Values{"resource": {"configmaps"}, "namespace": {"ns"}, "name": {"m"}}.Encode())
		if len(view.Traces) != i+1 {
			t.Errorf("%s: the ledger has %d writes, want %d", c.verb, len(view.Traces), i+1)
			continue
		}
		newest := slices.IndexFunc(view.Traces, func(w trace.Trace) bool { return w.Verb == c.verb })
		if newest < 0 || view.Traces[newest].Code != c.code || len(view.Traces[newest].Objects) != c.objects {
			t.Errorf("%s: the ledger says %+v", c.verb, view.Traces)
		}
	}
}

// TestDisconnectedInitializers: an object whose creator disconnected waits for its initializer like any other, and a client that
// initializes or rejects it may disconnect too.
func TestDisconnectedInitializers(t *testing.T) {
	t.Parallel()
	s := newHeldStore(t)
	kind, err := initializers.Kind()
	if err != nil {
		t.Fatal(err)
	}
	m := newMember(t, store.New(s.engine), func(o *apiserver.Options) {
		o.Kinds, o.Admission = append(o.Kinds, kind), append(o.Admission, initializers.New(clock.RealClock{}))
	})
	const name = "one.example.com"
	m.does("POST", "/api/v1/namespaces", `{"metadata":{"name":"ns"}}`)
	const version = v1alpha1.Group + "/v1alpha1"
	m.does("POST", "/apis/"+version+"/"+v1alpha1.Resource, `{"apiVersion":"`+version+`","kind":"`+v1alpha1.Kind+`","metadata":{"name":"c"},
		"initializers":[{"name":"`+name+`","rules":[{"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"]}]}]}`)
	const maps, all = space + "configmaps", space + "configmaps?" + v1alpha1.IncludeUninitialized + "=true"
	cut := func(method, path, body string) {
		t.Helper()
		if w, held := s.disconnect(m, 1, method, path, body); !held {
			t.Fatalf("%s %s synced nothing: %d %s", method, path, w.Code, w.Body)
		}
	}
	wants := func(when, shown, stored string) {
		t.Helper()
		if gotShown, gotStored := m.names(maps), m.names(all); gotShown != shown || gotStored != stored {
			t.Errorf("%s: %s are shown of %s, want %s of %s", when, gotShown, gotStored, shown, stored)
		}
	}
	for _, object := range []string{"good", "bad"} {
		cut("POST", maps, `{"metadata":{"name":"`+object+`"}}`)
	}
	wants("created", "[]", "[bad good]")
	object := func(name string) *corev1.ConfigMap {
		obj := read[corev1.ConfigMap](m, maps+"/"+name+"?"+v1alpha1.IncludeUninitialized+"=true")
		return &obj
	}
	put := func(obj *corev1.ConfigMap, err error) {
		t.Helper()
		body, encoded := json.Marshal(obj)
		if err != nil || encoded != nil {
			t.Fatal(err, encoded)
		}
		cut("PUT", maps+"/"+obj.Name+"?"+v1alpha1.IncludeUninitialized+"=true", string(body))
	}
	good, bad := object("good"), object("bad")
	put(good, v1alpha1.Finish(good, name))
	wants("initialized", "[good]", "[bad good]")
	put(bad, v1alpha1.Reject(bad, name, http.StatusForbidden, metav1.StatusReasonForbidden, "not here"))
	wants("rejected", "[good]", "[good]")
}
