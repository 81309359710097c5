// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// chooser is the extender's process.
type chooser struct {
	dir, url string
	stop     func()
}

// startChooser builds and starts the extender.
func startChooser(t *testing.T) *chooser {
	t.Helper()
	x := &chooser{dir: t.TempDir()}
	program := filepath.Join(x.dir, "chooser")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./chooser").CombinedOutput(); err != nil {
		t.Fatalf("build the extender: %v\n%s", err, out)
	}
	x.writeCertificate(t)
	x.mode(t, "")
	cmd := exec.CommandContext(t.Context(), program, filepath.Join(x.dir, "tls.crt"), filepath.Join(x.dir, "tls.key"),
		filepath.Join(x.dir, "mode"))
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	x.stop = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(x.stop)
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the extender did not start: %v", err)
	}
	x.url = "https://127.0.0.1:" + strings.TrimSpace(port)
	return x
}

// mode tells the extender how to behave.
func (x *chooser) mode(t *testing.T, mode string) {
	t.Helper()
	file := filepath.Join(x.dir, "mode")
	if err := os.WriteFile(file+".new", []byte(mode), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

func (x *chooser) writeCertificate(t *testing.T) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "chooser"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: der},
		"tls.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(x.dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// config names the extender. more is further fields of it.
func (x *chooser) config(more string) string {
	return fmt.Sprintf(`
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 1
extenders:
- urlPrefix: %s
  filterVerb: filter
  prioritizeVerb: rank
  weight: 20
  enableHTTPS: true
  tlsConfig: {caFile: %s}
  nodeCacheCapable: true
  httpTimeout: 2s
%s`, x.url, filepath.Join(x.dir, "tls.crt"), more)
}

func TestAnExtenderDecides(t *testing.T) {
	x := startChooser(t)
	s, c := start(t, x.config(""), nil)
	addNode(t, c, "bad", "32", nil)
	addPod(t, c, "pilot", nil)
	// the node's first taint is seen to be gone: an event has the note of the first refusal
	awaitPod(t, c, "pilot", refused("were not chosen"))
	addPod(t, c, "early", nil)
	awaitPod(t, c, "early", refused("0/1 nodes are available: 1 node(s) were not chosen."))
	awaitEvent(t, c, "early", "FailedScheduling", "default-scheduler", "0/1 nodes are available: 1 node(s) were not chosen.")
	addNode(t, c, "good-wide", "16", nil) // any event may help a pod that extenders left no node
	addNode(t, c, "good-best", "1", nil)
	awaitPod(t, c, "early", func(p *corev1.Pod) bool { return strings.HasPrefix(p.Spec.NodeName, "good") })
	known(t, c, "good-best", corev1.DefaultSchedulerName)
	addPod(t, c, "late", nil)
	if got := awaitPod(t, c, "late", bound).Spec.NodeName; got != "good-best" {
		t.Errorf("the pod is on %s", got)
	}
	data, err := s.Client().CoreV1().RESTClient().Get().AbsPath("/debug/extensions").Do(t.Context()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	var view struct {
		Extensions []struct {
			Point, Name, Configured, State string
			Calls                          int
		}
	}
	if err := json.Unmarshal(data, &view); err != nil {
		t.Fatal(err)
	}
	for _, e := range view.Extensions {
		if e.Point == "scheduler-extender" {
			if e.Name != x.url || e.State != "ok" || e.Calls < 3 || !strings.HasSuffix(e.Configured, "scheduler.yaml") {
				t.Errorf("the ledger has %+v", e)
			}
			return
		}
	}
	t.Errorf("the ledger does not know the extender: %s", data)
}

func TestAnExtenderThatFails(t *testing.T) {
	for _, c := range []struct{ name, mode, message string }{
		{"lying", "lie", `claims a filtered node "made-up" which is not found in the input node list`},
		{"slow", "slow", "Client.Timeout exceeded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := startChooser(t)
			_, client := start(t, x.config(""), nil)
			x.mode(t, c.mode)
			addNode(t, client, "good", "4", nil)
			addPod(t, client, "p", nil)
			p := awaitPod(t, client, "p", refused(c.message))
			if got := condition(p).Reason; got != corev1.PodReasonSchedulerError {
				t.Errorf("the reason is %s", got)
			}
			x.mode(t, "")
			awaitPod(t, client, "p", bound) // it is tried again by itself
		})
	}
}

func TestAnExtenderThatIsDead(t *testing.T) {
	x := startChooser(t)
	x.stop()
	_, c := start(t, x.config(""), nil)
	addNode(t, c, "bad", "4", nil)
	addPod(t, c, "p", nil)
	awaitPod(t, c, "p", refused("connect: connection refused"))
	_, c = start(t, x.config("  ignorable: true\n"), nil)
	addNode(t, c, "bad", "4", nil)
	addPod(t, c, "p", nil)
	awaitPod(t, c, "p", bound)
}
