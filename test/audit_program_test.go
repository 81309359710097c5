// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// post sends one object as the administrator and returns the code; 0 is that the server is gone.
func post(client *http.Client, url string, body []byte) int {
	resp, err := client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0
	}
	return resp.StatusCode
}

// TestKilledAuditLog kills a server that writes to its log before it answers. Of each write that was acknowledged the log has
// the event that says how it was answered.
func TestKilledAuditLog(t *testing.T) {
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte(
		`{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	p := up(t, filepath.Join(dir, "data"), "--node", "none", "--controllers", "none", "--audit-policy-file", policy, "--audit-log-path", log,
		"--audit-log-mode", "blocking-strict")
	client, err := rest.HTTPClientFor(p.config)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var acknowledged []string
	enough, once := make(chan struct{}), sync.Once{}
	var g sync.WaitGroup
	for w := range 8 {
		g.Go(func() {
			for i := 0; ; i++ {
				name := fmt.Sprintf("w%d-%d", w, i)
				code := post(client, p.config.Host+"/api/v1/namespaces/default/configmaps", []byte(`{"metadata":{"name":"`+name+`"}}`))
				if code == 0 {
					return
				}
				if code != http.StatusCreated {
					t.Errorf("create %s: %d", name, code)
					return
				}
				mu.Lock()
				if acknowledged = append(acknowledged, name); len(acknowledged) == 400 {
					once.Do(func() { close(enough) })
				}
				mu.Unlock()
			}
		})
	}
	<-enough
	p.kill()
	g.Wait()
	done := map[string]bool{}
	for _, line := range readLines(t, log) {
		var e struct {
			Stage          string
			ObjectRef      struct{ Name, Resource string }
			ResponseStatus struct{ Code int }
		}
		if json.Unmarshal(line, &e) != nil {
			continue // the line that was being written
		}
		if e.Stage == "ResponseComplete" && e.ObjectRef.Resource == "configmaps" && e.ResponseStatus.Code == http.StatusCreated {
			done[e.ObjectRef.Name] = true
		}
	}
	for _, name := range acknowledged {
		if !done[name] {
			t.Errorf("%s was acknowledged and is not in the log", name)
		}
	}
	t.Logf("%d acknowledged writes, %d in the log", len(acknowledged), len(done))
}

// TestFloodWithDeadAuditWebhook sends hundreds of megabytes that are all to be in audit events, and the webhook takes the
// connection and never answers. The server stays up, answers, stays within bounds, and counts what it drops.
func TestFloodWithDeadAuditWebhook(t *testing.T) {
	dir := t.TempDir()
	var lc net.ListenConfig
	silent, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	policy, webhook := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "webhook.kubeconfig")
	for file, text := range map[string]string{
		policy: `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "RequestResponse", "resources": [{"group": "", "resources": ["configmaps"]}]}]}`,
		webhook: `{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": {"server": "https://` + silent.Addr().String() +
			`"}}], "contexts": [{"name": "x", "context": {"cluster": "c"}}], "current-context": "x"}`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := up(t, filepath.Join(dir, "data"), "--node", "none", "--controllers", "none", "--audit-policy-file", policy,
		"--audit-webhook-config-file", webhook, "--audit-webhook-batch-max-wait", "100ms")
	client, err := rest.HTTPClientFor(p.config)
	if err != nil {
		t.Fatal(err)
	}
	const each, all = 900 << 10, 300 << 20
	body := []byte(`{"metadata":{"name":"large"},"data":{"k":"` + strings.Repeat("x", each) + `"}}`)
	var sent atomic.Int64
	begun := time.Now()
	var g sync.WaitGroup
	for range 8 {
		g.Go(func() {
			for sent.Add(each) <= all {
				if code := post(client, p.config.Host+"/api/v1/namespaces/default/configmaps?dryRun=All", body); code != http.StatusCreated {
					t.Errorf("answered %d", code)
					return
				}
			}
		})
	}
	g.Wait()
	took := time.Since(begun)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	peak, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	if peak > 600<<10 {
		t.Errorf("the server took %d MB", peak>>10)
	}
	metrics, err := p.client().Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(metrics), `apiserver_audit_error_total{plugin="buffered"} `)
	if !found || after[0] == '0' {
		t.Error("what was dropped is not counted")
	}
	t.Logf("%d MB/s of requests, at most %d MB resident", int(all/took.Seconds())>>20, peak>>10)
}
