// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package compatibility

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	explain "k8s.io/kubectl/pkg/explain/v2"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// TestDocuments compares discovery and OpenAPI documents, whole and in each form, with those of kube-apiserver 1.37.1: testdata
// has their path, the form, and the beginning of their SHA-256.
func TestDocuments(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}})
	client, err := rest.HTTPClientFor(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("testdata/documents.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	same, all := 0, 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		parts := strings.Fields(lines.Text())
		if len(parts) != 3 {
			t.Fatalf("%q: want path, form, hash", lines.Text())
		}
		all++
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, cluster.URL()+parts[0], nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", parts[1])
		a, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(a.Body)
		_ = a.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(b)); !strings.HasPrefix(got, parts[2]) {
			t.Errorf("%s as %s: %s, %.16s, want %s: %.200s", parts[0], parts[1], a.Status, got, parts[2], b)
			continue
		}
		same++
	}
	t.Logf("%d of %d documents are the same to the byte", same, all)
}

// TestExplain explains every kind to its last field, as kubectl explain --recursive does.
func TestExplain(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}})
	client, err := discovery.NewDiscoveryClientForConfig(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	_, lists, err := client.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	documents := client.OpenAPIV3()
	explained := 0
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range l.APIResources {
			if strings.Contains(r.Name, "/") {
				continue
			}
			var out bytes.Buffer
			if err := explain.PrintModelDescription(nil, &out, documents, gv.WithResource(r.Name), true, 0, "plaintext"); err != nil {
				t.Errorf("%s %s: %v", gv, r.Name, err)
				continue
			}
			explained++
			if text := out.String(); !strings.Contains(text, "KIND:       "+r.Kind+"\n") || !strings.Contains(text, "\n  apiVersion\t<string>\n") {
				t.Errorf("%s %s: %.300s", gv, r.Name, text)
			}
		}
	}
	if explained < 70 {
		t.Errorf("only %d kinds were explained", explained)
	}
}
