// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension/trust"
)

// podServer is a process that is there while a pod is Running and Ready: it answers reviews with allowed.
type podServer struct {
	*hooks
	pair tls.Certificate
	addr string

	mu     sync.Mutex
	server *http.Server
}

// up listens while there is a pod, down does not.
func (s *podServer) be(t *testing.T, up bool) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case up && s.server == nil:
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", s.addr)
		if err != nil {
			t.Error(err)
			return
		}
		s.server = &http.Server{Handler: s.hooks, TLSConfig: &tls.Config{Certificates: []tls.Certificate{s.pair}, MinVersion: tls.VersionTLS12},
			ReadHeaderTimeout: time.Minute, ErrorLog: s.Config.ErrorLog}
		go func(server *http.Server) { _ = server.ServeTLS(l, "", "") }(s.server) // ends with Close
	case !up && s.server != nil:
		_ = s.server.Close() // whoever is being answered notices
		s.server = nil
	}
}

// follow makes the process be there while a pod with the label app=hook is, until ctx ends.
func (s *podServer) follow(ctx context.Context, t *testing.T, client kubernetes.Interface) {
	t.Helper()
	list, err := client.CoreV1().Pods("hooks").Watch(ctx, metav1.ListOptions{LabelSelector: "app=hook"})
	if err != nil {
		t.Error(err)
		return
	}
	there := map[string]bool{}
	for e := range list.ResultChan() {
		p, ok := e.Object.(*corev1.Pod)
		if !ok {
			continue
		}
		delete(there, p.Name)
		if e.Type != watch.Deleted && ready(*p) {
			there[p.Name] = true
		}
		s.be(t, len(there) > 0)
	}
	s.be(t, false)
}

// hookAddress is an address of this machine at which no other test listens, and from which no client calls: a port that is free there
// stays free.
const hookAddress = "127.77.0.1"

// freePort is one that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", hookAddress+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestLockOut: the only webhook of a cluster, on all pods and with the failure policy Fail, is served by a pod of the cluster, and that
// pod dies. As in every cluster no pod can be made then, not the webhook's own either, and the error names the webhook. With the
// lock-out guard the webhook's own comes back by itself, which the audit log says, and everything else waits for it.
func TestLockOut(t *testing.T) {
	for _, guard := range []bool{false, true} {
		t.Run(fmt.Sprint("guard ", guard), func(t *testing.T) {
			dir := t.TempDir()
			log := filepath.Join(dir, "audit.log")
			policy := write(t, filepath.Join(dir, "policy.yaml"),
				"apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- {level: Metadata, resources: [{resources: [pods]}], verbs: [create]}\n- {level: None}\n")
			cluster := &embed.Server{APIServer: options.APIServer{
				Audit: options.Audit{PolicyFile: policy, Log: options.AuditLog{Path: log}}, Webhooks: options.Webhooks{LockoutGuard: guard},
			}}
			if err := cluster.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Run("cluster", func(t *testing.T) { lockOut(t, cluster, guard) })
			if err := cluster.Stop(); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			if want := `"passed.lockout-guard.extension.mortise.dev/validating_round_0_index_0":"pods/fail.example.com"`; strings.Contains(
				string(data), want) != guard {
				t.Errorf("guard %v, and of the audit log's lines this has the guard: %s", guard, data)
			}
		})
	}
}

