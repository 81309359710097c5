// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
)

// lines calls f with each line of a file of testdata.
func lines(t *testing.T, file string, f func(n int, line []byte)) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; s.Scan(); n++ {
		f(n, s.Bytes())
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
}

// namespace makes a namespace with its default service account, on a server without controllers.
func namespace(t *testing.T, c kubernetes.Interface, name string) {
	t.Helper()
	if _, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := c.CoreV1().ServiceAccounts(name).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestAccessReviews asks some 1500 questions, most of them about nodes, whose answers kube-apiserver 1.37.1 gave when it held
// the same objects. A reason of * is one of several that are true.
func TestAccessReviews(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Node: embed.NodeNone, Controllers: []string{"none"}})
	c := cluster.Client()
	namespace(t, c, "dialogue")
	raw := c.CoreV1().RESTClient()
	lines(t, "authorization/objects.jsonl", func(n int, line []byte) {
		var r struct {
			Method, Path string
			Body         json.RawMessage
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("line %d: %v", n, err)
		}
		path, query, _ := strings.Cut(r.Path, "?")
		verb := raw.Verb(r.Method).AbsPath(path)
		if key, value, ok := strings.Cut(query, "="); ok {
			verb.Param(key, value)
		}
		if r.Body != nil {
			verb.SetHeader("Content-Type", "application/json").Body([]byte(r.Body))
		}
		if err := verb.Do(t.Context()).Error(); err != nil {
			t.Fatalf("line %d: %s %s: %v", n, r.Method, r.Path, err)
		}
	})
	type answer struct {
		Allowed, Denied         bool
		Reason, EvaluationError string
		Refused                 string
	}
	asked, allowed := 0, 0
	lines(t, "authorization/reviews.jsonl", func(n int, line []byte) {
		var r struct {
			Spec authorizationv1.SubjectAccessReviewSpec
			Want answer
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("line %d: %v", n, err)
		}
		var got answer
		review, err := c.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: r.Spec},
			metav1.CreateOptions{})
		switch {
		case apierrors.IsInvalid(err):
			got.Refused = err.Error()
		case err != nil:
			t.Fatalf("line %d: %v", n, err)
		default:
			s := review.Status
			got = answer{Allowed: s.Allowed, Denied: s.Denied, Reason: s.Reason, EvaluationError: s.EvaluationError}
		}
		if r.Want.Reason == "*" {
			got.Reason = "*"
		}
		if d := cmp.Diff(r.Want, got); d != "" {
			t.Errorf("line %d: %s (-want +got):\n%s", n, line, d)
		}
		asked++
		if got.Allowed {
			allowed++
		}
	})
	if asked < 1400 || allowed < 200 {
		t.Errorf("%d questions, %d of them allowed: the table is not what it was", asked, allowed)
	}
}

