// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// failing is a cluster with an aggregated server that fails in many ways.
type failing struct {
	t          *testing.T
	client     kubernetes.Interface
	api        aggregator.APIServicesGetter
	http       *http.Client
	url        string
	kubeconfig string
	good       *issuer
	server     *behind
	port       string // of the server
}

// say asks for a path and returns the answer's status and text; 0 and why if there was none.
func (f *failing) say(ctx context.Context, path string) (int, string, http.Header) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+path, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	resp, err := f.http.Do(r)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error(), nil
	}
	return resp.StatusCode, string(b), resp.Header
}

const failingThings = "/apis/fail.example.com/v1/namespaces/default/things"

// look has the server looked at now, and not within half a minute.
func (f *failing) look() {
	f.t.Helper()
	patch := []byte(`{"metadata":{"annotations":{"looked":"` + strconv.FormatInt(time.Now().UnixNano(), 10) + `"}}}`)
	if _, err := f.client.CoreV1().Services("default").Patch(f.t.Context(), "fail", types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

// becomes waits for the registration's reason, and returns the message.
func (f *failing) becomes(reason string) string {
	f.t.Helper()
	f.look()
	return f.says(apiregistrationv1.Available, reason).Message
}

func condition(r *apiregistrationv1.APIService, kind apiregistrationv1.APIServiceConditionType) *apiregistrationv1.APIServiceCondition {
	for i := range r.Status.Conditions {
		if c := &r.Status.Conditions[i]; c.Type == kind {
			return c
		}
	}
	return nil
}

// readable is the condition that reports whether it is understood what the server tells of itself. It is there if that was ever in doubt.
const readable = "DiscoveryReadable"

// says waits until a condition of the registration has one of some reasons, and returns it.
func (f *failing) says(kind apiregistrationv1.APIServiceConditionType, reasons ...string) *apiregistrationv1.APIServiceCondition {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 2*time.Minute)
	defer cancel()
	w, err := f.api.APIServices().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=v1.fail.example.com"})
	if err != nil {
		f.t.Fatal(err)
	}
	defer w.Stop()
	last := ""
	for e := range w.ResultChan() {
		a, ok := e.Object.(*apiregistrationv1.APIService)
		if !ok {
			continue
		}
		if c := condition(a, kind); c != nil {
			if last = c.Reason + ": " + c.Message; slices.Contains(reasons, c.Reason) {
				return c
			}
		}
	}
	f.t.Fatalf("the registration never became %s %s; now %s", kind, reasons, last)
	return nil
}

// kubectl runs it and returns what it printed, on both streams.
func (f *failing) kubectl(args ...string) (string, error) {
	f.t.Helper()
	path, err := binary()
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, path, append([]string{"kubectl"}, args...)...)
	c.Env = append(os.Environ(), "KUBECONFIG="+f.kubeconfig, "HOME="+f.t.TempDir())
	out, err := c.CombinedOutput()
	return string(out), err
}

// latency is that of requests of other groups: the middle one's and the one that 99 of 100 do not exceed.
func (f *failing) latency() (p50, p99 time.Duration) {
	f.t.Helper()
	var took []time.Duration
	for i := range 2000 {
		path := []string{"/api/v1/namespaces/default", "/apis/apps/v1/deployments", "/apis/rbac.authorization.k8s.io/v1/clusterroles/view"}[i%3]
		begun := time.Now()
		if code, text, _ := f.say(f.t.Context(), path); code != http.StatusOK {
			f.t.Errorf("GET %s: %d %s", path, code, text)
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	return took[len(took)/2], took[len(took)*99/100]
}

// hammer asks for the failing server's objects from many clients at once, until it is stopped.
func (f *failing) hammer() (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var g sync.WaitGroup
	for range 16 {
		g.Go(func() {
			for ctx.Err() == nil {
				short, done := context.WithTimeout(ctx, 500*time.Millisecond)
				f.say(short, failingThings)
				pause := time.NewTimer(5 * time.Millisecond)
				select {
				case <-pause.C:
				case <-ctx.Done():
				}
				done()
			}
		})
	}
	return func() { cancel(); g.Wait() }
}

func startFailing(t *testing.T) *failing {
	t.Helper()
	f := &failing{t: t, good: newIssuer(t, "good")}
	cert, key := f.good.server("fail.default.svc", time.Now().Add(time.Hour))
	f.server = startBehind(t, cert, key, "")
	f.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	cluster := embedtest.Start(t, &embed.Server{Node: embed.NodeNone,
		Controllers: []string{"namespace-controller", "garbage-collector-controller"}, KubeconfigFile: f.kubeconfig})
	config := cluster.Config()
	config.QPS = -1
	f.client, f.url = cluster.Client(), cluster.URL()
	var err error
	if f.api, err = aggregator.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if f.http, err = rest.HTTPClientFor(config); err != nil {
		t.Fatal(err)
	}
	_, f.port, _ = net.SplitHostPort(f.server.address)
	number, err := strconv.Atoi(f.port)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.client.CoreV1().Services("default").Create(t.Context(),
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "fail"}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeExternalName, ExternalName: "127.0.0.1",
		}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	at := int32(number)
	if _, err := f.api.APIServices().Create(t.Context(),
		&apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.fail.example.com"}, Spec: apiregistrationv1.APIServiceSpec{
			Group: "fail.example.com", Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 10, CABundle: f.good.pem,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "fail", Port: &at},
		}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.becomes("Passed")
	return f
}

