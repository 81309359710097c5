// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// auditEverything are the arguments by which a program logs each request with its user, and where.
func auditEverything(t *testing.T) (args []string, log string) {
	t.Helper()
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	text := `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}`
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--audit-policy-file", policy, "--audit-log-path", log, "--audit-log-mode", "blocking"}, log
}

// checkComponents reads an audit log: no component was refused what it asked for, and none but the server itself is an
// administrator. It returns who asked for something that was granted.
func checkComponents(t *testing.T, log string) map[string]bool {
	t.Helper()
	seen, told := map[string]bool{}, map[string]bool{}
	for _, line := range readLines(t, log) {
		var e struct {
			Verb, RequestURI string
			User             struct {
				Username string
				Groups   []string
			}
			ResponseStatus struct {
				Code    int
				Message string
			}
		}
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		who := e.User.Username
		if !strings.HasPrefix(who, "system:") || who == "system:apiserver" || who == "system:anonymous" {
			continue
		}
		switch code := e.ResponseStatus.Code; {
		case slices.Contains(e.User.Groups, "system:masters"):
			if !told[who] {
				t.Errorf("%s is an administrator", who)
			}
			told[who] = true
		case code == http.StatusUnauthorized, code == http.StatusForbidden && !excused(e.ResponseStatus.Message):
			t.Errorf("%s: %s %s: %d %s", who, e.Verb, e.RequestURI, code, e.ResponseStatus.Message)
		default:
			seen[who] = true
		}
	}
	return seen
}

// TestIdentities has most controllers, the scheduler and nodes do something, each as itself.
func TestIdentities(t *testing.T) {
	args, log := auditEverything(t)
	p := up(t, t.TempDir(), append(args, "--nodes", "2", "--runtime-config", "storagemigration.k8s.io/v1beta1=true")...)
	c := p.client()
	p.kubectl("apply", "-f", "../examples/")
	p.kubectl("apply", "-f", "testdata/identities.yaml")
	awaitPods(t, c, "app=web", 20*time.Second, allReady(3))
	p.kubectl("wait", "--for=jsonpath={.data.token}", "secret/held", "--timeout=20s")
	p.kubectl("wait", "--for=jsonpath={.webhooks[0].clientConfig.caBundle}", "validatingwebhookconfiguration/trusting", "--timeout=20s")
	p.kubectl("wait", "--for=delete", "job/short", "--timeout=20s") // which it is once it has completed
	p.kubectl("wait", "--for=condition=Succeeded", "storageversionmigration/maps", "--timeout=20s")
	p.kubectl("wait", "--for=delete", "-n", "kube-system", "secret/bootstrap-token-expire", "--timeout=20s")
	p.kubectl("wait", "-n", "kube-public", "--for=jsonpath={.data.jws-kubeconfig-abcdef}", "configmap/cluster-info", "--timeout=20s")
	p.kubectl("wait", "--for=jsonpath={.status.currentHealthy}=2", "poddisruptionbudget/calm", "--timeout=20s")
	p.kubectl("rollout", "status", "daemonset/everywhere", "--timeout=20s")
	p.kubectl("rollout", "restart", "deployment/web")
	p.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
	p.kubectl("taint", "nodes", "simulated-0", "away=now:NoExecute")
	p.kubectl("taint", "nodes", "simulated-0", "away-")
	p.kubectl("delete", "serviceaccount", "robot")
	p.kubectl("wait", "--for=delete", "secret/held", "--timeout=20s")
	p.kubectl("delete", "namespace", "short", "--timeout=20s")
	p.kubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=20s")
	p.kubectl("delete", "servicecidr", "more", "--timeout=20s")
	p.stop()

	seen := checkComponents(t, log)
	want := strings.Fields("bootstrap-signer clusterrole-aggregation-controller daemon-set-controller " +
		"deployment-controller disruption-controller endpoint-controller endpointslice-controller generic-garbage-collector job-controller " +
		"kube-apiserver-serving-clustertrustbundle-publisher namespace-controller node-controller replicaset-controller replication-controller " +
		"root-ca-cert-publisher service-account-controller service-cidrs-controller storage-version-migrator-controller token-cleaner ttl-after-finished-controller webhook-trust-controller")
	for i, name := range want {
		want[i] = "system:serviceaccount:kube-system:" + name
	}
	want = append(want, "system:kube-scheduler", "system:kube-controller-manager", "system:node:simulated-0", "system:node:simulated-1")
	for _, who := range want {
		if !seen[who] {
			t.Errorf("%s did nothing; there were %v", who, slices.Sorted(maps.Keys(seen)))
		}
	}
}

// TestIdentitiesWithoutRBAC: where roles bind nobody, the components work all the same.
func TestIdentitiesWithoutRBAC(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "abac.jsonl")
	if err := os.WriteFile(policy, []byte(
		`{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"nobody","namespace":"*","resource":"*","apiGroup":"*"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p := up(t, t.TempDir(), "--authorization-mode", "ABAC", "--authorization-policy-file", policy)
	p.kubectl("apply", "-f", "../examples/")
	awaitPods(t, p.client(), "app=web", 20*time.Second, allReady(3))
	p.stop()
}

// excused reports whether a refusal is none of a component's doing: a namespace that goes takes nothing any more, and who no
// longer waits for an answer gets none.
func excused(message string) bool {
	return strings.Contains(message, "because it is being terminated") || strings.HasSuffix(message, "context canceled")
}