// kubelet is a client with a node's certificate.
func kubelet(t *testing.T, cluster *embed.Server, pki, name string) kubernetes.Interface {
	t.Helper()
	m, err := serving.LoadOrCreate(pki, nil, serving.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := m.Client("system:node:"+name, []string{"system:nodes"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(cluster.Config())
	config.CertData, config.KeyData = pair.CertPEM, pair.KeyPEM
	return kubernetes.NewForConfigOrDie(config)
}

// TestKubeletReadsWhatItsPodsReferTo: over TLS, with a client certificate of the cluster's authority, a node reads the secrets of
// its pods as long as they are bound to it, sees its own pods alone, and writes nothing that is not its own.
func TestKubeletReadsWhatItsPodsReferTo(t *testing.T) {
	dir := t.TempDir()
	cluster := embedtest.Start(t, &embed.Server{DataDir: dir, Store: "memory", Node: embed.NodeNone, Controllers: []string{"none"}})
	admin, ctx := cluster.Client(), t.Context()
	namespace(t, admin, "work")
	for _, name := range []string{"mine", "theirs", "nobodys"} {
		if _, err := admin.CoreV1().Secrets("work").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	one, two := kubelet(t, cluster, filepath.Join(dir, "pki"), "one"), kubelet(t, cluster, filepath.Join(dir, "pki"), "two")
	may := func(what string, want bool, err error) {
		t.Helper()
		if (err == nil) != want || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s: allowed should be %v: %v", what, want, err)
		}
	}
	reads := func(c kubernetes.Interface, secret string) error {
		_, err := c.CoreV1().Secrets("work").Get(ctx, secret, metav1.GetOptions{})
		return err
	}
	create := func(c kubernetes.Interface, node, name, secret string) error {
		_, err := c.CoreV1().Pods("work").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret}}}},
		}}, metav1.CreateOptions{})
		return err
	}
	may("a secret before there is a pod", false, reads(one, "mine"))
	for _, p := range [][3]string{{"one", "a", "mine"}, {"two", "b", "theirs"}, {"", "c", "nobodys"}} {
		if err := create(admin, p[0], p[1], p[2]); err != nil {
			t.Fatal(err)
		}
	}
	may("its pod's secret", true, reads(one, "mine"))
	may("another node's pod's secret", false, reads(one, "theirs"))
	may("an unbound pod's secret", false, reads(one, "nobodys"))
	may("the other node its own", true, reads(two, "theirs"))
	_, err := one.CoreV1().Secrets("work").List(ctx, metav1.ListOptions{})
	may("all secrets", false, err)
	_, err = one.CoreV1().Secrets("work").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=mine"})
	may("to watch its pod's secret", true, err)
	_, err = one.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	may("all pods", false, err)
	mine, err := one.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=one"})
	may("its pods", true, err)
	if names := slices.Collect(func(yield func(string) bool) {
		for _, p := range mine.Items {
			if !yield(p.Name) {
				return
			}
		}
	}); !slices.Equal(names, []string{"a"}) {
		t.Errorf("its pods are %v", names)
	}
	_, err = one.CoreV1().Pods("work").Get(ctx, "b", metav1.GetOptions{})
	may("another node's pod", false, err)
	may("to make a pod that reads a secret", false, create(one, "one", "evil", "theirs"))
	_, err = one.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, metav1.CreateOptions{})
	may("to register itself", true, err)
	_, err = one.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "three"}}, metav1.CreateOptions{})
	may("to register another", false, err)
	_, err = one.CoreV1().Nodes().Patch(ctx, "one", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"node-restriction.kubernetes.io/pool":"secret"}}}`), metav1.PatchOptions{})
	may("to label itself into a pool", false, err)
	_, err = one.CoreV1().Pods("work").Patch(ctx, "a", types.MergePatchType, []byte(`{"status":{"phase":"Running"}}`), metav1.PatchOptions{},
		"status")
	may("its pod's status", true, err)
	_, err = one.CoreV1().Pods("work").Patch(ctx, "b", types.MergePatchType, []byte(`{"status":{"phase":"Running"}}`), metav1.PatchOptions{},
		"status")
	may("another node's pod's status", false, err)

	// bound, and the very next request may read; gone, and it may no more
	bind := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Target: corev1.ObjectReference{Kind: "Node", Name: "one"}}
	if err := admin.CoreV1().Pods("work").Bind(ctx, bind, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	may("the secret of a pod just bound", true, reads(one, "nobodys"))
	now := int64(0)
	if err := admin.CoreV1().Pods("work").Delete(ctx, "a", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	may("the secret of a pod that is gone", false, reads(one, "mine"))

	// what is refused says by whom
	err = reads(one, "theirs")
	const want = `secrets "theirs" is forbidden: User "system:node:one" cannot get resource "secrets" in API group "" in the namespace "work": ` +
		`node: no relationship found between node 'one' and this object`
	if err == nil || err.Error() != want {
		t.Errorf("the refusal says %v", err)
	}
}

// TestModes: what kube-apiserver's flags say is what the server does, and flags that make no sense are refused before anything
// is started.
func TestModes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	policies := write("policies.jsonl", `# who may do what
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"jane","namespace":"*","resource":"pods","apiGroup":"*","readonly":true}}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"jane","namespace":"*","resource":"selfsubjectrulesreviews","apiGroup":"authorization.k8s.io"}}