func lockOut(t *testing.T, cluster *embed.Server, guard bool) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	heard := &warned{}
	config := rest.CopyConfig(cluster.Config())
	config.WarningHandler = heard
	client := kubernetes.NewForConfigOrDie(config)
	pair, err := trust.Issue("test", []string{"hook.hooks.svc"}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s := &podServer{hooks: startHooks(t, client), addr: freePort(t)}
	if s.pair, err = tls.X509KeyPair(pair.Cert, pair.Key); err != nil {
		t.Fatal(err)
	}
	h := s.hooks
	h.on("fail", func(r *admissionv1.AdmissionReview) any {
		if strings.HasPrefix(r.Request.Name, "denied") {
			return deny("not this one")(r)
		}
		return allow(r)
	})
	h.namespace(t, "hooks")
	_, port, _ := net.SplitHostPort(s.addr)
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	// The name of the service leads to this machine, since a simulated pod has no process.
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "hook"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: hookAddress, Selector: map[string]string{"app": "hook"}}}
	if _, err := client.CoreV1().Services("hooks").Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": "hook"}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "hook"},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To(int64(0)), Containers: []corev1.Container{{Name: "c", Image: "hook"}}}}}}
	if _, err := client.AppsV1().Deployments("hooks").Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	following.Go(func() { s.follow(ctx, t, client) })
	awaitHook := func(before string) string {
		t.Helper()
		name := ""
		awaitEvent(t, client, "pods", "hooks", fields.Everything(), &corev1.Pod{}, time.Minute, func(e watch.Event) bool {
			p, ok := e.Object.(*corev1.Pod)
			name = p.GetName()
			return ok && e.Type != watch.Deleted && ready(*p) && name != before
		})
		return name
	}
	first := awaitHook("")
	s.be(t, true) // the watch may be a moment behind
	w := h.validating("fail", "")
	w.NamespaceSelector, w.Rules = nil, rules("", "v1", "pods", admissionregistrationv1.Create)
	w.ClientConfig = admissionregistrationv1.WebhookClientConfig{CABundle: pair.Authority,
		Service: &admissionregistrationv1.ServiceReference{Namespace: "hooks", Name: "hook", Path: ptr.To("/fail"), Port: ptr.To(int32(number))}}
	h.validate(t, "pods", w)
	pod := func(name string) error {
		_, err := client.CoreV1().Pods("default").Create(ctx,
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
			metav1.CreateOptions{})
		return err
	}
	if err := pod("while-it-lives"); err != nil {
		t.Fatal(err)
	}
	// What the webhook refuses stays refused, though it is one of the webhook's own.
	denied := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "denied", Labels: labels}, Spec: deployment.Spec.Template.Spec}
	if _, err := client.CoreV1().Pods("hooks").Create(ctx, denied, metav1.CreateOptions{}); err == nil ||
		!strings.Contains(err.Error(), `admission webhook "fail.example.com" denied the request: not this one`) {
		t.Errorf("a pod of the webhook's that it refuses: %v", err)
	}

	// The pod dies, its process with it.
	s.be(t, false)
	if err := client.CoreV1().Pods("hooks").Delete(ctx, first, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if !guard {
		awaitEvent(t, client, "events", "hooks", fields.Everything(), &corev1.Event{}, time.Minute, func(e watch.Event) bool {
			event, ok := e.Object.(*corev1.Event)
			return ok && event.Reason == "FailedCreate" && strings.Contains(event.Message,
				`failed calling webhook "fail.example.com": failed to call webhook: Post "https://hook.hooks.svc:`+port+`/fail?timeout=10s"`)
		})
		if err := pod("locked-out"); !apierrors.IsInternalError(err) ||
			!strings.Contains(err.Error(), `failed calling webhook "fail.example.com"`) {
			t.Errorf("a pod while the webhook is dead: %v", err)
		}
		return
	}
	awaitHook(first)
	s.be(t, true)
	if err := pod("after-it-healed"); err != nil {
		t.Errorf("a pod after the webhook came back: %v", err)
	}
	if asked := h.take(); len(asked) == 0 || asked[len(asked)-1].Request.Name != "after-it-healed" {
		t.Error("the webhook was not asked about the pod after it came back")
	}
}

