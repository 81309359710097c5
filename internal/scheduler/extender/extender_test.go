// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package extender_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/scheduler/cache"
	"github.com/mortise-dev/mortise/internal/scheduler/extender"
)

// answering is an HTTPS server that answers every question alike, and notes the newest.
type answering struct {
	*httptest.Server
	path, question string
}

func serve(t *testing.T, status int, answer string) *answering {
	t.Helper()
	a := &answering{}
	a.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s of %s: %v", r.Method, r.Header.Get("Content-Type"), err)
		}
		a.path, a.question = r.URL.Path, string(body)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *answering) config() configv1.Extender {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})
	return configv1.Extender{
		URLPrefix: a.URL + "/x/", FilterVerb: "filter", PrioritizeVerb: "rank", BindVerb: "bind", PreemptVerb: "preempt", Weight: 3,
		EnableHTTPS: true, TLSConfig: &configv1.ExtenderTLSConfig{CAData: ca}, NodeCacheCapable: true,
	}
}

func one(t *testing.T, c configv1.Extender, ledger *extension.Ledger) fwk.Extender {
	t.Helper()
	all, err := extender.All(t.Context(), []configv1.Extender{c}, extender.Options{Ledger: ledger, Where: "a file"})
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// cluster is nodes a, b and c, and pod v on a.
func cluster() (*cache.Snapshot, *corev1.Pod) {
	c, s := cache.New(), cache.NewSnapshot()
	for _, name := range []string{"a", "b", "c"} {
		c.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	victim := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "v", UID: "uid-v"}, Spec: corev1.PodSpec{NodeName: "a"}}
	c.SetPod(victim)
	c.Update(s)
	return s, victim
}

func newcomer() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid-p"}}
}

func names(nodes []fwk.NodeInfo) (out []string) {
	for _, n := range nodes {
		out = append(out, n.Node().Name)
	}
	return out
}

func TestFilterAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		answer string
		whole  bool // the extender is sent nodes, not names
		left   []string
		failed map[string]string
		err    string // what the error holds
	}{
		{name: "names", answer: `{"NodeNames":["c","a"],"FailedNodes":{"b":"no"}}`, left: []string{"c", "a"},
			failed: map[string]string{"b": "no"}},
		{name: "nodes", whole: true, answer: `{"Nodes":{"items":[{"metadata":{"name":"b"}}]}}`, left: []string{"b"}},
		{name: "nodes, although asked for names", answer: `{"Nodes":{"items":[{"metadata":{"name":"b"}}]}}`, left: []string{"b"}},
		{name: "names, although asked for nodes", whole: true, answer: `{"NodeNames":["a"]}`},
		{name: "neither", answer: `{}`},
		{name: "null", answer: `null`},
		{name: "small letters", answer: `{"nodenames":["a"]}`, left: []string{"a"}},
		{name: "an error of its own", answer: `{"NodeNames":["a"],"Error":"no idea"}`, err: "no idea"},
		{name: "a node that nobody asked about", answer: `{"NodeNames":["z"]}`,
			err: `claims a filtered node "z" which is not found in the input node list`},
		{name: "such a node as an object", whole: true, answer: `{"Nodes":{"items":[{"metadata":{"name":"z"}}]}}`,
			err: `claims a filtered node "z"`},
		{name: "one node many times", answer: `{"NodeNames":["a","a","a","a","a"]}`, left: []string{"a"}},
		{name: "garbage", answer: `<html>`, err: "invalid character"},
		{name: "the wrong type", answer: `{"NodeNames":7}`, err: "cannot unmarshal number"},
		{name: "half of it", answer: `{"NodeNames":["a"`, err: "unexpected EOF"},
		{name: "nothing", answer: ``, err: "EOF"},
		{name: "a failure", status: 500, answer: `{"NodeNames":["a"]}`, err: "failed filter with extender at URL https://"},
		{name: "another success", status: 201, answer: `{"NodeNames":["a"]}`, err: "code 201"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.status == 0 {
				c.status = 200
			}
			server := serve(t, c.status, c.answer)
			config := server.config()
			config.NodeCacheCapable = !c.whole
			nodes, _ := cluster()
			left, failed, _, err := one(t, config, nil).Filter(newcomer(), nodes.Nodes())
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error is %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.left, names(left)); d != "" {
				t.Errorf("left (-want +got):\n%s", d)
			}
			if !maps.Equal(c.failed, failed) {
				t.Errorf("failed: %v, want %v", failed, c.failed)
			}
			if server.path != "/x/filter" {
				t.Errorf("asked at %s", server.path)
			}
		})
	}
}

