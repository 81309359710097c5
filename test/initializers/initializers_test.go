// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package initializers_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// TestSidecar has an initializer add a container to pods: who created the pod gets it with the container, admission has
// completed it as it would a new one, and two who watch see it come once, as it is then.
func TestSidecar(t *testing.T) {
	t.Parallel()
	c := start(t, &embed.Server{})
	ctx := t.Context()
	const name = "sidecar.example.com"
	if _, err := c.client.CoreV1().ServiceAccounts("default").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	c.configure(t, "sidecars", "", "pods", v1alpha1.Initializer{Name: name,
		ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"proxy": "yes"}}})
	c.initializer(t, name, schema.GroupVersionResource{Version: "v1", Resource: "pods"}, func(u *unstructured.Unstructured) error {
		containers, _, err := unstructured.NestedSlice(u.Object, "spec", "containers")
		if err != nil {
			return err
		}
		containers = append(containers, map[string]any{"name": "proxy", "image": "proxy",
			"resources": map[string]any{"requests": map[string]any{"cpu": "10m"}}})
		if err := unstructured.SetNestedSlice(u.Object, containers, "spec", "containers"); err != nil {
			return err
		}
		return v1alpha1.Finish(u, name)
	})
	from, err := c.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watches := make([]<-chan string, 2)
	for i, o := range []metav1.ListOptions{{ResourceVersion: from.ResourceVersion},
		{ResourceVersion: from.ResourceVersion, LabelSelector: "proxy=yes"}} {
		w, err := c.client.CoreV1().Pods("default").Watch(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		told := make(chan string)
		watches[i] = told
		go func() {
			for e := range w.ResultChan() {
				said := fmt.Sprintf("%s: %v", e.Type, e.Object)
				if p, ok := e.Object.(*corev1.Pod); ok {
					said = fmt.Sprintf("%s %s with %d containers", e.Type, p.Name, len(p.Spec.Containers))
				}
				select {
				case told <- said:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"proxy": "yes"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	made, err := c.client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(made.Spec.Containers) != 2 || v1alpha1.Uninitialized(made) || len(made.Annotations) != 0 || made.Generation > 1 {
		t.Fatalf("created: %+v", made)
	}
	proxy := made.Spec.Containers[1]
	if proxy.ImagePullPolicy == "" || len(proxy.VolumeMounts) != 1 || made.Status.QOSClass != corev1.PodQOSBurstable {
		t.Errorf("the new container is not complete: %+v, class %s", proxy, made.Status.QOSClass)
	}
	plain := pod.DeepCopy()
	plain.Name, plain.Labels = "plain", map[string]string{"proxy": "yes", "other": "x"}
	plain.Labels["proxy"] = "no"
	if p, err := c.client.CoreV1().Pods("default").Create(ctx, plain, metav1.CreateOptions{}); err != nil || len(p.Spec.Containers) != 1 {
		t.Errorf("a pod that no selector matches: %v, %v", p, err)
	}
	mirror := plain.DeepCopy()
	mirror.Name, mirror.Annotations, mirror.Spec.NodeName = "mirror", map[string]string{corev1.MirrorPodAnnotationKey: "x"}, "node"
	mirror.Labels["proxy"] = "yes"
	if p, err := c.client.CoreV1().Pods("default").Create(ctx, mirror, metav1.CreateOptions{}); err != nil || len(p.Spec.Containers) != 1 {
		t.Errorf("a mirror pod: %v, %v", p, err)
	}
	for i, want := range [][]string{{"ADDED web with 2 containers", "ADDED plain with 1 containers"},
		{"ADDED web with 2 containers", "ADDED mirror with 1 containers"}} {
		for _, w := range want {
			if got := <-watches[i]; got != w {
				t.Errorf("watch %d: %s, want %s", i, got, w)
			}
		}
	}
}

// TestTwoInOrder has two configurations name three initializers, whose controllers come up in the wrong order.
func TestTwoInOrder(t *testing.T) {
	t.Parallel()
	c := start(t, &embed.Server{})
	c.configure(t, "b", "", "configmaps", v1alpha1.Initializer{Name: "one.b.example.com"}, v1alpha1.Initializer{Name: "one.a.example.com"})
	c.configure(t, "a", "", "configmaps", v1alpha1.Initializer{Name: "two.a.example.com"}, v1alpha1.Initializer{Name: "one.a.example.com"})
	for _, name := range []string{"one.b.example.com", "one.a.example.com", "two.a.example.com"} {
		c.initializer(t, name, configMaps, appends(name))
	}
	made, err := c.client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("m"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := "two.a.example.com;one.a.example.com;one.b.example.com;"; made.Data["by"] != want {
		t.Errorf("initialised by %s, want %s", made.Data["by"], want)
	}
	// an apply and a put that create wait too
	applied, err := c.client.CoreV1().ConfigMaps("default").Patch(t.Context(), "applied", types.ApplyPatchType,
		[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied"}}`), metav1.PatchOptions{FieldManager: "me"})
	if err != nil || applied.Data["by"] != made.Data["by"] {
		t.Errorf("applied: %v, %v", applied, err)
	}
	// a dry run does not
	dry, err := c.client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("dry"),
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if i, e := v1alpha1.InitializersOf(dry); err != nil || e != nil || i == nil || len(i.Pending) != 3 {
		t.Errorf("a dry run: %v, %v", dry, err)
	}
}

// TestRejected has an initializer refuse an object with a finalizer: the creator is told the reason, nobody else sees anything.
func TestRejected(t *testing.T) {
	t.Parallel()
	c := start(t, &embed.Server{})
	ctx := t.Context()
	const name = "judge.example.com"
	c.configure(t, "judges", "", "configmaps", v1alpha1.Initializer{Name: name})
	events, err := c.client.CoreV1().Events("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	seen, all := follow(t, c.client, metav1.ListOptions{}), follow(t, c.all, metav1.ListOptions{})
	c.initializer(t, name, configMaps, func(u *unstructured.Unstructured) error {
		if u.GetLabels()["bad"] != "yes" {
			return v1alpha1.Finish(u, name)
		}
		return v1alpha1.Reject(u, name, http.StatusPaymentRequired, "Unpaid", "pay first")
	})
	bad := configMap("bad")
	bad.Labels["bad"], bad.Finalizers = "yes", []string{"example.com/hold"}
	_, err = c.client.CoreV1().ConfigMaps("default").Create(ctx, bad, metav1.CreateOptions{})
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code != http.StatusPaymentRequired || status.Status().Reason != "Unpaid" ||
		status.Status().Message != "pay first" {
		t.Errorf("the creator is told %v", err)
	}
	if _, err := c.client.CoreV1().ConfigMaps("default").Get(ctx, "bad", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it is still there: %v", err)
	}
	if _, err := c.client.CoreV1().ConfigMaps("default").Create(ctx, configMap("good"), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	seen.want(t, "ADDED good")
	all.want(t, "ADDED bad", "MODIFIED bad", "DELETED bad", "ADDED good", "MODIFIED good")
	e := (<-events.ResultChan()).Object.(*corev1.Event)
	if e.InvolvedObject.Name != "bad" || e.InvolvedObject.Kind != "ConfigMap" || e.Reason != "InitializationFailed" ||
		e.Message != "pay first" {
		t.Errorf("the event says %+v", e)
	}
}

// TestDeadlines has nobody come: one object is rejected, another goes on without.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	c := start(t, &embed.Server{})
	c.configure(t, "dead", "", "configmaps", v1alpha1.Initializer{Name: "skipped.example.com", DeadlineSeconds: 1,
		FailurePolicy: v1alpha1.Ignore})
	c.configure(t, "secrets", "", "secrets", v1alpha1.Initializer{Name: "dead.example.com", DeadlineSeconds: 1})
	m, err := c.client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("m"), metav1.CreateOptions{})
	if err != nil || v1alpha1.Uninitialized(m) {
		t.Errorf("passed over: %v, %v", m, err)
	}
	_, err = c.client.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}},
		metav1.CreateOptions{})
	if want := "initializer dead.example.com did not finish with secrets default/s within 1s"; apierrors.ReasonForError(
		err) != v1alpha1.ReasonDeadlineExceeded || apierrors.IsTimeout(err) || err.Error() != want {
		t.Errorf("rejected: %v, want %s", err, want)
	}
	if _, err := c.client.CoreV1().Secrets("default").Get(t.Context(), "s", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it is still there: %v", err)
	}
}

// TestRestart stops the server while objects wait: what they wait for, and until when, is stored.
func TestRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := start(t, &embed.Server{DataDir: dir})
	c.configure(t, "dead", "", "configmaps", v1alpha1.Initializer{Name: "dead.example.com", DeadlineSeconds: 2})
	made, err := c.all.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("m"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.dynamic.Resource(configurations).Delete(t.Context(), "dead", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	c = start(t, &embed.Server{DataDir: dir})
	if got := names(t, c.client, metav1.ListOptions{}); len(got) != 0 {
		t.Errorf("after the restart %v are seen", got)
	}
	last := follow(t, c.all, metav1.ListOptions{ResourceVersion: made.ResourceVersion}).want(t, "MODIFIED m", "DELETED m")
	i, err := v1alpha1.InitializersOf(last)
	if err != nil || i == nil || i.Result == nil || i.Result.Reason != v1alpha1.ReasonDeadlineExceeded {
		t.Errorf("it went as %v, %v", last, err)
	}
	if waited := time.Since(i.Since.Time); waited < 2*time.Second {
		t.Errorf("it went after %v", waited)
	}
}

// TestEnding stops the server while a create waits: it is answered, and holds nothing up.
func TestEnding(t *testing.T) {
	t.Parallel()
	c := start(t, &embed.Server{DataDir: t.TempDir()})
	c.configure(t, "dead", "", "configmaps", v1alpha1.Initializer{Name: "slow.example.com", DeadlineSeconds: 3600})
	all := follow(t, c.all, metav1.ListOptions{})
	answer := make(chan error)
	go func() {
		_, err := c.client.CoreV1().ConfigMaps("default").Create(context.WithoutCancel(t.Context()), configMap("m"), metav1.CreateOptions{})
		answer <- err
	}()
	all.want(t, "ADDED m")
	all.Stop()
	begun := time.Now()
	stopped := make(chan error)
	go func() { stopped <- c.Stop() }()
	if err := <-answer; !apierrors.IsTimeout(err) || !strings.Contains(err.Error(),
		"it is stored, and has waited for initializer slow.example.com") {
		t.Errorf("told %v", err)
	}
	if err := <-stopped; err != nil || time.Since(begun) > 20*time.Second {
		t.Errorf("ended after %v: %v", time.Since(begun), err)
	}
}

// TestHidden reads in every way there is, with objects that wait between others.
func TestHidden(t *testing.T) {
	t.Parallel()
	c := start(t, &embed.Server{})
	ctx := t.Context()
	for _, name := range []string{"a", "c", "e", "g"} {
		if _, err := c.client.CoreV1().ConfigMaps("default").Create(ctx, configMap(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.configure(t, "dead", "", "configmaps", v1alpha1.Initializer{Name: "never.example.com", DeadlineSeconds: 3600})
	for _, name := range []string{"b", "d-hidden", "f", "h"} {
		if _, err := c.all.CoreV1().ConfigMaps("default").Create(ctx, configMap(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	all := []string{"a", "b", "c", "d-hidden", "e", "f", "g", "h"}
	for _, o := range []metav1.ListOptions{{}, {ResourceVersion: "0"}, {LabelSelector: "app=x"}} {
		if diff := cmp.Diff([]string{"a", "c", "e", "g"}, names(t, c.client, o)); diff != "" {
			t.Errorf("%+v: %s", o, diff)
		}
		if diff := cmp.Diff(all, names(t, c.all, o)); diff != "" {
			t.Errorf("%+v, all: %s", o, diff)
		}
	}
	one := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "b").String()}
	if got := names(t, c.client, one); len(got) != 0 {
		t.Errorf("by name %v", got)
	}
	if m, err := c.client.CoreV1().ConfigMaps("default").Get(ctx, "b", metav1.GetOptions{}); err != nil || !v1alpha1.Uninitialized(m) {
		t.Errorf("got by its name: %v, %v", m, err)
	}
	if _, err := c.client.CoreV1().ConfigMaps("default").Create(ctx, configMap("b"), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("its name is free: %v", err)
	}
	// pages of one, and what remains after each
	o, got, left := metav1.ListOptions{Limit: 1}, []string{}, []int64{}
	for {
		l, err := c.client.CoreV1().ConfigMaps("default").List(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range l.Items {
			got = append(got, m.Name)
		}
		if l.RemainingItemCount != nil {
			left = append(left, *l.RemainingItemCount)
		}
		if o.Continue = l.Continue; o.Continue == "" {
			break
		}
	}
	if diff := cmp.Diff([]string{"a", "c", "e", "g"}, got) + cmp.Diff([]int64{3, 2, 1}, left); diff != "" {
		t.Errorf("pages: %s", diff)
	}
	const path = "/api/v1/namespaces/default/configmaps"
	for _, accept := range []string{
		"application/json", "application/yaml", "application/vnd.kubernetes.protobuf",
		"application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	} {
		if b := raw(t, c.client.CoreV1().RESTClient(), path, accept); strings.Contains(b, "d-hidden") {
			t.Errorf("%s shows it: %s", accept, b)
		}
		if b := raw(t, c.client.CoreV1().RESTClient(), path, accept, "includeUninitialized=true"); !strings.Contains(b, "d-hidden") {
			t.Errorf("%s does not show it: %s", accept, b)
		}
		accept = strings.ReplaceAll(accept, "MetadataList", "Metadata")
		if !strings.HasSuffix(accept, "json") && !strings.Contains(accept, "as=Table") {
			continue // one form of bytes and one of tables are enough: each watch takes a second
		}
		if b := raw(t, c.client.CoreV1().RESTClient(), path, accept, "watch=true", "timeoutSeconds=1"); strings.Contains(b, "d-hidden") ||
			!strings.Contains(b, "g") {
			t.Errorf("watched as %s: %s", accept, b)
		}
	}
	// what waits is written to and goes without a word; whoever deletes all, means all
	w := follow(t, c.client, metav1.ListOptions{SendInitialEvents: new(bool), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	patch := jsonPatch(t, map[string]any{"data": map[string]string{"x": "y"}})
	if _, err := c.client.CoreV1().ConfigMaps("default").Patch(ctx, "b", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.client.CoreV1().ConfigMaps("default").Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.client.CoreV1().ConfigMaps("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	w.want(t, "DELETED a", "DELETED c", "DELETED e", "DELETED g")
	if got := names(t, c.all, metav1.ListOptions{}); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// TestTimeout has a creator wait for less than its object does.
func TestTimeout(t *testing.T) {
	t.Parallel()
	c := start(t, &embed.Server{})
	ctx := t.Context()
	c.configure(t, "dead", "", "configmaps", v1alpha1.Initializer{Name: "slow.example.com", DeadlineSeconds: 3600},
		v1alpha1.Initializer{Name: "later.example.com"})
	err := c.client.CoreV1().RESTClient().Post().AbsPath("/api/v1/namespaces/default/configmaps").Param("timeout",
		"4s").Body(configMap("m")).Do(ctx).Error()
	want := regexp.MustCompile(`server has timed out waiting for the initialization of configmaps m: it is stored, and has waited for initializer slow\.example\.com for [0-9]+s; 2 to come in all$`)
	if !apierrors.IsTimeout(err) || !want.MatchString(err.Error()) {
		t.Errorf("told %v, want %v", err, want)
	}
	b := raw(t, c.client.CoreV1().RESTClient(), "/debug/extensions", "application/json")
	if !strings.Contains(b, `"state":"waited for"`) || !strings.Contains(b, `"object":"configmaps default/m"`) {
		t.Errorf("extensions: %s", b)
	}
	if b := raw(t, c.client.CoreV1().RESTClient(), "/metrics", "*/*"); !strings.Contains(b,
		`mortise_initializer_waiting_objects{name="slow.example.com"} 1`) {
		t.Error("the metrics do not tell of it")
	}
	// the object comes when it is initialised, whoever waits by then
	w := follow(t, c.client, metav1.ListOptions{})
	for _, name := range []string{"slow.example.com", "later.example.com"} {
		c.initializer(t, name, configMaps, appends(name))
	}
	if m := w.want(t, "ADDED m"); m.Data["by"] != "slow.example.com;later.example.com;" {
		t.Errorf("it came as %v", m.Data)
	}
}

// TestWhoMay has a user who may create and update, but not initialise.
func TestWhoMay(t *testing.T) {
	t.Parallel()
	c := start(t, &embed.Server{})
	ctx := t.Context()
	c.configure(t, "dead", "", "configmaps", v1alpha1.Initializer{Name: "first.example.com", DeadlineSeconds: 3600},
		v1alpha1.Initializer{Name: "second.example.com"})
	allow := func(verbs ...string) {
		t.Helper()
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "jane-"},
			Rules: []rbacv1.PolicyRule{{Verbs: verbs, APIGroups: []string{""}, Resources: []string{"configmaps"}}}}
		made, err := c.client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: made.Name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole",
				Name: made.Name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "jane"}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	config := seeing(c.Config())
	config.Impersonate = rest.ImpersonationConfig{UserName: "jane"}
	jane := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")
	allow("create", "update", "patch", "get")
	m, err := jane.Create(ctx, configMap("m"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jane.Update(ctx, m, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), `configmaps "m" is forbidden: update to uninitialized resource denied`) {
		t.Errorf("an update by who may not: %v", err)
	}
	own := configMap("own")
	own.Annotations = map[string]string{v1alpha1.InitializersAnnotation: `{"pending":[]}`}
	if _, err := jane.Create(ctx, own, metav1.CreateOptions{}); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "create with initializers denied") {
		t.Errorf("a list of her own: %v", err)
	}
	allow("initialize")
	if o, err := jane.Create(ctx, own, metav1.CreateOptions{}); err != nil || v1alpha1.Uninitialized(o) || o.Annotations != nil {
		t.Errorf("without initializers: %v, %v", o, err)
	}
	own.Name, own.Annotations[v1alpha1.InitializersAnnotation] = "own2",
		`{"pending":[{"name":"mine.example.com"},{"name":"second.example.com"}]}`
	if o, err := jane.Create(ctx, own, metav1.CreateOptions{}); err != nil || !v1alpha1.Turn(o, "mine.example.com") {
		t.Errorf("with others: %v, %v", o, err)
	}
	for value, want := range map[string]string{
		`{"pending":[{"name":"short.com"}]}`:                              "should be a domain with at least three segments separated by dots",
		`{"pending":[{"name":"a.example.com"},{"name":"a.example.com"}]}`: "Duplicate value",
		`{"pending":[{"name":"a.example.com"}],"result":{"code":403}}`:    "a new object cannot have been rejected",
		`{"pending":`: "decode initializers",
	} {
		own.Name, own.Annotations[v1alpha1.InitializersAnnotation] = "wrong", value
		if _, err := jane.Create(ctx, own, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", value, err, want)
		}
	}
	// what an initializer may write
	update := func(value string) (*corev1.ConfigMap, error) {
		cur, err := jane.Get(ctx, "m", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		metav1.SetMetaDataAnnotation(&cur.ObjectMeta, v1alpha1.InitializersAnnotation, value)
		if value == "" {
			delete(cur.Annotations, v1alpha1.InitializersAnnotation)
		}
		return jane.Update(ctx, cur, metav1.UpdateOptions{})
	}
	for value, want := range map[string]string{
		"": `the next of ["first.example.com" "second.example.com"] is "first.example.com"`,
		`{"pending":[{"name":"first.example.com"}]}`:                                                             "one at a time and in order",
		`{"pending":[{"name":"second.example.com"},{"name":"first.example.com"}]}`:                               "one at a time and in order",
		`{"pending":[{"name":"first.example.com"},{"name":"second.example.com"}],"result":{"status":"Success"}}`: "must be 'Failure'",
		`{"pending":[{"name":"first.example.com"},{"name":"second.example.com"}],"result":{"code":200}}`:         "must be between 400 and 599",
	} {
		if _, err := update(value); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", value, err, want)
		}
	}
	before, err := v1alpha1.InitializersOf(m)
	if err != nil {
		t.Fatal(err)
	}
	after, err := update(`{"pending":[{"name":"second.example.com","deadlineSeconds":99999}],"since":"2000-01-01T00:00:00.000000Z"}`)
	if err != nil {
		t.Fatal(err)
	}
	i, err := v1alpha1.InitializersOf(after)
	if err != nil || i == nil || !slices.Equal(i.Pending, before.Pending[1:]) || i.Since.Before(&before.Since) {
		t.Errorf("after the first: %+v, %v", i, err)
	}
	if after, err = update(""); err != nil || after.Annotations != nil {
		t.Errorf("at last: %v, %v", after, err)
	}
	if _, err := update(`{"pending":[{"name":"first.example.com"}]}`); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "field is immutable once initialization has completed") {
		t.Errorf("once more: %v", err)
	}
}

// TestOff is without the flag: there is no such kind, and the annotation and the parameter mean nothing.
func TestOff(t *testing.T) {
	t.Parallel()
	s := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}})
	m := configMap("m")
	m.Annotations = map[string]string{v1alpha1.InitializersAnnotation: `{"pending":[{"name":"a.example.com"}]}`}
	made, err := s.Client().CoreV1().ConfigMaps("default").Create(t.Context(), m, metav1.CreateOptions{})
	if err != nil || !cmp.Equal(made.Annotations, m.Annotations) {
		t.Errorf("created %v, %v", made, err)
	}
	for _, client := range []kubernetes.Interface{s.Client(), kubernetes.NewForConfigOrDie(seeing(s.Config()))} {
		if got := names(t, client, metav1.ListOptions{}); !slices.Equal(got, []string{"m"}) {
			t.Errorf("listed %v", got)
		}
	}
	if groups, err := s.Client().Discovery().ServerGroups(); err != nil ||
		slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == v1alpha1.Group }) {
		t.Errorf("groups: %v, %v", groups, err)
	}
}
