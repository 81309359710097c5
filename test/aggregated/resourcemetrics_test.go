// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mortise-dev/mortise/test/programs"
)

// tick is a window of metrics-server with a resolution of 10 s: from 8 to 12 s, as the machine lets it tick.
var tick = regexp.MustCompile(`"window":"(8|9|1[01])(\.\d+)?s"`)

// loaded is a Deployment whose pods use more than the autoscaler wants.
const loaded = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}, annotations: {simulated.mortise.dev/cpu-usage: 200m, simulated.mortise.dev/memory-usage: 32Mi}}
    spec: {containers: [{name: a, image: a, resources: {requests: {cpu: 100m}}}]}
`

// TestResourceMetrics scales by CPU with nothing installed, then with metrics-server, which reads the nodes with verified certificates and
// the token of its account, and then with nothing again.
func TestResourceMetrics(t *testing.T) {
	c := up(t, "--node", "simulated", "--nodes", "2", "--horizontal-pod-autoscaler-sync-period", "2s",
		"--horizontal-pod-autoscaler-cpu-initialization-period", "0s")
	c.Do(loaded, "create", "-f", "-")
	c.Do("", "autoscale", "deployment", "web", "--cpu=100%", "--max=3")
	c.Do("", "wait", "--for=jsonpath={.spec.replicas}=3", "--timeout=60s", "deployment/web")
	if out := c.eventually("web-", "top", "pods"); !strings.Contains(out, "200m") || !strings.Contains(out, "32Mi") {
		t.Errorf("pods:\n%s", out)
	}
	if out := c.eventually("simulated-1", "top", "nodes"); !strings.Contains(out, "simulated-0") || strings.Contains(out, "unknown") {
		t.Errorf("nodes:\n%s", out)
	}

	// The whole manifest, whose pod runs nothing on a simulated node: the server runs beside the cluster, as its account.
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/metrics-server").Output()
	must(t, err)
	manifests := filepath.Join(strings.TrimSpace(string(dir)), "manifests", "base")
	c.Do("", "apply", "-k", manifests)
	c.Do("", "wait", "--for=condition=Available", "--timeout=60s", "-n", "kube-system", "deployment/metrics-server")
	token := strings.TrimSpace(c.Do("", "create", "token", "metrics-server", "-n", "kube-system"))
	own := c.as(token)
	ca, cert, key := certificate(t, "metrics-server")
	at := programs.FreePort(t)
	server := programs.Start(t, nil, "metrics-server", "--kubeconfig", own, "--authentication-kubeconfig", own, "--authorization-kubeconfig",
		own, "--secure-port", at, "--tls-cert-file", cert, "--tls-private-key-file", key,
		"--metric-resolution", "10s", "--kubelet-request-timeout", "5s",
		"--kubelet-use-node-status-port", "--kubelet-preferred-address-types", "InternalIP,ExternalIP,Hostname")
	server.Await(regexp.MustCompile(`Serving securely on`))
	c.register("metrics-server", at, ca, "v1beta1.metrics.k8s.io")
	c.Do("", "annotate", "--overwrite", "pods", "--all", "simulated.mortise.dev/cpu-usage=50m")
	c.until(func(out string, err error) bool { // its window is the time between two of its ticks, a little more or less
		return err == nil && len(tick.FindAllString(out, -1)) == 2 && strings.Contains(out, "simulated-1")
	}, "get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes")
	c.eventually("50m", "top", "pods")
	if said := server.Said(); strings.Contains(said, "x509") || strings.Contains(said, "Failed to scrape") {
		t.Errorf("metrics-server:\n%s", said)
	}
	c.until(func(out string, err error) bool { return err == nil && strings.Contains(out, "50%/100%") }, "get", "hpa", "web")

	c.Do("", "delete", "-k", manifests)
	server.Stop()
	c.Do("", "top", "nodes")
	c.eventually("50m", "top", "pods")
}
