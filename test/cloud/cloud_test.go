// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/mortise-dev/mortise/test/programs"
)

func TestMain(m *testing.M) {
	os.Exit(programs.Main(m, programs.Mortise, programs.Program{In: ".", Name: "manager", Package: "./manager"}))
}

// cluster is a Mortise.
type cluster struct{ *programs.Cluster }

// wait waits until a field of an object has a value.
func (c *cluster) wait(object, field, value string) {
	c.T.Helper()
	c.Do("", "wait", object, "--timeout=60s", "--for=jsonpath={"+field+"}="+value)
}

// is checks a field of an object.
func (c *cluster) is(object, field, want string) {
	c.T.Helper()
	if got := c.Do("", "get", object, "-o", "jsonpath={"+field+"}"); got != want {
		c.T.Errorf("%s of %s is %q, want %q", field, object, got, want)
	}
}

// TestCloud: with --cloud-provider external, a cloud's controller manager initializes the nodes, gives Services of type LoadBalancer its
// addresses and nodes their routes, and removes a node whose machine is gone. Mortise's own controllers stand back, except for Services of
// their class.
func TestCloud(t *testing.T) {
	c := &cluster{programs.Up(t, "--node", "simulated", "--nodes", "2", "--cloud-provider", "external")}
	c.Do("", "wait", "node/simulated-0", "node/simulated-1", "--timeout=60s", "--for=condition=Ready")
	const taints = `.spec.taints[?(@.key=="node.cloudprovider.kubernetes.io/uninitialized")].effect`
	c.is("node/simulated-0", taints, "NoSchedule")
	c.is("node/simulated-0", ".status.addresses[*].type", "Hostname")
	c.Do("", "create", "service", "loadbalancer", "web", "--tcp=80:8080")
	c.Do(`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "own"}, "spec": {"type": "LoadBalancer",
		"loadBalancerClass": "mortise.dev/service-lb", "ports": [{"port": 80}]}}`, "create", "-f", "-")
	c.wait("service/own", ".status.loadBalancer.ingress[0].ipMode", "VIP")
	c.is("service/web", ".status.loadBalancer", "{}")
	c.is("service/web", ".metadata.finalizers", "")

	address := "127.0.0.1:" + programs.FreePort(t)
	programs.Start(t, []string{"CLOUD_ADDRESS=" + address}, "manager", "--cloud-provider=fake", "--kubeconfig="+c.Kubeconfig,
		"--bind-address=127.0.0.1", "--secure-port=0", "--webhook-secure-port=0", "--cluster-cidr=10.244.0.0/16", "--allocate-node-cidrs=true",
		"--node-monitor-period=200ms", "--route-reconciliation-period=200ms", "--leader-elect-retry-period=500ms", "--enable-leader-migration")
	c.wait("node/simulated-1", ".spec.providerID", "fake://one")
	c.wait("node/simulated-0", ".spec.providerID", "fake://zero")
	for field, want := range map[string]string{
		taints: "", `.metadata.labels.topology\.kubernetes\.io/zone`: "zone-1", `.metadata.labels.topology\.kubernetes\.io/region`: "region-1",
		`.metadata.labels.node\.kubernetes\.io/instance-type`: "fake.large",
	} {
		c.is("node/simulated-0", field, want)
	}
	c.wait("node/simulated-0", `.status.addresses[?(@.type=="ExternalIP")].address`, "198.51.100.9")
	c.is("node/simulated-0", ".status.addresses[*].type", "InternalIP ExternalIP Hostname")

	c.wait("service/web", ".status.loadBalancer.ingress[0].ip", "203.0.113.7")
	c.is("service/web", ".metadata.finalizers[*]", "service.kubernetes.io/load-balancer-cleanup")
	c.Do("", "delete", "service", "web", "--timeout=60s")

	c.wait("node/simulated-0", `.status.conditions[?(@.type=="NetworkUnavailable")].reason`, "RouteCreated")
	c.wait("node/simulated-1", `.status.conditions[?(@.type=="NetworkUnavailable")].reason`, "RouteCreated")
	got := strings.Join(routes(t, address), ",")
	if !regexp.MustCompile(`^simulated-0 10\.244\.\d+\.0/24,simulated-1 10\.244\.\d+\.0/24$`).MatchString(got) {
		t.Errorf("the routes are %s", got)
	}

	c.Do("", "patch", "node", "simulated-1", "--subresource=status", "-p",
		`{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}`)
	tell(t, address, "stop")
	c.wait("node/simulated-1", `.spec.taints[?(@.key=="node.cloudprovider.kubernetes.io/shutdown")].effect`, "NoSchedule")
	tell(t, address, "lose")
	c.Do("", "wait", "node/simulated-1", "--for=delete", "--timeout=60s")
	c.is("node/simulated-0", ".spec.providerID", "fake://zero")
	// The second is that of the loops which kube-controller-manager had once: leader migration.
	c.Do("", "get", "lease", "cloud-controller-manager", "cloud-provider-extraction-migration", "-n", "kube-system")
}

// routes are those of the cloud.
func routes(t *testing.T, address string) (out []string) {
	t.Helper()
	resp, err := http.Get("http://" + address + "/routes")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

// tell tells the cloud what happened to its machines.
func tell(t *testing.T, address, what string) {
	t.Helper()
	resp, err := http.Post("http://"+address+"/"+what, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
}
