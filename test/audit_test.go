// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/test/recordings"
)

// TestAuditDialogue says a dialogue to a server with a policy. Its log is, line for line, what kube-apiserver 1.37.1 logged of
// the same dialogue under the same policy: times, uids and names that are drawn are normalised, and what the administrator is
// called. Requests are told apart by the Audit-ID that they bring.
func TestAuditDialogue(t *testing.T) {
	log := filepath.Join(t.TempDir(), "logs", "audit.log")
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("admintoken,admin,admin-uid,\"system:masters\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &embed.Server{Node: embed.NodeNone, Controllers: []string{"none"}}
	s.APIServer.Authentication.TokenFile = tokens
	s.APIServer.Audit = options.Audit{PolicyFile: "testdata/audit/policy.yaml", Log: options.AuditLog{Path: log}}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	say(t, s, "testdata/audit/requests.jsonl")
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	want, got := auditLines(t, "testdata/audit/expected.jsonl"), auditLines(t, log)
	if len(want) < 100 {
		t.Fatalf("only %d requests are expected", len(want))
	}
	n := 0
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if d := gocmp.Diff(want[id], got[id]); d != "" {
			t.Errorf("%s %v %v: the events are not those of kube-apiserver (-want +got)\n%s", id, want[id][0]["verb"], want[id][0]["requestURI"], d)
		}
		n += len(want[id])
	}
	for id := range got {
		if want[id] == nil && strings.HasPrefix(id, "d-") {
			t.Errorf("%s is audited, and is not to be", id)
		}
	}
	t.Logf("%d events of %d requests are the same", n, len(want))
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"sekret", "c2Vrcm"} { // the same in base64
		if bytes.Contains(text, []byte(secret)) {
			t.Errorf("a secret is in the log: %s", secret)
		}
	}
	if info, err := os.Stat(log); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the log's mode: %v, %v", info.Mode(), err)
	}
}

// say says the requests of a file, in order, as the administrator.
func say(t *testing.T, s *embed.Server, file string) {
	t.Helper()
	config := rest.AnonymousClientConfig(s.Config())
	config.Timeout = 10 * time.Second
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range readLines(t, file) {
		var e recordings.Exchange
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		var body io.Reader
		if e.Body != nil {
			body = strings.NewReader(*e.Body)
		}
		r, err := http.NewRequestWithContext(t.Context(), e.Method, s.URL()+e.Path, body)
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "dialogue/1",
			"Audit-ID": e.ID, "Authorization": "Bearer admintoken"} {
			r.Header.Set(k, v)
		}
		for k, v := range e.Headers {
			r.Header.Set(k, v)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatalf("%s %s: %v", e.Method, e.Path, err)
		}
		_, _ = io.Copy(io.Discard, resp.Body) // streams end as they like
		resp.Body.Close()
	}
}

func readLines(t *testing.T, file string) [][]byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out [][]byte
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		out = append(out, bytes.Clone(lines.Bytes()))
	}
	return out
}

// auditLines are the events of a log by Audit-ID, normalised.
func auditLines(t *testing.T, file string) map[string][]map[string]any {
	t.Helper()
	out := map[string][]map[string]any{}
	for _, line := range readLines(t, file) {
		var e map[string]any
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%v in line %s", err, line)
		}
		if user, ok := e["user"].(map[string]any); ok && (user["username"] == "admin" || user["username"] == "ADMIN") {
			e["user"] = "ADMIN"
		}
		id := e["auditID"].(string)
		out[id] = append(out[id], sameAudit(e, "").(map[string]any))
	}
	return out
}

// drawn are the texts that are different each time.
// the last is how old something is
var drawn = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b(gen|kube-api-access)-\w{5}\b|:\d{5}\b|\bU\b|\bgen-X\b|:PORT\b|\bT\b|^\ds$`)

func sameAudit(v any, key string) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			if !strings.HasPrefix(k, "apiserver.latency.k8s.io/") {
				out[k] = sameAudit(x, k)
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = sameAudit(x, "")
		}
		switch key {
		case "groups", "clusterIPs":
			return "masked"
		case "managedFields":
			slices.SortFunc(out, func(a, b any) int {
				x, _ := json.Marshal(a)
				y, _ := json.Marshal(b)
				return bytes.Compare(x, y)
			})
		}
		return out
	case string:
		switch key {
		case "uid", "resourceVersion", "clusterIP", "clusterIPs", "token", "groups", "continue":
			return cmp.Or(map[bool]string{true: "masked"}[v != ""], v)
		}
		return drawn.ReplaceAllString(v, "~")
	case float64:
		if key == "nodePort" {
			return "masked"
		}
	}
	return v
}
