// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package initializers_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/options"
)

// TestWhoMayBelow: an object that waits is changed by way of its subresources, too, only by who may initialise it; once nothing is
// waited for, by whoever may the subresource. What an object waits for stays as it is in either case. The trace of the create says
// which plug-in had it wait.
func TestWhoMayBelow(t *testing.T) {
	t.Parallel()
	c := start(t, &embed.Server{APIServer: options.APIServer{Explain: options.Explain{Enabled: true}}})
	ctx := t.Context()
	c.configure(t, "deployments", "apps", "deployments", v1alpha1.Initializer{Name: "first.example.com", DeadlineSeconds: 3600})
	c.configure(t, "pods", "", "pods", v1alpha1.Initializer{Name: "first.example.com", DeadlineSeconds: 3600})
	subresources := []string{"deployments/status", "deployments/scale", "pods/status", "pods/binding"}
	for name, rules := range map[string][]rbacv1.PolicyRule{
		"jane": {{Verbs: []string{"get", "create", "update", "patch"}, APIGroups: []string{"", "apps"}, Resources: subresources}},
		"init": {{Verbs: []string{"get", "create", "update", "patch"}, APIGroups: []string{"", "apps"}, Resources: subresources},
			{Verbs: []string{"initialize"}, APIGroups: []string{"", "apps"}, Resources: []string{"deployments", "pods"}}},
	} {
		if _, err := c.client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); apierrors.IsNotFound(err) {
		if _, err := c.client.CoreV1().ServiceAccounts("default").Create(ctx,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}
	labels := map[string]string{"a": "b"}
	deployment, err := c.all.AppsV1().Deployments("default").Create(ctx,
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		}}, metav1.CreateOptions{})
	if err != nil || !v1alpha1.Uninitialized(deployment) {
		t.Fatal(deployment, err)
	}
	for _, name := range []string{"p", "q"} {
		if _, err := c.all.CoreV1().Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	as := func(user string) kubernetes.Interface {
		config := c.Config()
		config.Impersonate = rest.ImpersonationConfig{UserName: user}
		return kubernetes.NewForConfigOrDie(config)
	}
	changes := func(user, pod string) map[string]error {
		client := as(user)
		_, status := client.AppsV1().Deployments("default").Patch(ctx, "d", types.MergePatchType, []byte(`{"status":{"replicas":1}}`),
			metav1.PatchOptions{}, "status")
		_, scale := client.AppsV1().Deployments("default").UpdateScale(ctx, "d",
			&autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "default"}, Spec: autoscalingv1.ScaleSpec{Replicas: 3}},
			metav1.UpdateOptions{})
		_, patched := client.AppsV1().Deployments("default").Patch(ctx, "d", types.MergePatchType, []byte(`{"spec":{"replicas":4}}`),
			metav1.PatchOptions{}, "scale")
		_, of := client.CoreV1().Pods("default").Patch(ctx, pod, types.MergePatchType, []byte(`{"status":{"reason":"x"}}`), metav1.PatchOptions{},
			"status")
		bound := client.CoreV1().Pods("default").Bind(ctx,
			&corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}},
			metav1.CreateOptions{})
		return map[string]error{"status": status, "scale": scale, "a patch of scale": patched, "a pod's status": of, "a binding": bound}
	}
	for what, err := range changes("jane", "p") {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "update to uninitialized resource denied") {
			t.Errorf("%s by who may not initialise: %v", what, err)
		}
	}
	for what, err := range changes("init", "q") {
		if err != nil {
			t.Errorf("%s by who may initialise: %v", what, err)
		}
	}
	now, err := c.all.AppsV1().Deployments("default").Get(ctx, "d", metav1.GetOptions{})
	if err != nil || *now.Spec.Replicas != 4 ||
		now.Annotations[v1alpha1.InitializersAnnotation] != deployment.Annotations[v1alpha1.InitializersAnnotation] {
		t.Errorf("now %v: %v", now, err)
	}
	for _, o := range []struct{ group, resource, name string }{{"apis/apps/v1", "deployments", "d"}, {"api/v1", "pods", "p"}} {
		remove := []byte(`{"metadata":{"annotations":{"` + v1alpha1.InitializersAnnotation + `":null}}}`)
		if err := c.client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(o.group, "namespaces/default", o.resource,
			o.name).Body(remove).Do(ctx).Error(); err != nil {
			t.Fatal(err)
		}
	}
	for what, err := range changes("jane", "p") {
		if err != nil {
			t.Errorf("%s of what is initialised: %v", what, err)
		}
	}

	client, err := rest.HTTPClientFor(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet,
		c.URL()+"/debug/explain?group=apps&resource=deployments&namespace=default&name=d", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var told any
	if err := json.NewDecoder(resp.Body).Decode(&told); err != nil {
		t.Fatal(err)
	}
	if b, err := json.Marshal(told); err != nil || !strings.Contains(string(b), `"name":"Initializers"`) {
		t.Errorf("the traces do not name the plug-in: %s, %v", b, err)
	}
}