// TestGuardKnowsWhatMends goes through the objects that a dead webhook's guard lets through, and their like that it does not.
func TestGuardKnowsWhatMends(t *testing.T) {
	cluster, h, heard := careful(t, options.Webhooks{LockoutGuard: true})
	for _, ns := range []string{"hooks", "other"} {
		h.namespace(t, ns)
		for name, secret := range map[string]string{"default": "registry", "web": "registry-of-web"} {
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name},
				ImagePullSecrets: []corev1.LocalObjectReference{{Name: secret}}}
			if _, err := h.client.CoreV1().ServiceAccounts(ns).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := h.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c := h.client
	dead := h.validating("dead", "")
	dead.NamespaceSelector, dead.Rules = nil, rules("*", "*", "*/*")
	dead.ClientConfig.URL, dead.ClientConfig.Service = nil, &admissionregistrationv1.ServiceReference{Namespace: "hooks", Name: "hook"}
	h.validate(t, "dead", dead)
	template := func(labels map[string]string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			ServiceAccountName: "default", AutomountServiceAccountToken: ptr.To(false),
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "hook-tls"}}}},
			Containers: []corev1.Container{{Name: "c", Image: "i",
				EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "hook-settings"}}}}}},
		}}
	}
	own, strange := map[string]string{"app": "hook", "x": "y"}, map[string]string{"app": "web"}
	deployment := func(ns, name string, labels map[string]string) error {
		_, err := c.AppsV1().Deployments(ns).Create(t.Context(),
			&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template(labels)}}, metav1.CreateOptions{})
		return err
	}
	pod := func(ns, name string, labels map[string]string) error {
		p := template(labels)
		p.Name = name
		_, err := c.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{ObjectMeta: p.ObjectMeta, Spec: p.Spec}, metav1.CreateOptions{})
		return err
	}
	secret := func(ns, name string) error {
		_, err := c.CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	settings := func(ns, name string) error {
		_, err := c.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap(name), metav1.CreateOptions{})
		return err
	}
	service := func(ns, name string) error {
		_, err := c.CoreV1().Services(ns).Create(t.Context(),
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "hook"}, Ports: []corev1.ServicePort{{Port: 443}}}}, metav1.CreateOptions{})
		return err
	}
	as := func(user string) kubernetes.Interface {
		config := rest.CopyConfig(cluster.Config())
		config.WarningHandler = heard
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters", "system:nodes"}}
		return kubernetes.NewForConfigOrDie(config)
	}
	lease := func(user, ns, name, holder string) error {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}}
		_, err := as(user).CoordinationV1().Leases(ns).Create(t.Context(), l, metav1.CreateOptions{})
		return err
	}
	heartbeat := func(user, node string) error {
		_, err := as(user).CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType,
			[]byte(`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`), metav1.PatchOptions{}, "status")
		return err
	}
	for _, step := range []struct {
		what string
		err  error
		why  string // it is let through; empty: it is not
	}{
		{"a deployment while there is no service", deployment("hooks", "early", own), ""},
		{"another service", service("hooks", "web"), ""},
		{"a service of the name elsewhere", service("other", "hook"), ""},
		{"its service", service("hooks", "hook"), "its service hooks/hook"},
		{"a strange deployment", deployment("hooks", "web", strange), ""},
		{"a like deployment elsewhere", deployment("other", "hook", own), ""},
		{"a secret that nobody uses yet", secret("hooks", "hook-tls"), ""},
		{"its deployment", deployment("hooks", "hook", own), "selected by its service hooks/hook"},
		{"its secret", secret("hooks", "hook-tls"), "used by pods of its service hooks/hook"},
		{"its settings", settings("hooks", "hook-settings"), "used by pods of its service hooks/hook"},
		{"another's settings", settings("hooks", "web-settings"), ""},
		{"its secret elsewhere", secret("other", "hook-tls"), ""},
		{"its pod", pod("hooks", "hook", own), "selected by its service hooks/hook"},
		{"a secret that its account's pods are pulled with", secret("hooks", "registry"), "used by pods of its service hooks/hook"},
		{"another account's", secret("hooks", "registry-of-web"), ""},
		{"a lease of its pod", lease("system:serviceaccount:hooks:default", "hooks", "leader", "hook_71a6"),
			"a lease of a pod of its service hooks/hook"},
		{"a lease of nobody's", lease("system:serviceaccount:hooks:default", "hooks", "strange", "web_71a6"), ""},
		{"a lease elsewhere", lease("system:serviceaccount:other:default", "other", "leader", "hook_71a6"), ""},
		{"a node's lease", lease("system:node:n", "kube-node-lease", "n", "n"), "the heartbeat of node n"},
		{"a node's lease by another", lease("jane", "kube-node-lease", "m", "m"), ""},
		{"a node's status", heartbeat("system:node:n", "n"), "the heartbeat of node n"},
		{"a node's status by another", heartbeat("jane", "n"), ""},
		{"the scheduler's lease", lease("system:kube-scheduler", "kube-system", "kube-scheduler", "a_1"),
			"a lease of the control plane's system:kube-scheduler"},
		{"a lease beside it", lease("system:serviceaccount:kube-system:default", "kube-system", "addon", "a_1"), ""},
		{"a strange pod", pod("hooks", "web", strange), ""},
		{"the binding of its pod", c.CoreV1().Pods("hooks").Bind(t.Context(),
			&corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "hook"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}},
			metav1.CreateOptions{}), "selected by its service hooks/hook"},
		{"its pod's deletion", c.CoreV1().Pods("hooks").Delete(t.Context(), "hook", metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}),
			"selected by its service hooks/hook"},
		{"the deletion of the namespace", c.CoreV1().Namespaces().Delete(t.Context(), "other", metav1.DeleteOptions{}), ""},
		{"the deletion of its namespace", c.CoreV1().Namespaces().Delete(t.Context(), "hooks", metav1.DeleteOptions{}),
			"the namespace of its service hooks/hook"},
	} {
		if step.why == "" {
			if !apierrors.IsInternalError(step.err) || !strings.Contains(step.err.Error(), `failed calling webhook "dead.example.com"`) {
				t.Errorf("%s: %v", step.what, step.err)
			}
			continue
		}
		if step.err != nil {
			t.Errorf("%s: %v", step.what, step.err)
		}
		heard.mu.Lock()
		want := `webhook "dead.example.com" of ValidatingWebhookConfiguration "dead" cannot be called; the lock-out guard let this through without it, since it is ` + step.why
		if !strings.Contains(strings.Join(heard.said, "\n"), want) {
			t.Errorf("%s: heard %q", step.what, heard.said)
		}
		heard.mu.Unlock()
	}
}
