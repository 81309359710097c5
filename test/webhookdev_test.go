// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// dev is a running `mortise webhook dev`.
type dev struct {
	*exec.Cmd
	lines *bufio.Scanner
	errs  bytes.Buffer // what it says on stderr, to be read when it has ended
}

// startDev starts one, and returns when everything is pointed.
func startDev(t *testing.T, kubeconfig string, args ...string) *dev {
	t.Helper()
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	// A line that does not come fails its test, not the whole suite.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	d := &dev{Cmd: exec.CommandContext(ctx, program, append([]string{"webhook", "dev", "--kubeconfig", kubeconfig}, args...)...)}
	out, err := d.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.Stderr = io.MultiWriter(os.Stderr, &d.errs)
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	d.lines = bufio.NewScanner(out)
	d.until(t, "This lasts until the program ends.")
	return d
}

// until reads what is said up to a line that has the words.
func (d *dev) until(t *testing.T, words string) string {
	t.Helper()
	var said []string
	for d.lines.Scan() {
		if said = append(said, d.lines.Text()); strings.Contains(d.lines.Text(), words) {
			return d.lines.Text()
		}
	}
	t.Fatalf("it ended without %q: %q", words, said)
	return ""
}

// end sends a signal and waits for the end.
func (d *dev) end(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := d.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	for d.lines.Scan() { // nobody else reads what it says
	}
	if err := d.Wait(); err != nil && s != syscall.SIGKILL {
		t.Error(err)
	}
}

// TestWebhookDev points a registered webhook at a process of this machine in each of the ways, and back: at the end, and after it was
// killed.
func TestWebhookDev(t *testing.T) {
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}, KubeconfigFile: kubeconfig})
	h := startHooks(t, cluster.Client())
	ns := h.namespace(t, "dev")
	h.on("base/check", allow)
	h.on("base/second", allow)
	far := h.validating("far", ns)
	far.ClientConfig = admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "far",
		Name: "away", Path: ptr.To("/check"), Port: ptr.To(int32(443))}, CABundle: h.config("x").CABundle}
	second := far
	second.Name, second.ClientConfig = "second.example.com",
		admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://away.example.com/second")}
	h.validate(t, "far", far, second)
	configs := cluster.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations()
	get := func(name string) *admissionregistrationv1.ValidatingWebhookConfiguration {
		t.Helper()
		c, err := configs.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	before := get("far")
	asIs := func(when string) {
		t.Helper()
		now := get("far")
		if diff := cmp.Diff(before.Webhooks, now.Webhooks); diff != "" || len(now.Annotations) != 0 {
			t.Errorf("%s: annotations %v, %s", when, now.Annotations, diff)
		}
	}
	url := h.URL + "/base"
	works := func(name string) {
		t.Helper()
		h.take()
		create(t, h, ns, configMap(name))
		if n := len(h.take()); n != 2 {
			t.Errorf("%s: asked %d times", name, n)
		}
	}

	d := startDev(t, kubeconfig, "--url", url, "ValidatingWebhookConfiguration/far")
	works("shown")
	if got := *get("far").Webhooks[0].ClientConfig.URL; got != url+"/check" {
		t.Errorf("pointed at %s", got)
	}
	d.end(t, syscall.SIGTERM)
	asIs("after SIGTERM")

	// Killed, pointed once more, killed again: what was at first comes back.
	startDev(t, kubeconfig, "--url", url, "validatingwebhookconfigurations/far").end(t, syscall.SIGKILL)
	works("killed")
	startDev(t, kubeconfig, "--url", h.URL+"/base", "validatingwebhookconfigurations/far").end(t, syscall.SIGKILL)
	works("killed-again")
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), program, "webhook", "dev", "--restore", "--kubeconfig",
		kubeconfig).CombinedOutput(); err != nil || string(out) != "validatingwebhookconfigurations/far restored.\n" {
		t.Errorf("restore: %v: %s", err, out)
	}
	asIs("after --restore")

	// Calls are printed.
	h.on("base/check", func(r *admissionv1.AdmissionReview) any {
		if r.Request.Name == "no" {
			return deny("not this")(r)
		}
		return allow(r)
	})
	d = startDev(t, kubeconfig, "--url", url, "--calls", "validatingwebhookconfigurations/far")
	works("printed")
	d.until(t, " /check CREATE configmaps dev/printed by ")
	refused(t, h, ns, "no")
	d.until(t, ": denied: not this in ")
	d.end(t, syscall.SIGINT)
	asIs("after SIGINT")

	// A configuration of a file that the cluster does not have, with a certificate that is written for the process.
	certs := filepath.Join(dir, "certs")
	file := write(t, filepath.Join(dir, "webhook.yaml"), fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: not-looked-at}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: filed}
webhooks:
- name: filed.example.com
  clientConfig: {service: {namespace: away, name: far, path: /filed}}
  rules: [{apiGroups: [""], apiVersions: [v1], resources: [secrets], operations: [CREATE]}]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}
  sideEffects: None
  admissionReviewVersions: [v1]
`, ns))
	process := httptest.NewUnstartedServer(h)
	process.Config.ErrorLog = h.Config.ErrorLog
	d = startDev(t, kubeconfig, "--url", "https://"+process.Listener.Addr().String(), "--cert-dir", certs, "-f", file)
	pair, err := tls.LoadX509KeyPair(filepath.Join(certs, "tls.crt"), filepath.Join(certs, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	process.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	process.StartTLS()
	defer process.Close()
	h.on("filed", allow)
	h.take()
	if err := cluster.Client().CoreV1().RESTClient().Post().Namespace(ns).Resource("secrets").Body(
		[]byte(`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"s"}}`)).Do(t.Context()).Error(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"filed"}, paths(h.take())); diff != "" {
		t.Error(diff)
	}
	d.end(t, syscall.SIGTERM)
	if _, err := configs.Get(t.Context(), "filed", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what was made is there: %v", err)
	}

	// What cannot be is said, and changes nothing.
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	for want, args := range map[string][]string{
		"start the process first":             {"--url", "https://127.0.0.1:1", "validatingwebhookconfigurations/far"},
		"get the certificate of ":             {"--url", strings.Replace(plain.URL, "http:", "https:", 1), "validatingwebhookconfigurations/far"},
		`"absent" not found`:                  {"--url", url, "validatingwebhookconfigurations/far", "validatingwebhookconfigurations/absent"},
		"want https://HOST:PORT":              {"--url", "http://127.0.0.1:9443", "validatingwebhookconfigurations/far"},
		"want configurations":                 {"--url", url},
		"want mutatingwebhookconfigurations/": {"--url", url, "pods/x"},
	} {
		out, err := exec.CommandContext(t.Context(), program,
			append([]string{"webhook", "dev", "--kubeconfig", kubeconfig}, args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v: %s", args, err, out)
		}
		asIs(want)
	}
}
