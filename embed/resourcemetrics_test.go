// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// used are the containers that have used some processor time.
var used = regexp.MustCompile(`(?m)^container_cpu_usage_seconds_total\{[^}]*\} (0\.|[1-9])`)

const metricsPath = "/apis/metrics.k8s.io/v1beta1"

// TestResourceMetrics asks for what simulated nodes and their pods use in all forms, gives way to an APIService, and comes back.
func TestResourceMetrics(t *testing.T) {
	t.Parallel()
	s := embedtest.Start(t, &embed.Server{Nodes: 2})
	c := kubernetes.NewForConfigOrDie(s.Config())
	awaitNodes(t, c, 2, ready)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, name := range []string{"web", "other"} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}, Annotations: map[string]string{
				"simulated.mortise.dev/cpu-usage": "250m", "simulated.mortise.dev/memory-usage": "7Mi",
			}},
			Spec: corev1.PodSpec{NodeName: "simulated-1", Containers: []corev1.Container{{Name: "a", Image: "i"}, {Name: "b", Image: "i"}}},
		}
		if _, err := c.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		lw := cache.NewListWatchFromClient(c.CoreV1().RESTClient(), "pods", "default", fields.OneTermEqualSelector("metadata.name", name))
		if _, err := watchtools.UntilWithSync(ctx, lw, &corev1.Pod{}, nil, func(e watch.Event) (bool, error) {
			p, ok := e.Object.(*corev1.Pod)
			return ok && p.Status.Phase == corev1.PodRunning, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for measured := false; !measured; { // by the node: all containers have used some processor time
		b, err := c.Discovery().RESTClient().Get().AbsPath("/api/v1/nodes/simulated-1/proxy/metrics/resource").DoRaw(ctx)
		measured = err == nil && len(used.FindAll(b, -1)) == 4
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatalf("the containers are not measured: %v\n%s", err, b)
		}
	}
	get := func(accept, path string) (string, int) {
		t.Helper()
		r := c.Discovery().RESTClient().Get().RequestURI(metricsPath + path)
		if accept != "" {
			r.SetHeader("Accept", accept)
		}
		code := 0
		b, _ := r.Do(ctx).StatusCode(&code).Raw() // the code says it
		return string(b), code
	}

	var pods metricsv1beta1.PodMetricsList
	text, code := get("application/json", "/namespaces/default/pods")
	if err := json.Unmarshal([]byte(text), &pods); err != nil || code != http.StatusOK || len(pods.Items) != 2 ||
		pods.Items[0].Name != "other" {
		t.Fatalf("pods: %d %s, %v", code, text, err)
	}
	if p := pods.Items[1]; len(p.Containers) != 2 || p.Labels["app"] != "web" || p.Window.Duration <= 0 || p.Timestamp.IsZero() {
		t.Errorf("the pod: %+v", p)
	}
	for _, u := range pods.Items[1].Containers {
		if cpu := u.Usage.Cpu().MilliValue(); cpu < 249 || cpu > 251 || u.Usage.Memory().String() != "7Mi" {
			t.Errorf("container %s: %v", u.Name, u.Usage)
		}
	}
	if !strings.HasPrefix(text, `{"kind":"PodMetricsList","apiVersion":"metrics.k8s.io/v1beta1","metadata":{},"items":[{"metadata":{"name":`) {
		t.Errorf("the text: %s", text)
	}
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
	for _, q := range []struct {
		accept, path string
		code         int
		want, not    string
	}{
		{"", "", 200, `"resources":[{"name":"nodes","singularName":"","namespaced":false,"kind":"NodeMetrics","verbs":["get","list"]}`, "watch"},
		{"", "/nodes", 200, `"name":"simulated-1"`, "resourceVersion"},
		{"", "/nodes/simulated-0", 200, `{"kind":"NodeMetrics","apiVersion":"metrics.k8s.io/v1beta1"`, "simulated-1"},
		{"", "/pods?limit=1", 200, `"name":"web"`, "continue"},
		{"", "/pods?labelSelector=app%3Dweb", 200, `"name":"web"`, "other"},
		{"", "/pods?fieldSelector=metadata.name%3Dweb", 200, `"name":"web"`, "other"},
		{"", "/pods?fieldSelector=metadata.namespace%3Dx", 200, `"items":[]`, "web"},
		{"", "/namespaces/none/pods", 200, `"items":[]`, "web"},
		{"", "/pods?fieldSelector=spec.nodeName%3Dx", 400, `\"spec.nodeName\" is not a known field selector: only \"metadata.name\"`, ""},
		{"", "/pods?labelSelector=a%3D%3D%3Db", 400, "", ""},
		{"", "/namespaces/default/pods/web", 200, `{"kind":"PodMetrics","apiVersion":"metrics.k8s.io/v1beta1"`, "other"},
		{"", "/namespaces/default/pods/none", 404, `pods \"none\" not found`, ""},
		{"", "/nodes/none", 404, `node \"none\" not found`, ""},
		{"", "/nodes?watch=true", 405, `watch is not supported on resources of kind \"nodes.metrics.k8s.io\"`, ""},
		{"", "/watch/nodes", 404, "", ""},
		{"", "/namespaces/default/pods/web/status", 404, "", ""},
		{"application/vnd.kubernetes.protobuf", "/nodes", 200, "k8s\x00", "{"},
		{"application/yaml", "/nodes/simulated-0", 200, "kind: NodeMetrics\n", "{"},
		{"text/csv", "/nodes", 406, "", ""},
		{table, "/namespaces/default/pods", 200, `"columnDefinitions":[{"name":"Name","type":"string","format":"name",` +
			`"description":"Name of the resource","priority":0},{"name":"cpu","type":"string","format":"quantity","description":"","priority":0},{"name":"memory",`, ""},
		{table, "/namespaces/default/pods", 200, `"14Mi","1.`, ""},
		{table, "/namespaces/none/pods", 200, `"columnDefinitions":null,"rows":null}`, ""},
		{"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "/nodes", 200, `"kind":"PartialObjectMetadataList"`, "usage"},
	} {
		accept := q.accept
		if accept == "" {
			accept = "application/json"
		}
		if text, code := get(accept, q.path); code != q.code || !strings.Contains(text, q.want) || q.not != "" && strings.Contains(text, q.not) {
			t.Errorf("%s as %s: %d %s\nwant %d with %s, without %s", q.path, accept, code, text, q.code, q.want, q.not)
		}
	}
	// A selector of labels finds the same once pods are indexed by them, which the questions above have begun.
	for range 3 {
		if text, code := get("application/json", "/namespaces/default/pods?labelSelector=app+in+(web,none)"); code != http.StatusOK ||
			!strings.Contains(text, `"name":"web"`) || strings.Contains(text, `"name":"other"`) {
			t.Errorf("by a selector: %d %s", code, text)
		}
	}
	// kubectl explain reads these documents.
	for path, want := range map[string]string{
		"/openapi/v3/apis/metrics.k8s.io/v1beta1": `"io.k8s.metrics.pkg.apis.metrics.v1beta1.PodMetrics":`,
		"/openapi/v3/apis/metrics.k8s.io":         "/apis/metrics.k8s.io/",
		"/openapi/v3":                             `"apis/metrics.k8s.io/v1beta1"`,
		"/openapi/v2":                             `"/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods/{name}":`,
	} {
		b, err := c.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s of %d bytes has no %s, %v", path, len(b), want, err)
		}
	}
	err := c.Discovery().RESTClient().Delete().AbsPath(metricsPath, "nodes", "simulated-0").Do(ctx).Error()
	if !apierrors.IsMethodNotSupported(err) {
		t.Errorf("a delete: %v", err)
	}
	view, err := c.RbacV1().ClusterRoles().Get(ctx, "view", metav1.GetOptions{})
	if err != nil || !strings.Contains(view.String(), "metrics.k8s.io") {
		t.Errorf("the role view: %v, %v", view, err)
	}

	services := aggregator.NewForConfigOrDie(s.Config()).ApiregistrationV1().APIServices()
	const name = "v1beta1.metrics.k8s.io"
	if _, err := services.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("there is an APIService: %v", err)
	}
	if _, err := services.Create(ctx, &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: apiregistrationv1.APIServiceSpec{
			Service: &apiregistrationv1.ServiceReference{Namespace: "kube-system", Name: "metrics-server"}, Group: "metrics.k8s.io",
			Version: "v1beta1", InsecureSkipTLSVerify: true, GroupPriorityMinimum: 100, VersionPriority: 100,
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if text, code := get("", "/nodes"); code != http.StatusServiceUnavailable {
		t.Errorf("with an APIService whose server is not there: %d %s", code, text)
	}
	if err := services.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if text, code := get("", "/nodes"); code != http.StatusOK || !strings.Contains(text, "simulated-0") {
		t.Errorf("without the APIService again: %d %s", code, text)
	}
}

// TestNoResourceMetrics has nobody serve the group when it is switched off.
func TestNoResourceMetrics(t *testing.T) {
	t.Parallel()
	o := &embed.Server{Nodes: 1}
	o.APIServer.Aggregation.ResourceMetrics = new(false)
	s := embedtest.Start(t, o)
	c := kubernetes.NewForConfigOrDie(s.Config()).Discovery().RESTClient()
	if err := c.Get().AbsPath(metricsPath, "nodes").Do(t.Context()).Error(); !apierrors.IsNotFound(err) {
		t.Errorf("it answers %v", err)
	}
	b, err := c.Get().AbsPath("/openapi/v3").DoRaw(t.Context())
	if err != nil || strings.Contains(string(b), "metrics.k8s.io") {
		t.Errorf("documents: %s, %v", b, err)
	}
}
