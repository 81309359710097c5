// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"net/url"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// noEndpoints is a cluster in which no service has a ready endpoint.
type noEndpoints struct{}

func (noEndpoints) ResolveEndpoint(_, name string, _ int32) (*url.URL, error) {
	return nil, apierrors.NewServiceUnavailable("no endpoints available for service " + name)
}

func withoutEndpoints(s *setting) { s.host.Services = noEndpoints{} }

// behind is a webhook for all resources behind the service hooks/hook.
func behind(server *hookServer) admissionregistrationv1.MutatingWebhook {
	h := webhookOf(server, "w")
	h.ClientConfig.URL, h.ClientConfig.Service = nil, &admissionregistrationv1.ServiceReference{Namespace: "hooks", Name: "hook"}
	h.Rules[0].Resources = []string{"*/*"}
	return h
}

// requestFor returns a request for GROUP/RESOURCE/NAMESPACE/NAME[/SUBRESOURCE].
func requestFor(op admit.Operation, path string, obj, old resource.Object) *admit.Attributes {
	p := strings.Split(path+"/", "/")
	made := func() resource.Object { return &corev1.Pod{} }
	d := &resource.Descriptor{
		Group: p[0], Resource: p[1], Kind: "Kind", Namespaced: p[2] != "", Storage: "v1", Prefix: p[1],
		Versions: []resource.Version{{Name: "v1", New: made}},
	}
	return &admit.Attributes{
		Operation: op, Descriptor: d, Version: "v1", Namespace: p[2], Name: p[3], Subresource: p[4], Object: obj, Old: old,
		User: &user.DefaultInfo{Name: "jane"},
	}
}

func labelled(app string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Labels: map[string]string{"app": app}}
}

func podOf(app string) *corev1.Pod { return &corev1.Pod{ObjectMeta: labelled(app)} }

func templateFor(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: labelled(app)}
}

// sliceOf is an endpoint slice of a service.
func sliceOf(service string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelServiceName: service}}}
}

