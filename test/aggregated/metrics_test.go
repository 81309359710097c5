// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mortise-dev/mortise/test/programs"
)

// TestMetricsAdapter reads custom and external metrics of the test adapter through the cluster.
func TestMetricsAdapter(t *testing.T) {
	c := up(t, "--node", "none", "--controllers", "namespace-controller,horizontal-pod-autoscaler-controller",
		"--horizontal-pod-autoscaler-sync-period", "1s")
	ca, cert, key := certificate(t, "adapter")
	at := programs.FreePort(t)
	adapter, told := testAdapter(t)
	process := programs.Start(t, nil, adapter, append(c.delegates(), "--lister-kubeconfig", c.Kubeconfig, "--secure-port", at,
		"--tls-cert-file", cert, "--tls-private-key-file", key)...)
	process.Await(regexp.MustCompile(`Serving securely on`))
	c.register("adapter", at, ca, "v1beta2.custom.metrics.k8s.io", "v1beta1.custom.metrics.k8s.io", "v1beta1.external.metrics.k8s.io")

	c.Do("", "create", "service", "clusterip", "kettle", "--tcp=80")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		"http://127.0.0.1:"+told+"/write-metrics/namespaces/default/services/kettle/calls", strings.NewReader(`"300m"`))
	must(t, err)
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	must(t, err)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("write a metric: %s", resp.Status)
	}
	for path, want := range map[string]string{
		"/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/services/kettle/calls":                  "300m",
		"/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/services/*/calls":                       "300m",
		"/apis/custom.metrics.k8s.io/v1beta1/namespaces/default/services/kettle/calls":                  "300m",
		"/apis/external.metrics.k8s.io/v1beta1/namespaces/default/my-external-metric?labelSelector=foo": "42",
	} {
		var list struct{ Items []struct{ Value string } }
		out := c.Do("", "get", "--raw", path)
		if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Items) == 0 || list.Items[0].Value != want {
			t.Errorf("%s: error %v, %s", path, err, out)
		}
	}
	// Of the two metrics the external one asks for more: 42 are five times 9, rounded up.
	c.Do(scaled, "create", "-f", "-")
	c.Do("", "wait", "--for=jsonpath={.spec.replicas}=5", "--timeout=60s", "deployment/web")
	if out := c.eventually("42/9 (avg)", "get", "hpa", "web"); !strings.Contains(out, "300m/1 (avg)") {
		t.Errorf("the autoscaler:\n%s", out)
	}
	c.refused("", "is forbidden", "get", "--raw", "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/my-external-metric", "--as",
		"jane")
	out := c.eventually("external.metrics.k8s.io/v1beta1", "api-versions")
	if !strings.Contains(out, "custom.metrics.k8s.io/v1beta2") {
		t.Errorf("versions:\n%s", out)
	}
}

// scaled is a Deployment that an autoscaler scales by what the test adapter tells.
const scaled = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: a, image: a}]}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec:
  maxReplicas: 9
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  metrics:
  - type: External
    external: {metric: {name: my-external-metric, selector: {matchLabels: {foo: bar}}}, target: {type: AverageValue, averageValue: "9"}}
  - type: Object
    object:
      describedObject: {apiVersion: v1, kind: Service, name: kettle}
      metric: {name: calls}
      target: {type: AverageValue, averageValue: "1"}