func TestQuestionsHaveCapitalisedKeys(t *testing.T) {
	nodes, victim := cluster()
	for _, c := range []struct {
		ask  func(fwk.Extender) error
		keys []string
	}{
		{func(x fwk.Extender) error { _, _, _, err := x.Filter(newcomer(), nodes.Nodes()); return err }, []string{"NodeNames", "Nodes", "Pod"}},
		{func(x fwk.Extender) error { return x.Bind(&corev1.Binding{}) }, []string{"Node", "PodName", "PodNamespace", "PodUID"}},
		{func(x fwk.Extender) error {
			_, err := x.ProcessPreemption(newcomer(), map[string]*extenderv1.Victims{"a": {Pods: []*corev1.Pod{victim}}}, nodes.NodeInfos())
			return err
		}, []string{"NodeNameToMetaVictims", "NodeNameToVictims", "Pod"}},
	} {
		server := serve(t, 200, `{}`)
		if err := c.ask(one(t, server.config(), nil)); err != nil {
			t.Fatal(err)
		}
		var got map[string]json.RawMessage
		if err := json.Unmarshal([]byte(server.question), &got); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c.keys, slices.Sorted(maps.Keys(got))); d != "" {
			t.Errorf("%s (-want +got):\n%s", server.path, d)
		}
		if meta := string(got["NodeNameToMetaVictims"]); meta != "" && meta != `{"a":{"Pods":[{"UID":"uid-v"}],"NumPDBViolations":0}}` {
			t.Errorf("victims: %s", meta)
		}
	}
}

func TestPreemptionAnswers(t *testing.T) {
	for _, c := range []struct{ name, answer, want, err string }{
		{name: "the same", answer: `{"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"uid-v"}],"NumPDBViolations":2}}}`, want: "a: v 2"},
		{name: "none", answer: `{}`},
		{name: "a node without victims", answer: `{"NodeNameToMetaVictims":{"a":null}}`, want: "a: nil"},
		{name: "a pod that is not there", answer: `{"NodeNameToMetaVictims":{"b":{"Pods":[{"UID":"uid-v"}]}}}`,
			err: "but the pod is not found on that node"},
		{name: "no pod", answer: `{"NodeNameToMetaVictims":{"a":{"Pods":[null]}}}`, err: "but the pod is not found on that node"},
		{name: "an unknown node", answer: `{"NodeNameToMetaVictims":{"z":{"Pods":[{"UID":"uid-v"}]}}}`, err: "not found"},
	} {
		t.Run(c.name, func(t *testing.T) {
			nodes, victim := cluster()
			x := one(t, serve(t, 200, c.answer).config(), nil)
			got, err := x.ProcessPreemption(newcomer(), map[string]*extenderv1.Victims{"a": {Pods: []*corev1.Pod{victim}}}, nodes.NodeInfos())
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error is %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			text := ""
			for name, v := range got {
				if v == nil {
					text += name + ": nil"
					continue
				}
				text += fmt.Sprintf("%s: %s %d", name, v.Pods[0].Name, v.NumPDBViolations)
			}
			if text != c.want {
				t.Errorf("got %q, want %q", text, c.want)
			}
		})
	}
}

func TestTheLedgerKnowsExtenders(t *testing.T) {
	ledger := extension.NewLedger(clock.RealClock{})
	server := serve(t, 200, `[{"Host":"a","Score":7}]`)
	x := one(t, server.config(), ledger)
	nodes, _ := cluster()
	list, weight, err := x.Prioritize(newcomer(), nodes.Nodes())
	if err != nil || weight != 3 || len(*list) != 1 || (*list)[0] != (extenderv1.HostPriority{Host: "a", Score: 7}) {
		t.Fatalf("%v, weight %d: %v", list, weight, err)
	}
	server.Close()
	if err := x.Bind(&corev1.Binding{}); err == nil {
		t.Error("a dead extender bound a pod")
	}
	got := ledger.Snapshot()
	if len(got) != 1 || got[0].Point != extension.SchedulerExtender || got[0].Name != server.URL+"/x/" || got[0].Where != "a file" ||
		got[0].Calls != 2 || got[0].Failures != 1 || got[0].Certificate.IsZero() {
		t.Errorf("the ledger has %+v", got)
	}
}

