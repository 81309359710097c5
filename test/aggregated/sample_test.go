// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated

import (
	"bufio"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/test/programs"
)

const flunder = "apiVersion: wardle.example.com/v1beta1\nkind: Flunder\nmetadata: {name: %s}\nspec: {}\n"

// sample starts Kubernetes' sample API server, with an etcd of its own, behind a cluster.
func sample(t *testing.T, c *cluster) *programs.Process {
	t.Helper()
	client, peer := "http://127.0.0.1:"+programs.FreePort(t), "http://127.0.0.1:"+programs.FreePort(t)
	etcd := programs.Start(t, nil, "etcd", "--data-dir", filepath.Join(t.TempDir(), "etcd"), "--listen-client-urls", client,
		"--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	etcd.Await(regexp.MustCompile(`ready to serve client requests`))
	ca, cert, key := certificate(t, "wardle")
	at := programs.FreePort(t)
	s := programs.Start(t, nil, "sample-apiserver", append(c.delegates(), "--kubeconfig", c.Kubeconfig, "--etcd-servers", client,
		"--secure-port", at, "--tls-cert-file", cert, "--tls-private-key-file", key)...)
	s.Await(regexp.MustCompile(`Serving securely on`))
	c.register("wardle", at, ca, "v1beta1.wardle.example.com", "v1alpha1.wardle.example.com")
	return s
}

// TestSampleServer drives the kinds of the sample server by kubectl: all verbs, watching, both sides' permissions, its admission, its
// OpenAPI.
func TestSampleServer(t *testing.T) {
	c := up(t, "--node", "none", "--controllers", "namespace-controller,garbage-collector-controller")
	sample(t, c)

	t.Run("discovery", func(t *testing.T) {
		c := c.in(t)
		out := c.eventually("flunders", "api-resources", "--api-group", "wardle.example.com")
		for _, want := range []string{"fischers", "wardle.example.com/v1beta1", "Flunder"} {
			if !strings.Contains(out, want) && !strings.Contains(out, strings.Replace(want, "v1beta1", "v1alpha1", 1)) {
				t.Errorf("no %s in\n%s", want, out)
			}
		}
		if out := c.Do("", "api-versions"); !strings.Contains(out, "wardle.example.com/v1alpha1\nwardle.example.com/v1beta1") {
			t.Errorf("versions:\n%s", out)
		}
		var group struct{ PreferredVersion struct{ Version string } }
		if err := json.Unmarshal([]byte(c.Do("", "get", "--raw", "/apis/wardle.example.com")), &group); err != nil ||
			group.PreferredVersion.Version != "v1beta1" {
			t.Errorf("preferred: %+v, error %v", group, err)
		}
	})

	t.Run("verbs", func(t *testing.T) {
		c := c.in(t)
		watch := c.Command("get", "flunders", "--watch", "--output-watch-events", "-o", `jsonpath={.type} {.object.metadata.name}{"\n"}`)
		out, err := watch.StdoutPipe()
		must(t, err)
		must(t, watch.Start())
		defer func() { _ = watch.Process.Kill(); _ = watch.Wait() }()
		seen := make(chan string, 10)
		go func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				seen <- lines.Text()
			}
		}()
		next := func(want string) {
			t.Helper()
			select {
			case got := <-seen:
				if got != want {
					t.Errorf("watched %q, want %q", got, want)
				}
			case <-time.After(limit):
				t.Fatalf("did not watch %q", want)
			}
		}
		c.Do(fmt.Sprintf(flunder, "one"), "create", "-f", "-")
		next("ADDED one")
		if out := c.Do("", "get", "flunders"); !strings.Contains(out, "one") {
			t.Errorf("list:\n%s", out)
		}
		c.Do("", "label", "flunder", "one", "size=small")
		next("MODIFIED one")
		if out := c.Do("", "get", "flunder", "one", "-o",
			"jsonpath={.metadata.labels.size} {.apiVersion}"); out != "small wardle.example.com/v1beta1" {
			t.Errorf("get: %s", out)
		}
		c.Do(strings.ReplaceAll(fmt.Sprintf(flunder, "two"), "spec: {}", "spec: {flunderReference: one, referenceType: Flunder}"), "apply",
			"--server-side", "-f", "-")
		next("ADDED two")
		if out := c.Do("", "get", "flunders.v1alpha1.wardle.example.com", "-l", "size=small", "-o", "name"); !strings.HasSuffix(out,
			"flunder.wardle.example.com/one\n") {
			t.Errorf("by label, in the other version: %s", out)
		}
		c.Do("", "delete", "flunder", "one")
		next("DELETED one")
		c.refused("", `flunders.wardle.example.com "one" not found`, "get", "flunder", "one")
	})

	t.Run("its admission", func(t *testing.T) {
		c := c.in(t)
		c.Do("apiVersion: wardle.example.com/v1alpha1\nkind: Fischer\nmetadata: {name: ban}\ndisallowedFlunders: [bad]\n", "create", "-f", "-")
		look := time.NewTicker(50 * time.Millisecond) // its plug-in learns of fischers by a watch
		defer look.Stop()
		for late := time.After(limit); ; {
			out, err := c.Kubectl(fmt.Sprintf(flunder, "bad"), "create", "-f", "-")
			if err != nil && strings.Contains(out, `"bad" is forbidden: this name may not be used`) {
				return
			}
			if err == nil {
				c.Do("", "delete", "flunder", "bad")
			}
			select {
			case <-look.C:
			case <-late:
				t.Fatalf("it is not refused: %v\n%s", err, out)
			}
		}
	})

	t.Run("permissions", func(t *testing.T) {
		c := c.in(t)
		c.refused("", `User "jane" cannot list resource "flunders"`, "get", "flunders", "--as", "jane")
		c.Do("", "create", "role", "flunders", "--verb=get,list", "--resource=flunders.wardle.example.com")
		c.Do("", "create", "rolebinding", "flunders", "--role=flunders", "--user=jane")
		look := time.NewTicker(100 * time.Millisecond) // the other server keeps the cluster's answers for ten seconds
		defer look.Stop()
		for late := time.After(limit); ; {
			out, err := c.Kubectl("", "get", "flunders", "--as", "jane")
			if err == nil {
				break
			}
			select {
			case <-look.C:
			case <-late:
				t.Fatalf("jane may not: %s", out)
			}
		}
		c.refused("", `User "jane" cannot delete resource "flunders"`, "delete", "flunder", "two", "--as", "jane")
	})

	t.Run("explain", func(t *testing.T) {
		c := c.in(t)
		out := c.eventually("Flunder", "explain", "flunders.spec")
		for _, want := range []string{"VERSION:", "v1beta1", "flunderReference", "referenceType"} {
			if !strings.Contains(out, want) {
				t.Errorf("no %s in\n%s", want, out)
			}
		}
		var doc struct {
			Paths       map[string]json.RawMessage
			Definitions map[string]json.RawMessage
		}
		must(t, json.Unmarshal([]byte(c.Do("", "get", "--raw", "/openapi/v2")), &doc))
		if doc.Paths["/apis/wardle.example.com/v1beta1/namespaces/{namespace}/flunders"] == nil || doc.Paths["/api/v1/pods"] == nil {
			t.Error("the merged document lacks paths")
		}
		for name := range doc.Definitions {
			if strings.HasSuffix(name, "_v2") && strings.HasPrefix(name, "io.k8s.apimachinery") {
				t.Errorf("%s: the same definition is there twice", name)
			}
		}
		c.refused("apiVersion: wardle.example.com/v1beta1\nkind: Flunder\nmetadata: {name: x}\nspec: {referens: y}\n",
			`unknown field "spec.referens"`, "create", "--validate=strict", "-f", "-")
	})

	t.Run("namespaces", func(t *testing.T) {
		c := c.in(t)
		c.Do("", "create", "namespace", "short")
		c.Do(fmt.Sprintf(flunder, "here"), "-n", "short", "create", "-f", "-")
		c.Do("", "delete", "namespace", "short", "--timeout=60s")
		if out := c.Do("", "get", "flunders", "-A", "-o", "name"); strings.Contains(out, "here") {
			t.Errorf("a deleted namespace's objects stay:\n%s", out)
		}
	})
}