// TestGuard covers the requests that the lock-out guard admits while the only webhook, for all resources, is down:
// those for the webhook's service and for what its pods need to recover. It also covers similar requests that the guard
// does not admit.
func TestGuard(t *testing.T) {
	service := func(selector map[string]string) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{Selector: selector}}
	}
	lease := func(holder string) *coordinationv1.Lease {
		return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}}
	}
	named := func(obj resource.Object, name string) resource.Object {
		obj.SetName(name)
		return obj
	}
	reading := func(pod *corev1.Pod, secret string) *corev1.Pod {
		pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret}}}}
		return pod
	}
	account := func(pulls, uses string) *corev1.ServiceAccount {
		return &corev1.ServiceAccount{
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "x"}, {Name: pulls}},
			Secrets:          []corev1.ObjectReference{{Name: "x"}, {Name: uses}},
		}
	}
	as := func(name string, a *admit.Attributes) *admit.Attributes {
		a.User = &user.DefaultInfo{Name: name}
		return a
	}
	const there = "services/hooks/hook"
	selecting := map[string]resource.Object{there: service(map[string]string{"app": "hook"})}
	with := func(more map[string]resource.Object) map[string]resource.Object {
		out := map[string]resource.Object{there: selecting[there]}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	template := reading(podOf("hook"), "tls")
	deployed := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Template: templateFor("hook")}}
	deployed.Spec.Template.Spec = template.Spec
	strange := &appsv1.Deployment{ObjectMeta: labelled("hook"), Spec: appsv1.DeploymentSpec{Template: templateFor("web")}}
	replicas := &corev1.ReplicationController{Spec: corev1.ReplicationControllerSpec{Template: ptr.To(templateFor("hook"))}}
	web, ofAccount := podOf("web"), podOf("hook")
	ofAccount.Spec.ServiceAccountName = "robot"
	const (
		selected = "selected by its service hooks/hook"
		used     = "used by pods of its service hooks/hook"
		leads    = "a lease of a pod of its service hooks/hook"
		failed   = `500 InternalError: Internal error occurred: failed calling webhook "w.example.com": failed to call webhook: ` +
			`Post "https://hook.hooks.svc:443/?timeout=10s": no endpoints available for service hook`
		passed = `allowed
warning webhook "w.example.com" of ValidatingWebhookConfiguration "c" cannot be called; the lock-out guard let this through without it, since it is WHY
passed.lockout-guard.extension.mortise.dev/validating_round_0_index_0 = c/w.example.com`
	)
	for _, c := range []struct {
		name   string
		asked  *admit.Attributes
		stored map[string]resource.Object
		why    string // empty: it is not admitted
	}{
		{"its service", requestFor("CREATE", "/services/hooks/hook", service(nil), nil), nil, "its service hooks/hook"},
		{"its service's end", requestFor("DELETE", "/services/hooks/hook", nil, service(nil)), nil, "its service hooks/hook"},
		{"another service", requestFor("CREATE", "/services/hooks/web", service(nil), nil), nil, ""},
		{"a service elsewhere", requestFor("CREATE", "/services/other/hook", service(nil), nil), nil, ""},
		{"another group's service", requestFor("CREATE", "example.com/services/hooks/hook", service(nil), nil), nil, ""},
		{"its namespace", requestFor("CREATE", "/namespaces//hooks", &corev1.Namespace{}, nil), nil, "the namespace of its service hooks/hook"},
		{"another namespace", requestFor("CREATE", "/namespaces//other", &corev1.Namespace{}, nil), nil, ""},
		{"its endpoints", requestFor("UPDATE", "/endpoints/hooks/hook", &corev1.ConfigMap{}, nil), nil,
			"the endpoints of its service hooks/hook"},
		{"other endpoints", requestFor("UPDATE", "/endpoints/hooks/web", &corev1.ConfigMap{}, nil), nil, ""},
		{"its endpoint slice", requestFor("CREATE", "discovery.k8s.io/endpointslices/hooks/x", sliceOf("hook"), nil), nil,
			"an endpoint slice of its service hooks/hook"},
		{"its endpoint slice's end", requestFor("DELETE", "discovery.k8s.io/endpointslices/hooks/x", nil, sliceOf("hook")), nil,
			"an endpoint slice of its service hooks/hook"},
		{"another endpoint slice", requestFor("CREATE", "discovery.k8s.io/endpointslices/hooks/x", sliceOf("web"), nil), nil, ""},

		{"its pod", requestFor("CREATE", "/pods/hooks/a", podOf("hook"), nil), selecting, selected},
		{"its pod's end", requestFor("DELETE", "/pods/hooks/a", nil, podOf("hook")), selecting, selected},
		{"a pod that was its own", requestFor("UPDATE", "/pods/hooks/a", web, podOf("hook")), selecting, selected},
		{"another pod", requestFor("CREATE", "/pods/hooks/a", web, nil), selecting, ""},
		{"another pod of a name that is taken", requestFor("CREATE", "/pods/hooks/a", web, nil),
			with(map[string]resource.Object{"pods/hooks/a": podOf("hook")}), ""},
		{"a like pod elsewhere", requestFor("CREATE", "/pods/other/a", podOf("hook"), nil), selecting, ""},
		{"its pod before there is a service", requestFor("CREATE", "/pods/hooks/a", podOf("hook"), nil), nil, ""},
		{"its pod, the service selects nothing", requestFor("CREATE", "/pods/hooks/a", podOf("hook"), nil),
			map[string]resource.Object{there: service(nil)}, ""},
		{"its pod, the service is none", requestFor("CREATE", "/pods/hooks/a", podOf("hook"), nil),
			map[string]resource.Object{there: &corev1.Secret{}}, ""},
		{"the binding of its pod", requestFor("CREATE", "/pods/hooks/a/binding", &corev1.Binding{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": podOf("hook")}), selected},
		{"the binding of another pod", requestFor("CREATE", "/pods/hooks/a/binding", &corev1.Binding{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": web}), ""},
		{"the binding of no pod", requestFor("CREATE", "/pods/hooks/a/binding", &corev1.Binding{}, nil), selecting, ""},
		{"another group's pod", requestFor("CREATE", "example.com/pods/hooks/a", podOf("hook"), nil), selecting, ""},
		{"its replication controller",
			requestFor("CREATE", "/replicationcontrollers/hooks/a", replicas, nil),
			selecting, selected},
		{"its deployment", requestFor("CREATE", "apps/deployments/hooks/a", deployed, nil), selecting, selected},
		{"a deployment of others that is labelled like it", requestFor("CREATE", "apps/deployments/hooks/a", strange, nil), selecting, ""},
		{"its replica set",
			requestFor("CREATE", "apps/replicasets/hooks/a", &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Template: templateFor("hook")}}, nil),
			selecting, selected},
		{"its stateful set",
			requestFor("CREATE", "apps/statefulsets/hooks/a", &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Template: templateFor("hook")}}, nil),
			selecting, selected},
		{"its daemon set",
			requestFor("CREATE", "apps/daemonsets/hooks/a", &appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{Template: templateFor("hook")}}, nil),
			selecting, selected},
		{"its revision", requestFor("CREATE", "apps/controllerrevisions/hooks/a", &appsv1.ControllerRevision{ObjectMeta: labelled("hook")}, nil),
			selecting, selected},
		{"its job", requestFor("CREATE", "batch/jobs/hooks/a", &batchv1.Job{Spec: batchv1.JobSpec{Template: templateFor("hook")}}, nil),
			selecting,
			selected},

		{"a secret of its pod", requestFor("CREATE", "/secrets/hooks/tls", &corev1.Secret{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": template}), used},
		{"a secret of its deployment's pods", requestFor("UPDATE", "/secrets/hooks/tls", &corev1.Secret{}, nil),
			with(map[string]resource.Object{"deployments/hooks/a": deployed}), used},
		{"a secret of another pod", requestFor("CREATE", "/secrets/hooks/tls", &corev1.Secret{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": reading(podOf("web"), "tls")}), ""},
		{"a secret of nobody", requestFor("CREATE", "/secrets/hooks/other", &corev1.Secret{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": template}), ""},
		{"a secret elsewhere", requestFor("CREATE", "/secrets/other/tls", &corev1.Secret{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": template}), ""},
		{"another group's secret", requestFor("CREATE", "example.com/secrets/hooks/tls", &corev1.Secret{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": template}), ""},
		{"a secret that has no name yet", requestFor("CREATE", "/secrets/hooks/", &corev1.Secret{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": template}), ""},
		{"the account of its pod", requestFor("CREATE", "/serviceaccounts/hooks/robot", &corev1.ServiceAccount{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": ofAccount}), used},
		{"another account", requestFor("CREATE", "/serviceaccounts/hooks/jane", &corev1.ServiceAccount{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": ofAccount}), ""},
		{"what pods do not refer to", requestFor("CREATE", "/events/hooks/tls", &corev1.Event{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": template}), ""},
		{"what its account pulls with", requestFor("CREATE", "/secrets/hooks/registry", &corev1.Secret{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": podOf("hook"), "serviceaccounts/hooks/default": account("registry", "y")}), used},
		{"what its account lets it use", requestFor("CREATE", "/secrets/hooks/token", &corev1.Secret{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": podOf("hook"), "serviceaccounts/hooks/default": account("y", "token")}), used},
		{"what its own account pulls with", requestFor("CREATE", "/secrets/hooks/registry", &corev1.Secret{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": ofAccount, "serviceaccounts/hooks/robot": account("registry", "y")}), used},
		{"what another account pulls with", requestFor("CREATE", "/secrets/hooks/registry", &corev1.Secret{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": ofAccount, "serviceaccounts/hooks/default": account("registry", "registry")}), ""},
		{"what the second pod's account pulls with", requestFor("CREATE", "/secrets/hooks/registry", &corev1.Secret{}, nil),
			with(map[string]resource.Object{
				"pods/hooks/a": podOf("hook"), "pods/hooks/b": ofAccount,
				"serviceaccounts/hooks/default": account("y", "y"), "serviceaccounts/hooks/robot": account("registry", "y"),
			}), used},
		{"what its account has nothing to do with", requestFor("CREATE", "/secrets/hooks/registry", &corev1.Secret{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": podOf("hook"), "serviceaccounts/hooks/default": account("y", "y")}), ""},
		{"what an account pulls with that is none", requestFor("CREATE", "/secrets/hooks/registry", &corev1.Secret{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": podOf("hook"), "serviceaccounts/hooks/default": &corev1.Secret{}}), ""},
		{"a config map of the name of what its account pulls with", requestFor("CREATE", "/configmaps/hooks/registry", &corev1.ConfigMap{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": podOf("hook"), "serviceaccounts/hooks/default": account("registry", "y")}), ""},
		{"a secret, beside a revision that makes no pods", requestFor("CREATE", "/secrets/hooks/tls", &corev1.Secret{}, nil),
			with(map[string]resource.Object{"controllerrevisions/hooks/a": &appsv1.ControllerRevision{ObjectMeta: labelled("hook")}}), ""},

		{"a lease of its pod", requestFor("CREATE", "coordination.k8s.io/leases/hooks/leader", lease("a_71"), nil),
			with(map[string]resource.Object{"pods/hooks/a": podOf("hook")}), leads},
		{"a lease of another pod", requestFor("CREATE", "coordination.k8s.io/leases/hooks/leader", lease("a_71"), nil),
			with(map[string]resource.Object{"pods/hooks/a": web}), ""},
		{"a lease of no pod", requestFor("CREATE", "coordination.k8s.io/leases/hooks/leader", lease("b_71"), nil),
			with(map[string]resource.Object{"pods/hooks/a": podOf("hook")}), ""},
		{"a lease of nobody", requestFor("CREATE", "coordination.k8s.io/leases/hooks/leader", &coordinationv1.Lease{}, nil),
			with(map[string]resource.Object{"pods/hooks/a": podOf("hook")}), ""},
		{"a lease's end", requestFor("DELETE", "coordination.k8s.io/leases/hooks/leader", nil, lease("a_71")),
			with(map[string]resource.Object{"pods/hooks/a": podOf("hook")}), ""},

		{"a node's status", as("system:node:n", requestFor("UPDATE", "/nodes//n/status", &corev1.Node{}, nil)), nil, "the heartbeat of node n"},
		{"a node", as("system:node:n", requestFor("UPDATE", "/nodes//n", &corev1.Node{}, nil)), nil, ""},
		{"a node's status by another node", as("system:node:m", requestFor("UPDATE", "/nodes//n/status", &corev1.Node{}, nil)), nil, ""},
		{"a node's status by a user of its name", as("n", requestFor("UPDATE", "/nodes//n/status", &corev1.Node{}, nil)), nil, ""},
		{"a node's lease", as("system:node:n", requestFor("UPDATE", "coordination.k8s.io/leases/kube-node-lease/n", lease("n"), nil)), nil,
			"the heartbeat of node n"},
		{"a node's new lease",
			as("system:node:n", requestFor("CREATE", "coordination.k8s.io/leases/kube-node-lease/", named(lease("n"), "n"), nil)), nil,
			"the heartbeat of node n"},
		{"a node's new lease of another name",
			as("system:node:n", requestFor("CREATE", "coordination.k8s.io/leases/kube-node-lease/m", named(lease("n"), "n"), nil)), nil, ""},
		{"a node's lease's end", as("system:node:n", requestFor("DELETE", "coordination.k8s.io/leases/kube-node-lease/n", nil, lease("n"))), nil,
			""},
		{"all of a node's leases", as("system:node:n", requestFor("DELETE", "coordination.k8s.io/leases/kube-node-lease/", nil, nil)), nil, ""},
		{"another node's lease", as("system:node:n", requestFor("UPDATE", "coordination.k8s.io/leases/kube-node-lease/m", lease("n"), nil)), nil,
			""},
		{"a lease of another group", as("system:node:n", requestFor("UPDATE", "example.com/leases/kube-node-lease/n", lease("n"), nil)), nil, ""},
		{"the scheduler's lease", as("system:kube-scheduler", requestFor("UPDATE", "coordination.k8s.io/leases/kube-system/x", lease("x"), nil)),
			nil, "a lease of the control plane's system:kube-scheduler"},
		{"the scheduler's lease elsewhere",
			as("system:kube-scheduler", requestFor("UPDATE", "coordination.k8s.io/leases/other/x", lease("x"), nil)), nil, ""},
		{"a user's lease there", requestFor("UPDATE", "coordination.k8s.io/leases/kube-system/x", lease("x"), nil), nil, ""},
		{"a node's lease there", as("system:node:n", requestFor("UPDATE", "coordination.k8s.io/leases/kube-system/x", lease("x"), nil)), nil, ""},
		{"an account's lease there",
			as("system:serviceaccount:kube-system:x", requestFor("UPDATE", "coordination.k8s.io/leases/kube-system/x", lease("x"), nil)), nil, ""},
		{"anybody's lease there", as("system:anonymous", requestFor("UPDATE", "coordination.k8s.io/leases/kube-system/x", lease("x"), nil)), nil,
			""},
	} {
		server := newHookServer(t)
		s := newSetting(t, Protection{Guard: true}, withoutEndpoints)
		s.objects.objects = map[string]resource.Object{}
		for k, v := range c.stored {
			s.objects.objects[k] = v
		}
		s.register(t, false, behind(server))
		got := s.outcome(t, server, c.asked)
		want := failed
		if c.why != "" {
			want = strings.Replace(passed, "WHY", c.why, 1)
		}
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, want)
		}
	}
}

// TestGuardedWebhooks covers the webhooks whose failures the lock-out guard overrides: those that could not be called
// while the client waits, and whose service is known by a reference or by the name in a URL.
func TestGuardedWebhooks(t *testing.T) {
	atURL := func(text string) func(*admissionregistrationv1.MutatingWebhook) {
		return func(h *admissionregistrationv1.MutatingWebhook) {
			h.ClientConfig.Service, h.ClientConfig.URL = nil, &text
		}
	}
	for _, c := range []struct {
		name       string
		change     func(*admissionregistrationv1.MutatingWebhook)
		protection Protection
		passes     bool
	}{
		{"its service", nil, Protection{Guard: true}, true},
		{"without the guard", nil, Protection{}, false},
		{"by its host name", atURL("https://hook.hooks.svc:1/x"), Protection{Guard: true}, true},
		{"by its whole host name", atURL("https://hook.hooks.svc.cluster.local"), Protection{Guard: true}, true},
		{"by the host name of another", atURL("https://web.hooks.svc"), Protection{Guard: true}, false},
		{"by a host name in the same place of another", atURL("https://hook.other.svc"), Protection{Guard: true}, false},
		{"a host outside", atURL("https://hook.hooks.example:1"), Protection{Guard: true}, false},
		{"a short host", atURL("https://hook:1"), Protection{Guard: true}, false},
		{"no URL", atURL("https://hook.hooks.svc:port%"), Protection{Guard: true}, false},
		{"it takes no version that is known", func(h *admissionregistrationv1.MutatingWebhook) { h.AdmissionReviewVersions = []string{"v7"} },
			Protection{Guard: true}, false},
	} {
		for _, mutating := range []bool{true, false} {
			server := newHookServer(t)
			s := newSetting(t, c.protection, withoutEndpoints, proxied(t, t.TempDir()))
			h := behind(server)
			if c.change != nil {
				c.change(&h)
			}
			s.register(t, mutating, h)
			a := requestFor("UPDATE", "/services/hooks/hook", &corev1.Service{}, nil)
			got := s.outcome(t, server, a)
			if strings.HasPrefix(got, "allowed") != c.passes || strings.Contains(got, "passed.lockout-guard") != c.passes {
				t.Errorf("%s, mutating %v: %s", c.name, mutating, got)
			}
		}
	}
	// the client has left
	server := newHookServer(t)
	s := newSetting(t, Protection{Guard: true}, withoutEndpoints)
	s.register(t, true, behind(server))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := s.outcomeIn(ctx, server, requestFor("UPDATE", "/services/hooks/hook", &corev1.Service{}, nil)); !strings.HasPrefix(got, "500") {
		t.Errorf("a request that was given up: %s", got)
	}
	// a rejection by the webhook counts
	server.say = answerOf(`"allowed":false`)
	s = newSetting(t, Protection{Guard: true})
	h := webhookOf(server, "w")
	h.Rules[0].Resources = []string{"*/*"}
	s.register(t, true, h)
	got := s.outcome(t, server, requestFor("UPDATE", "/services/hooks/hook", &corev1.Service{}, nil))
	if !strings.HasPrefix(got, `400 : admission webhook "w.example.com" denied the request`) {
		t.Errorf("what is denied: %s", got)
	}
}

// TestGuardTellsWhich checks that the audit event contains the round and the index of a skipped webhook.
func TestGuardTellsWhich(t *testing.T) {
	server := newHookServer(t)
	server.say = answerOf(`"allowed":true`)
	server.other = map[string]string{"patch": patchOf(`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`)}
	s := newSetting(t, Protection{Guard: true}, withoutEndpoints)
	dead, patch := behind(server), webhookOf(server, "patch")
	dead.ReinvocationPolicy, patch.Rules = ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy), dead.Rules
	first := webhookOf(server, "first")
	first.Rules = dead.Rules
	s.register(t, true, first, dead, patch)
	got := s.outcome(t, server, requestFor("UPDATE", "/services/hooks/hook", &corev1.Service{}, nil))
	for _, at := range []string{"round_0_index_1", "round_1_index_1"} {
		want := "passed.lockout-guard.extension.mortise.dev/admit_" + at + " = c/w.example.com"
		if !strings.Contains(got, want) {
			t.Errorf("want %s in:\n%s", want, got)
		}
	}
	if n := strings.Count(got, "passed.lockout-guard"); n != 2 {
		t.Errorf("%d marks, want 2", n)
	}
}