`

// testAdapter is the adapter and the port at which it is told of metrics: 8080, which it has in its source. Where somebody else has that
// already, it is the adapter with another port and nothing else changed.
func testAdapter(t *testing.T) (name, at string) {
	t.Helper()
	const name8080, source = "test-adapter", `":8080"`
	l, err := net.Listen("tcp", ":8080")
	if err == nil {
		must(t, l.Close())
		return name8080, "8080"
	}
	at = programs.FreePort(t)
	const module = "sigs.k8s.io/custom-metrics-apiserver"
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	must(t, err)
	file := filepath.Join(strings.TrimSpace(string(dir)), "test-adapter", "main.go")
	text, err := os.ReadFile(file)
	must(t, err)
	if strings.Count(string(text), source) != 1 {
		t.Fatalf("%s has not %s once", file, source)
	}
	own := t.TempDir()
	changed, overlay := filepath.Join(own, "main.go"), filepath.Join(own, "overlay.json")
	must(t, os.WriteFile(changed, []byte(strings.Replace(string(text), source, `"127.0.0.1:`+at+`"`, 1)), 0o600))
	instead, err := json.Marshal(map[string]map[string]string{"Replace": {file: changed}})
	must(t, err)
	must(t, os.WriteFile(overlay, instead, 0o600))
	name = name8080 + "-" + at
	build := exec.Command("go", "build", "-tags", "grpcnotrace", "-overlay", overlay, "-o", programs.Path(name), module+"/test-adapter")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return name, at
}

// TestTop has kubectl top read a server of metrics.k8s.io that is written with embed/aggregated.
func TestTop(t *testing.T) {
	c := up(t, "--node", "simulated")
	programs.Start(t, []string{"KUBECONFIG=" + c.Kubeconfig}, "metrics").Await(regexp.MustCompile(`serving on`))
	c.Do("", "wait", "--for=condition=Available", "--timeout=60s", "apiservice/v1beta1.metrics.k8s.io")
	out := c.eventually("250m", "top", "nodes")
	if !strings.Contains(out, "512Mi") {
		t.Errorf("nodes:\n%s", out)
	}
	c.Do("apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {app: web}}\nspec: {containers: [{name: a, image: a}, {name: b, image: b}]}\n", "create", "-f", "-")
	if out := c.eventually("20m", "top", "pods"); !strings.Contains(out, "64Mi") || !strings.Contains(out, "web") {
		t.Errorf("pods:\n%s", out)
	}
	if out := c.Do("", "top", "pod", "web", "--containers"); strings.Count(out, "10m") != 2 {
		t.Errorf("containers:\n%s", out)
	}
	if out, _ := c.Kubectl("", "top", "pods", "-l", "app=other"); strings.Contains(out, "web") {
		t.Errorf("pods that are not selected:\n%s", out)
	}
}

// TestExample does what the example's README says, and stops and starts it again.
func TestExample(t *testing.T) {
	c := up(t, "--node", "none", "--controllers", "namespace-controller")
	at := programs.FreePort(t) // the README has 8443, which may be somebody else's
	manifest, err := os.ReadFile(filepath.Join("..", "..", "examples", "aggregated", "manifest.yaml"))
	must(t, err)
	if !strings.Contains(string(manifest), "port: 8443") {
		t.Fatalf("the manifest does not name port 8443:\n%s", manifest)
	}
	env := []string{"KUBECONFIG=" + c.Kubeconfig, "LISTEN=127.0.0.1:" + at}
	e := programs.Start(t, env, "example")
	c.Do(strings.ReplaceAll(string(manifest), "port: 8443", "port: "+at), "apply", "-f", "-")
	c.Do("", "wait", "--for=condition=Available", "--timeout=60s", "apiservice/v1.example.com")
	const path = "/apis/example.com/v1/customresource"
	if out := c.Do("", "get", "--raw", path); !strings.Contains(out, `"message":"Hello, `) {
		t.Errorf("it answers %s", out)
	}
	e.Stop()
	c.look("aggregated")
	c.Do("", "wait", "--for=condition=Available=False", "--timeout=60s", "apiservice/v1.example.com")
	if out, err := c.Kubectl("", "get", "--raw", path); err == nil {
		t.Errorf("it answers though it is stopped: %s", out)
	}
	c.atOnce("get", "configmaps", "-A")
	programs.Start(t, env, "example").Await(regexp.MustCompile(`Serving`))
	c.look("aggregated")
	c.Do("", "wait", "--for=condition=Available", "--timeout=60s", "apiservice/v1.example.com")
	c.Do("", "get", "--raw", path)
}