// restart replaces the server by one with another certificate, at the same address.
func (f *failing) restart(cert, key string) {
	f.t.Helper()
	f.server.kill()
	f.server = startBehind(f.t, cert, key, f.server.address)
}

// unread checks what is to be seen of a server that answers, and is not understood.
func (f *failing) unread(reasons []string) {
	f.t.Helper()
	got := f.says(readable, reasons...)
	if at := "https://fail.default.svc:" + f.port + "/apis"; got.Status != apiregistrationv1.ConditionFalse ||
		!strings.HasPrefix(got.Message, at) {
		f.t.Errorf("the condition is %s: %q; want it False, and naming %s", got.Status, got.Message, at)
	}
	if c := condition(f.registration(), apiregistrationv1.Available); c == nil || c.Reason != "Passed" {
		f.t.Errorf("available: %+v", c)
	}
	// Clients are told why they do not see its resources, and so are their users.
	out, err := f.kubectl("get", "things")
	if err == nil || !strings.Contains(out, "APIService v1.fail.example.com cannot be discovered") ||
		!strings.Contains(out, "DiscoveryReadable") {
		f.t.Errorf("kubectl get things: %v\n%s", err, out)
	}
	// Who asks the server itself hears it too, as soon as who sends requests on has heard of the condition.
	ctx, cancel := context.WithTimeout(f.t.Context(), 30*time.Second)
	defer cancel()
	want := "APIService v1.fail.example.com: DiscoveryReadable is False: " + got.Reason
	said := ""
	for said = f.warned(ctx, "/apis/fail.example.com/v1"); !strings.Contains(said, want) &&
		ctx.Err() == nil; said = f.warned(ctx, "/apis/fail.example.com/v1") {
	}
	if !strings.Contains(said, want) {
		f.t.Errorf("discovery has the warning %q, want %q", said, want)
	}
}

// warned is the warning of an answer, whose body may have no end.
func (f *failing) warned(ctx context.Context, path string) string {
	f.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+path, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	resp, err := f.http.Do(r)
	if err != nil {
		return ""
	}
	_ = resp.Body.Close()
	return resp.Header.Get("Warning")
}

