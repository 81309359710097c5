// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// TestEachSimulatedNodeAnswersForItself scrapes nodes as metrics-server does: at each node's address, with the token of a service account
// and the cluster's authority.
func TestEachSimulatedNodeAnswersForItself(t *testing.T) {
	t.Parallel()
	s := embedtest.Start(t, &embed.Server{Nodes: 3})
	c := kubernetes.NewForConfigOrDie(s.Config())
	awaitNodes(t, c, 3, ready)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	for i := range 2 {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprint("p", i), Annotations: map[string]string{"simulated.mortise.dev/cpu-usage": "1",
					"simulated.mortise.dev/memory-usage": "7Mi"},
			},
			Spec: corev1.PodSpec{NodeName: fmt.Sprint("simulated-", i), Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}
		if _, err := c.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		lw := cache.NewListWatchFromClient(c.CoreV1().RESTClient(), "pods", "default", fields.OneTermEqualSelector("metadata.name", pod.Name))
		if _, err := watchtools.UntilWithSync(ctx, lw, &corev1.Pod{}, nil, func(e watch.Event) (bool, error) {
			p, ok := e.Object.(*corev1.Pod)
			return ok && p.Status.Phase == corev1.PodRunning, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	scraper, other := tokenOf(ctx, t, c, "scraper"), tokenOf(ctx, t, c, "other")
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "scraper"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes/metrics", "nodes/stats"}, Verbs: []string{"get"}},
	}}
	if _, err := c.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "scraper"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "scraper"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "scraper"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	get := func(node *corev1.Node, token, path string) (int, string) {
		t.Helper()
		config := rest.AnonymousClientConfig(s.Config())
		config.BearerToken = token
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		at := net.JoinHostPort(node.Status.Addresses[0].Address, strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)))
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+at+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(body)
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		own := "p" + strings.TrimPrefix(n.Name, "simulated-")
		code, body := get(n, scraper, "/metrics/resource")
		for pod, want := range map[string]bool{"p0": own == "p0", "p1": own == "p1"} {
			sample := fmt.Sprintf("container_memory_working_set_bytes{container=\"c\",namespace=\"default\",pod=%q} 7.340032e+06", pod)
			if code != http.StatusOK || strings.Contains(body, sample) != want || !strings.Contains(body, "node_cpu_usage_seconds_total ") {
				t.Errorf("%s answers %d, with pod %s: want %t\n%s", n.Name, code, pod, want, body)
			}
		}
		if code, body := get(n, scraper, "/stats/summary"); code != http.StatusOK ||
			!strings.Contains(body, fmt.Sprintf(`"nodeName":%q`, n.Name)) {
			t.Errorf("the summary of %s is %d: %s", n.Name, code, body)
		}
		if code, _ := get(n, other, "/metrics/resource"); code != http.StatusForbidden {
			t.Errorf("%s answers %d to a user without a role, want 403", n.Name, code)
		}
		if code, _ := get(n, "nonsense", "/metrics/resource"); code != http.StatusUnauthorized {
			t.Errorf("%s answers %d to a token that is nobody's, want 401", n.Name, code)
		}
		if code, _ := get(n, scraper, "/pods"); code != http.StatusForbidden {
			t.Errorf("%s answers %d to a scraper that wants its pods, want 403", n.Name, code)
		}
		// The API server comes by the same way.
		through, err := c.CoreV1().RESTClient().Get().Resource("nodes").Name(n.Name).SubResource("proxy").Suffix("pods").DoRaw(ctx)
		for _, pod := range []string{"p0", "p1"} {
			if err != nil || strings.Contains(string(through), fmt.Sprintf(`"name":%q`, pod)) != (pod == own) {
				t.Errorf("through the API server %s answers %v, with pod %s: %t", n.Name, err, pod, pod != own)
			}
		}
	}
	log, err := c.CoreV1().Pods("default").GetLogs("p1", &corev1.PodLogOptions{}).DoRaw(ctx)
	if want := "c: simulated container of pod default/p1 on node simulated-1: it has no process\n"; err != nil || string(log) != want {
		t.Errorf("the log is %q, %v; want %q", log, err, want)
	}
}

// tokenOf makes a service account and returns a token of it.
func tokenOf(ctx context.Context, t *testing.T, c kubernetes.Interface, name string) string {
	t.Helper()
	accounts := c.CoreV1().ServiceAccounts("default")
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	request, err := accounts.CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}