// TestStoppedServer stops the sample server, and has all other groups work, what fails named, and recovery by itself.
func TestStoppedServer(t *testing.T) {
	c := up(t, "--node", "none", "--controllers", "namespace-controller,garbage-collector-controller")
	s := sample(t, c)
	c.eventually("flunders", "api-resources", "--api-group", "wardle.example.com")
	c.Do("", "create", "namespace", "leaving")
	c.Do("", "-n", "leaving", "create", "configmap", "held", "--from-literal=a=b")
	must(t, s.Signal(syscall.SIGSTOP))
	c.look("wardle")
	c.Do("", "wait", "--for=condition=Available=False", "--timeout=60s", "apiservice/v1beta1.wardle.example.com")
	out := c.eventually("stale discovery: the API server of APIService v1alpha1.wardle.example.com, v1beta1.wardle.example.com",
		"api-resources", "--cached=false")
	if !strings.Contains(out, "configmaps") {
		t.Errorf("other groups are not listed:\n%s", out)
	}
	c.atOnce("get", "configmaps", "-A")
	c.Do("", "delete", "namespace", "leaving", "--wait=false")
	c.Do("", "-n", "leaving", "wait", "--for=delete", "configmap/held", "--timeout=60s")
	c.Do("", "wait", "--for=condition=NamespaceDeletionDiscoveryFailure", "namespace/leaving", "--timeout=60s")
	if out := c.Do("", "get", "namespace", "leaving", "-o", "jsonpath={.status.conditions[*].message}"); !strings.Contains(out,
		"wardle.example.com/v1beta1: stale GroupVersion discovery") {
		t.Errorf("the namespace does not say what it waits for:\n%s", out)
	}
	must(t, s.Signal(syscall.SIGCONT))
	c.look("wardle")
	c.Do("", "wait", "--for=condition=Available", "--timeout=60s", "apiservice/v1beta1.wardle.example.com")
	c.discovered("flunders") // kubectl creates what it has discovered
	c.Do(fmt.Sprintf(flunder, "again"), "create", "-f", "-")
	c.Do("", "wait", "--for=delete", "namespace/leaving", "--timeout=60s")
}
