// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// limit is how long anything may take.
const limit = time.Minute

// programs is the folder of what the test runs, built once.
var programs string

func program(name string) string { return filepath.Join(programs, name) }

func TestMain(m *testing.M) {
	os.Exit(func() int {
		built := flag.String("programs", "", "a folder that has the programs already; empty: they are built")
		flag.Parse()
		if programs = *built; programs != "" {
			return m.Run()
		}
		dir, err := os.MkdirTemp("", "mortise-cloud-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		programs = dir
		for _, b := range []struct{ in, name, pkg string }{
			{filepath.Join("..", ".."), "mortise", "./cmd/mortise"}, {".", "manager", "./manager"},
		} {
			build := exec.Command("go", "build", "-tags", "grpcnotrace", "-o", program(b.name), b.pkg)
			build.Dir, build.Env = b.in, append(os.Environ(), "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "build %s: %v\n%s", b.pkg, err, out)
				return 1
			}
		}
		return m.Run()
	}())
}

// process is a program that runs until the test ends.
type process struct {
	ended chan struct{}
	mu    sync.Mutex
	said  bytes.Buffer
	heard chan struct{}
}

// Write takes what the program says.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said.Write(b)
	select {
	case p.heard <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

func start(t *testing.T, env []string, name string, args ...string) *process {
	t.Helper()
	p := &process{ended: make(chan struct{}), heard: make(chan struct{}, 1)}
	cmd := exec.Command(program(name), args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = p, p, append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait() // how it ended is in what it said
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
		select {
		case <-p.ended:
		case <-time.After(2 * time.Second):
			_ = cmd.Process.Kill()
			<-p.ended
		}
		if t.Failed() {
			said := p.text()
			t.Logf("%s said:\n%s", name, said[max(0, len(said)-6000):])
		}
	})
	return p
}

// await waits until the program has said something.
func (p *process) await(t *testing.T, what string) {
	t.Helper()
	for late := time.After(limit); !regexp.MustCompile(what).MatchString(p.text()); {
		select {
		case <-p.heard:
		case <-p.ended:
			t.Fatalf("the program ended before it said %q", what)
		case <-late:
			t.Fatalf("the program did not say %q", what)
		}
	}
}

// cluster is a Mortise.
type cluster struct {
	t    *testing.T
	home string
}

func (c *cluster) kubectl(input string, args ...string) string {
	c.t.Helper()
	cmd := exec.Command(program("mortise"), append([]string{"kubectl"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(c.home, "kubeconfig"), "HOME="+c.home)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// wait waits until a field of an object has a value.
func (c *cluster) wait(object, field, value string) {
	c.t.Helper()
	c.kubectl("", "wait", object, "--timeout=60s", "--for=jsonpath={"+field+"}="+value)
}

// is checks a field of an object.
func (c *cluster) is(object, field, want string) {
	c.t.Helper()
	if got := c.kubectl("", "get", object, "-o", "jsonpath={"+field+"}"); got != want {
		c.t.Errorf("%s of %s is %q, want %q", field, object, got, want)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestCloud: with --cloud-provider external, a cloud's controller manager initializes the nodes, gives Services of type LoadBalancer its
// addresses and nodes their routes, and removes a node whose machine is gone. Mortise's own controllers stand back, except for Services of
// their class.
func TestCloud(t *testing.T) {
	c := &cluster{t: t, home: t.TempDir()}
	mortise := start(t, nil, "mortise", "up", "--data-dir", filepath.Join(c.home, "data"), "--kubeconfig", filepath.Join(c.home, "kubeconfig"),
		"--listen", "127.0.0.1:0", "--node", "simulated", "--nodes", "2", "--cloud-provider", "external")
	mortise.await(t, `(?m)^mortise: ready in `)
	c.kubectl("", "wait", "node/simulated-0", "node/simulated-1", "--timeout=60s", "--for=condition=Ready")
	const taints = `.spec.taints[?(@.key=="node.cloudprovider.kubernetes.io/uninitialized")].effect`
	c.is("node/simulated-0", taints, "NoSchedule")
	c.is("node/simulated-0", ".status.addresses[*].type", "Hostname")
	c.kubectl("", "create", "service", "loadbalancer", "web", "--tcp=80:8080")
	c.kubectl(`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "own"}, "spec": {"type": "LoadBalancer",
		"loadBalancerClass": "mortise.dev/service-lb", "ports": [{"port": 80}]}}`, "create", "-f", "-")
	c.wait("service/own", ".status.loadBalancer.ingress[0].ipMode", "VIP")
	c.is("service/web", ".status.loadBalancer", "{}")
	c.is("service/web", ".metadata.finalizers", "")

	address := freePort(t)
	start(t, []string{"CLOUD_ADDRESS=" + address}, "manager", "--cloud-provider=fake", "--kubeconfig="+filepath.Join(c.home, "kubeconfig"),
		"--bind-address=127.0.0.1", "--secure-port=0", "--webhook-secure-port=0", "--cluster-cidr=10.244.0.0/16", "--allocate-node-cidrs=true",
		"--node-monitor-period=200ms", "--route-reconciliation-period=200ms", "--leader-elect-retry-period=500ms")
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
	c.kubectl("", "delete", "service", "web", "--timeout=60s")

	c.wait("node/simulated-0", `.status.conditions[?(@.type=="NetworkUnavailable")].reason`, "RouteCreated")
	c.wait("node/simulated-1", `.status.conditions[?(@.type=="NetworkUnavailable")].reason`, "RouteCreated")
	got := strings.Join(routes(t, address), ",")
	if !regexp.MustCompile(`^simulated-0 10\.244\.\d+\.0/24,simulated-1 10\.244\.\d+\.0/24$`).MatchString(got) {
		t.Errorf("the routes are %s", got)
	}

	c.kubectl("", "patch", "node", "simulated-1", "--subresource=status", "-p",
		`{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}`)
	tell(t, address, "stop")
	c.wait("node/simulated-1", `.spec.taints[?(@.key=="node.cloudprovider.kubernetes.io/shutdown")].effect`, "NoSchedule")
	tell(t, address, "lose")
	c.kubectl("", "wait", "node/simulated-1", "--for=delete", "--timeout=60s")
	c.is("node/simulated-0", ".spec.providerID", "fake://zero")
	c.kubectl("", "get", "lease", "cloud-controller-manager", "-n", "kube-system")
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