func TestSlowExtendersRunOutOfTime(t *testing.T) {
	held := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-held:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(held) })
	x := one(t, configv1.Extender{URLPrefix: server.URL, FilterVerb: "filter",
		HTTPTimeout: metav1.Duration{Duration: 20 * time.Millisecond}}, nil)
	nodes, _ := cluster()
	if _, _, _, err := x.Filter(newcomer(), nodes.Nodes()); err == nil || !strings.Contains(err.Error(), "Client.Timeout exceeded") {
		t.Errorf("error is %v", err)
	}
}

// endless is a JSON string without an end.
type endless struct{ begun bool }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	if !e.begun {
		e.begun = true
		return copy(p, `{"Error":"`), nil
	}
	return len(p), nil
}

func TestAnswersEnd(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, &endless{}) }))
	t.Cleanup(server.Close)
	x := one(t, configv1.Extender{URLPrefix: server.URL, FilterVerb: "filter", HTTPTimeout: metav1.Duration{Duration: time.Minute}}, nil)
	nodes, _ := cluster()
	if _, _, _, err := x.Filter(newcomer(), nodes.Nodes()); err == nil || !strings.Contains(err.Error(), "the answer is too big") {
		t.Errorf("error is %v", err)
	}
}

func TestCertificatesAreChecked(t *testing.T) {
	nodes, _ := cluster()
	server := serve(t, 200, `{"NodeNames":["a"]}`)
	for _, c := range []struct {
		name   string
		change func(*configv1.Extender)
		ok     bool
	}{
		{"authority", func(*configv1.Extender) {}, true},
		{"HTTPS without authority checks nothing", func(c *configv1.Extender) { c.TLSConfig = nil }, true},
		{"another name", func(c *configv1.Extender) { c.TLSConfig.ServerName = "elsewhere" }, false},
		{"no authority known", func(c *configv1.Extender) { c.TLSConfig, c.EnableHTTPS = nil, false }, false},
	} {
		config := server.config()
		c.change(&config)
		if _, _, _, err := one(t, config, nil).Filter(newcomer(), nodes.Nodes()); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	config := server.config()
	config.TLSConfig.Insecure = true // and an authority
	if _, err := extender.All(t.Context(), []configv1.Extender{config}, extender.Options{}); err == nil {
		t.Error("insecure with an authority was accepted")
	}
}

func TestInterestAndOrder(t *testing.T) {
	all, err := extender.All(t.Context(), []configv1.Extender{
		{URLPrefix: "http://ignorable", Ignorable: true},
		{URLPrefix: "http://gpu", ManagedResources: []configv1.ExtenderManagedResource{{Name: "example.com/gpu"}}},
		{URLPrefix: "http://any", FilterVerb: "f"},
	}, extender.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, x := range all {
		order = append(order, x.Name())
	}
	if d := cmp.Diff([]string{"http://gpu", "http://any", "http://ignorable"}, order); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
	wants := func(limits, requests corev1.ResourceList) []corev1.Container {
		return []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: limits, Requests: requests}}}
	}
	gpu := corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
	for i, c := range []struct {
		spec corev1.PodSpec
		want bool
	}{
		{corev1.PodSpec{}, false},
		{corev1.PodSpec{Containers: wants(gpu, nil)}, true},
		{corev1.PodSpec{Containers: wants(nil, gpu)}, true},
		{corev1.PodSpec{InitContainers: wants(nil, gpu)}, true},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i))}, Spec: c.spec}
		if got := all[0].IsInterested(pod); got != c.want {
			t.Errorf("pod %d: interested %v, want %v", i, got, c.want)
		}
		if !all[1].IsInterested(pod) {
			t.Errorf("pod %d: an extender without resources is not interested", i)
		}
	}
	if !all[1].IsFilter() || all[1].IsBinder() || all[1].IsPrioritizer() || all[1].SupportsPreemption() {
		t.Error("an extender does what it has a verb for")
	}
}