func (f *failing) registration() *apiregistrationv1.APIService {
	f.t.Helper()
	r, err := f.api.APIServices().Get(f.t.Context(), "v1.fail.example.com", metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

// A dead aggregated server hurts only itself: however it fails, all other groups keep their latency, kubectl works, condition and
// error name the registration, namespaces are emptied of all else; and when it is mended it is back without a restart.
func TestFailingAggregatedServer(t *testing.T) {
	f := startFailing(t)
	goodCert, goodKey := f.good.server("fail.default.svc", time.Now().Add(30*time.Minute))
	bad := newIssuer(t, "bad")
	wrongCert, wrongKey := bad.server("fail.default.svc", time.Now().Add(time.Hour))
	oldCert, oldKey := f.good.server("fail.default.svc", time.Now().Add(-time.Hour))
	signal := func(s os.Signal) func() {
		return func() {
			if err := f.server.command.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
		}
	}
	mode := func(m string) func() { return func() { f.server.mode(m) } }
	mend := func() { f.restart(goodCert, goodKey) }
	f.latency() // connections and caches
	base50, base99 := f.latency()
	t.Logf("%-20s p50 %8v p99 %8v", "all is well", base50, base99)
	for _, c := range []struct {
		name       string
		fail, mend func()
		message    string   // in the condition
		unreadable []string // reasons, if it is available, only that nobody understands what it serves
	}{
		{name: "kill -STOP", fail: signal(syscall.SIGSTOP), mend: signal(syscall.SIGCONT),
			message: "https://" + f.server.address + "/apis/fail.example.com/v1"},
		{name: "kill -9", fail: func() { f.server.kill() }, mend: mend, message: "connection refused"},
		{name: "wrong certificate", fail: func() { f.restart(wrongCert, wrongKey) }, mend: mend,
			message: "certificate signed by unknown authority"},
		{name: "expired certificate", fail: func() { f.restart(oldCert, oldKey) }, mend: mend, message: "certificate has expired"},
		{name: "5xx discovery", fail: mode("broken"), mend: mode("good"),
			message: "bad status from https://" + f.server.address + "/apis/fail.example.com/v1: 500"},
		{name: "endless discovery", fail: mode("endless"), mend: mode("good"), unreadable: []string{"TooLong", "NoAnswer"}},
		{name: "garbage discovery", fail: mode("garbage"), mend: mode("good"), unreadable: []string{"NotUnderstood"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := *f
			f.t = t
			defer func() {
				f.becomes("Passed")
				if c.unreadable != nil {
					f.says(readable, "Read")
				} else if r := f.registration(); condition(r, readable) != nil {
					t.Errorf("a server that is understood when it is there has conditions %+v", r.Status.Conditions)
				}
			}()
			c.fail()
			defer c.mend()
			stop := f.hammer()
			p50, p99 := f.latency()
			stop()
			t.Logf("%-20s p50 %8v p99 %8v", c.name, p50, p99)
			if p50 > 10*base50+20*time.Millisecond {
				t.Errorf("other groups' requests take %v, and %v when all is well", p50, base50)
			}
			if c.message != "" {
				if m := f.becomes("FailedDiscoveryCheck"); !strings.Contains(m, c.message) {
					t.Errorf("the condition says %q, want %q", m, c.message)
				}
				// Requests are routed by the condition, of which they hear when the watchers do: one that is just on its way may
				// still reach the server, and hang there if that is how it fails.
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				ask := func() (int, string, http.Header) {
					short, done := context.WithTimeout(ctx, 5*time.Second)
					defer done()
					return f.say(short, failingThings)
				}
				code, text, h := ask()
				for text != "service unavailable\n" && ctx.Err() == nil {
					code, text, h = ask()
				}
				if code != http.StatusServiceUnavailable || text != "service unavailable\n" ||
					!strings.Contains(h.Get("Warning"), "v1.fail.example.com: FailedDiscoveryCheck") {
					t.Errorf("things: %d %q %q", code, text, h.Get("Warning"))
				}
				if out, err := f.kubectl("get", "apiservices", "v1.fail.example.com"); err != nil ||
					!strings.Contains(out, "default/fail   False (FailedDiscoveryCheck)") {
					t.Errorf("kubectl get apiservices: %v\n%s", err, out)
				}
				if out, err := f.kubectl("get", "--raw", failingThings); err == nil || !strings.Contains(out, "unable to handle the request") {
					t.Errorf("kubectl get things: %v\n%s", err, out)
				}
			}
			if c.unreadable != nil {
				f.look()
				f.unread(c.unreadable)
			}
			if out, err := f.kubectl("get", "namespaces"); err != nil || !strings.Contains(out, "kube-system") {
				t.Errorf("kubectl get namespaces: %v\n%s", err, out)
			}
		})
	}
	if code, text, _ := f.say(t.Context(), failingThings); code != http.StatusOK {
		t.Errorf("mended: %d %s", code, text)
	}
}

// While an aggregated server is dead, a namespace is emptied of all else, and says for whom it waits; the garbage of other groups
// is collected; and kubectl knows all other resources. When the server is back, the namespace goes.
func TestDeadAggregatedServerAndNamespaces(t *testing.T) {
	f := startFailing(t)
	cert, key := f.good.server("fail.default.svc", time.Now().Add(30*time.Minute))
	maps := func(ns string) corev1client.ConfigMapInterface { return f.client.CoreV1().ConfigMaps(ns) }
	if _, err := f.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "going"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps("going").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held",
		Finalizers: []string{"example.com/seen"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	owner, err := maps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owned, err := maps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned",
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID},
		}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.server.kill()
	f.becomes("FailedDiscoveryCheck")

	gone := func(watch func(context.Context, metav1.ListOptions) (watch.Interface, error), name, version string,
		seen func(runtime.Object) bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		w, err := watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		for e := range w.ResultChan() {
			if seen == nil && e.Type == "DELETED" || seen != nil && seen(e.Object) {
				return
			}
		}
		t.Fatalf("%s: not in time", name)
	}
	if err := maps("default").Delete(t.Context(), "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone(maps("default").Watch, "owned", owned.ResourceVersion, nil)

	if err := f.client.CoreV1().Namespaces().Delete(t.Context(), "going", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone(maps("going").Watch, "held", "", func(o runtime.Object) bool { return o.(*corev1.ConfigMap).DeletionTimestamp != nil })
	if _, err := maps("going").Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	version := ""
	gone(f.client.CoreV1().Namespaces().Watch, "going", "", func(o runtime.Object) bool {
		ns := o.(*corev1.Namespace)
		version = ns.ResourceVersion
		return slices.ContainsFunc(ns.Status.Conditions, func(c corev1.NamespaceCondition) bool {
			return c.Type == corev1.NamespaceDeletionDiscoveryFailure && c.Status == corev1.ConditionTrue && c.Reason == "DiscoveryFailed" &&
				strings.Contains(c.Message, "fail.example.com/v1")
		})
	})
	if out, err := f.kubectl("api-resources"); !strings.Contains(out, "deployments") || err != nil {
		t.Errorf("kubectl api-resources: %v\n%s", err, out)
	}
	f.server = startBehind(t, cert, key, f.server.address)
	f.becomes("Passed")
	gone(f.client.CoreV1().Namespaces().Watch, "going", version, nil)
}