{"user":"old","resource":"configmaps","namespace":"default"}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"group":"ops","nonResourcePath":"/metrics*"}}
`)
	s := &embed.Server{Node: embed.NodeNone, Controllers: []string{"none"}}
	s.APIServer.Authorization.Modes = []string{"ABAC"}
	s.APIServer.Authorization.PolicyFile = policies
	cluster := embedtest.Start(t, s)
	as := func(user string, groups ...string) kubernetes.Interface {
		config := rest.CopyConfig(cluster.Config())
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
		return kubernetes.NewForConfigOrDie(config)
	}
	ask := func(c kubernetes.Interface, method, path string) int {
		t.Helper()
		code := 0
		c.CoreV1().RESTClient().Verb(method).AbsPath(path).Do(t.Context()).StatusCode(&code)
		return code
	}
	for _, r := range []struct {
		user, group, method, path string
		want                      int
	}{
		{"jane", "", "GET", "/api/v1/pods", http.StatusOK},
		{"jane", "", "DELETE", "/api/v1/namespaces/default/pods/x", http.StatusForbidden},
		{"jane", "", "GET", "/api/v1/secrets", http.StatusForbidden},
		{"old", "", "DELETE", "/api/v1/namespaces/default/configmaps/x", http.StatusNotFound},
		{"old", "", "GET", "/api/v1/namespaces/kube-system/configmaps/x", http.StatusForbidden},
		{"joe", "ops", "GET", "/metrics", http.StatusOK},
		{"joe", "ops", "GET", "/metrics/slis", http.StatusOK},
		{"joe", "", "GET", "/metrics", http.StatusForbidden},
		{"joe", "", "GET", "/healthz", http.StatusForbidden}, // there are no roles
	} {
		if got := ask(as(r.user, r.group), r.method, r.path); got != r.want {
			t.Errorf("%s %s as %s: got %d, want %d", r.method, r.path, r.user, got, r.want)
		}
	}
	review, err := as("jane").AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
		&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}}, metav1.CreateOptions{})
	if err != nil || len(review.Status.ResourceRules) != 2 || review.Status.Incomplete ||
		review.Status.ResourceRules[0].Resources[0] != "pods" {
		t.Errorf("jane's rules: %+v %v", review, err)
	}

	for name, c := range map[string]struct {
		change func(s *embed.Server)
		want   string
	}{
		"no such mode": {func(s *embed.Server) { s.APIServer.Authorization.Modes = []string{"Magic"} },
			`authorization-mode "Magic" is not a valid mode`},
		"twice": {func(s *embed.Server) { s.APIServer.Authorization.Modes = []string{"RBAC", "RBAC"} },
			"has mode specified more than once"},
		"ABAC without": {func(s *embed.Server) { s.APIServer.Authorization.Modes = []string{"ABAC"} },
			"authorization policy file not passed"},
		"policies without": {func(s *embed.Server) { s.APIServer.Authorization.PolicyFile = policies },
			"cannot specify --authorization-policy-file without mode ABAC"},
		"webhook without": {func(s *embed.Server) { s.APIServer.Authorization.Modes = []string{"Webhook"} },
			"authorization config file not passed"},
		"both": {func(s *embed.Server) {
			s.APIServer.Authorization.Modes, s.APIServer.Authorization.ConfigFile = []string{"RBAC"}, policies
		}, "--authorization-config can not be specified"},
		"bad policy": {func(s *embed.Server) {
			s.APIServer.Authorization.Modes, s.APIServer.Authorization.PolicyFile = []string{"ABAC"}, write("bad.jsonl", "\n{\"user\": 3\n")
		}, "bad.jsonl, line 2: {\"user\": 3"},
		"not a configuration": {func(s *embed.Server) { s.APIServer.Authorization.ConfigFile = policies },
			"failed to load AuthorizationConfiguration from file"},
		"wrong name": {func(s *embed.Server) {
			s.APIServer.Authorization.ConfigFile = write("name.yaml",
				"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: RBAC, name: roles}]\n")
		}, "expected name rbac for authorizer RBAC instead of roles"},
		"unknown field": {func(s *embed.Server) {
			s.APIServer.Authorization.ConfigFile = write("field.yaml",
				"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: RBAC, name: rbac, color: red}]\n")
		}, `unknown field "authorizers[0].color"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := &embed.Server{Node: embed.NodeNone, Controllers: []string{"none"}, DataDir: filepath.Join(t.TempDir(), "data")}
			c.change(s)
			err := s.Start(t.Context())
			if err == nil {
				_ = s.Stop()
				t.Fatal("it started")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if _, err := os.Stat(s.DataDir); err == nil {
				t.Error("something was written before it was refused")
			}
		})
	}
}

// TestAuthorizationDialogue says some 140 requests, of a node, of a user without rights and of one who would give away more than he
// has, and wants the codes and messages that kube-apiserver 1.37.1 gave to the same dialogue.
func TestAuthorizationDialogue(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Node: embed.NodeNone, Controllers: []string{"none"}})
	c := cluster.Client()
	namespace(t, c, "dialogue")
	transport, err := rest.TransportFor(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	lines(t, "authorization/dialogue.jsonl", func(n int, line []byte) {
		var r struct {
			ID, Method, Path, User, Group, Type, Message string
			Body                                         json.RawMessage
			Code                                         int
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("line %d: %v", n, err)
		}
		q, err := http.NewRequestWithContext(t.Context(), r.Method, cluster.URL()+r.Path, bytes.NewReader(r.Body))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"Impersonate-User": r.User, "Impersonate-Group": r.Group, "Content-Type": r.Type,
			"Accept": "application/json"} {
			if value != "" {
				q.Header.Set(name, value)
			}
		}
		if r.Type == "" {
			q.Header.Set("Content-Type", "application/json")
		}
		answer, err := transport.RoundTrip(q)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		said, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		message := ""
		if answer.StatusCode >= 400 {
			var s metav1.Status
			if message = string(said); json.Unmarshal(said, &s) == nil {
				message = s.Message
			}
		}
		if answer.StatusCode == http.StatusForbidden {
			refused++
		}
		if answer.StatusCode != r.Code || masked(message) != masked(r.Message) {
			t.Errorf("%s (line %d): %s %s as %s:\n got %d %s\nwant %d %s", r.ID, n, r.Method, r.Path, r.User, answer.StatusCode, message, r.Code,
				r.Message)
		}
	})
	if refused < 60 {
		t.Errorf("%d requests were refused: the dialogue is not what it was", refused)
	}
}

var changing = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// masked is a message without what differs from run to run.
func masked(message string) string { return changing.ReplaceAllString(message, "UID") }
