// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/mortise-dev/mortise/test/programs"
)

// queue is a server of external metrics as an external scaler is: its one metric is the length of a queue. It serves until the test ends.
type queue struct {
	ca   []byte
	port string

	mu     sync.Mutex
	length string
	asked  []string // paths
}

func (q *queue) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const root = "/apis/external.metrics.k8s.io/v1beta1"
	w.Header().Set("Content-Type", "application/json")
	if strings.TrimSuffix(r.URL.Path, "/") == root {
		_, _ = io.WriteString(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"external.metrics.k8s.io/v1beta1","resources":[{"name":"externalmetrics","singularName":"","namespaced":true,"kind":"ExternalMetricValueList","verbs":["get"]}]}`)
		return
	}
	if !strings.HasPrefix(r.URL.Path, root+"/namespaces/") {
		http.NotFound(w, r)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked = append(q.asked, r.URL.Path)
	_, _ = fmt.Fprintf(w, `{"kind":"ExternalMetricValueList","apiVersion":"external.metrics.k8s.io/v1beta1","metadata":{},`+
		`"items":[{"metricName":"length","metricLabels":{},"timestamp":"2026-01-01T00:00:00Z","value":%q}]}`, q.length)
}

func (q *queue) set(length string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.length = length
}

func newQueue(t *testing.T, service string) *queue {
	t.Helper()
	ca, cert, key := certificate(t, service)
	pair, err := tls.LoadX509KeyPair(cert, key)
	must(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}})
	must(t, err)
	q := &queue{ca: ca, length: "0"}
	_, q.port, err = net.SplitHostPort(l.Addr().String())
	must(t, err)
	s := &http.Server{Handler: q, ErrorLog: log.New(io.Discard, "", 0)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l) // until it is closed
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-ended
	})
	return q
}

// route sends the metrics of a pattern to a queue behind a Service.
func (c *cluster) route(service, metrics string, q *queue) {
	c.T.Helper()
	c.Do(fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {namespace: default, name: %[1]s}
spec: {type: ExternalName, externalName: localhost, ports: [{port: %[2]s}]}
---
apiVersion: extension.mortise.dev/v1alpha1
kind: ExternalMetricsRoute
metadata: {name: %[1]s}
spec:
  metrics: [%[3]q]
  service: {namespace: default, name: %[1]s, port: %[2]s}
  caBundle: %[4]s
`, service, q.port, metrics, base64.StdEncoding.EncodeToString(q.ca)), "apply", "-f", "-")
	c.Do("", "wait", "--for=condition=Available", "--timeout=60s", "externalmetricsroute/"+service)
}

func externallyScaled(name, metric string) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: 1
  selector: {matchLabels: {app: %[1]s}}
  template: {metadata: {labels: {app: %[1]s}}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: a, image: a}]}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: %[1]s}
spec:
  minReplicas: 0
  maxReplicas: 50
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: %[1]s}
  metrics: [{type: External, external: {metric: {name: %[2]s}, target: {type: AverageValue, averageValue: "10"}}}]
  behavior:
    scaleDown: {stabilizationWindowSeconds: 0, tolerance: "0"}
    scaleUp: {tolerance: "0", policies: [{type: Pods, value: 3, periodSeconds: 1}]}
`, name, metric)
}

// TestExternalScalers scales two Deployments from zero and back by two servers of external metrics. Then the whole process is killed in the
// middle of a scale, several times, and the next one goes on to the same end.
func TestExternalScalers(t *testing.T) {
	dir := t.TempDir()
	at := programs.FreePort(t)
	args := []string{"--data-dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:" + at, "--node", "simulated",
		"--enable-external-metrics-routes", "--horizontal-pod-autoscaler-sync-period", "500ms"}
	again := func() *cluster {
		return &cluster{programs.UpIn(t, dir, args...)}
	}
	c := again()
	kafka, sqs := newQueue(t, "kafka"), newQueue(t, "sqs")
	c.route("kafka", "s*-kafka-*", kafka)
	c.route("sqs", "s*-sqs-*", sqs)
	if out := c.Do("", "get", "emr"); !strings.Contains(out, "s*-kafka-*") || !strings.Contains(out, "default/sqs") ||
		strings.Count(out, "True") != 2 {
		t.Errorf("the routes:\n%s", out)
	}
	c.Do(externallyScaled("orders", "s0-kafka-orders")+"---\n"+externallyScaled("mails", "s0-sqs-mails"), "apply", "-f", "-")
	replicas := func(name, n string) {
		t.Helper()
		if _, err := c.Kubectl("", "wait", "--for=jsonpath={.spec.replicas}="+n, "--timeout=60s", "deployment/"+name); err != nil {
			t.Fatalf("%s has not %s replicas:\n%s", name, n, c.Do("", "describe", "hpa", name))
		}
	}
	kafka.set("45")
	replicas("orders", "5")
	sqs.set("21")
	replicas("mails", "3")
	replicas("orders", "5")
	kafka.set("0")
	replicas("orders", "0")
	replicas("mails", "3")

	kafka.set("400") // 40 replicas, three at a time
	for last := range 2 {
		c.until(func(out string, err error) bool {
			n, wrong := strconv.Atoi(out)
			return err == nil && wrong == nil && n > 10*last
		}, "get", "deployment", "orders", "-o", "jsonpath={.spec.replicas}")
		must(t, c.Signal(syscall.SIGKILL))
		<-c.Ended()
		c = again()
	}
	replicas("orders", "40")
	c.Do("", "wait", "--for=jsonpath={.status.currentReplicas}=40", "--timeout=60s", "hpa/orders")
	replicas("mails", "3")
	kafka.set("0")
	replicas("orders", "0")

	// A route whose server cannot be reached: the autoscaler says so and keeps the replicas; the other one goes on.
	c.Do("", "patch", "service", "sqs", "--type=merge", "-p", `{"spec":{"externalName":"127.0.0.1","ports":[{"port":1}]}}`)
	c.Do("", "patch", "externalmetricsroute", "sqs", "--type=merge", "-p", `{"spec":{"service":{"port":1}}}`)
	c.Do("", "wait", "--for=condition=Available=False", "--timeout=60s", "externalmetricsroute/sqs")
	c.Do("", "wait", "--for=condition=ScalingActive=False", "--timeout=60s", "hpa/mails")
	kafka.set("15")
	replicas("orders", "2")
	replicas("mails", "3")
	out := c.Do("", "get", "hpa", "mails", "-o", `jsonpath={.status.conditions[?(@.type=="ScalingActive")].reason}`)
	if out != "FailedGetExternalMetric" {
		t.Errorf("the condition's reason: %s", out)
	}
	if out := c.Do("", "describe", "hpa", "mails"); !strings.Contains(out, "the server is currently unable to handle the request") {
		t.Errorf("the autoscaler:\n%s", out)
	}
}
