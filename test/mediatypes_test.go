// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// mediaExchange is one line of testdata/mediatypes.jsonl: a request, and to the letter what kube-apiserver 1.37.1 answered. The
// lines without an answer come first, and make the objects that the others speak of; none of those changes anything.
type mediaExchange struct {
	ID, Method, Path string
	Headers          map[string]string
	Body, Base64     *string
	Want             *mediaAnswer
}

// mediaAnswer is what of an answer is the same each time. Bodies in protobuf are left out.
type mediaAnswer struct {
	Status   int      `json:"status"`
	Type     string   `json:"type"`
	Warnings []string `json:"warnings,omitempty"`
	Nosniff  bool     `json:"nosniff,omitempty"`
	Body     string   `json:"body,omitempty"`
}

// mediaMasks are what is another each time.
var mediaMasks = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "<time>"},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "<uid>"},
	{regexp.MustCompile(`\b10\.\d+\.\d+\.\d+\b`), "<ip>"},
	{regexp.MustCompile(`(resourceVersion\\*"?: ?\\*"?)\d+`), "${1}<rv>"},
	{regexp.MustCompile(`kube-api-access-[a-z0-9]{5}`), "kube-api-access-<rand>"},
	{regexp.MustCompile(`("|- )\d+(ms|s|m|h)(\d+s)?("|\\n|\n)`), "${1}<age>${4}"},
}

// TestMediaTypes says what clients may say of media types and bodies, and compares the answers letter by letter.
func TestMediaTypes(t *testing.T) {
	file, err := os.Open("testdata/mediatypes.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cluster := embedtest.Start(t, &embed.Server{Node: embed.NodeNone, Controllers: []string{"none"}})
	config := cluster.Config()
	config.DisableCompression = true
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	same := 0
	for lines.Scan() {
		var e mediaExchange
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		got, err := e.say(t, client, cluster.URL())
		if err != nil {
			t.Fatalf("%s: %v", e.ID, err)
		}
		if e.Want == nil {
			if got.Status != http.StatusCreated {
				t.Fatalf("%s %s: %d %s", e.Method, e.Path, got.Status, got.Body)
			}
			continue
		}
		if diff := gocmp.Diff(e.Want, got); diff != "" {
			t.Errorf("%s: %s %s %v (-upstream +mortise):\n%s", e.ID, e.Method, e.Path, e.Headers, diff)
			continue
		}
		same++
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d answers are the same", same)
}

func (e *mediaExchange) say(t *testing.T, client *http.Client, url string) (*mediaAnswer, error) {
	t.Helper()
	var body io.Reader = http.NoBody
	switch {
	case e.Body != nil:
		body = strings.NewReader(*e.Body)
	case e.Base64 != nil:
		b, err := base64.StdEncoding.DecodeString(*e.Base64)
		if err != nil {
			return nil, err
		}
		body = strings.NewReader(string(b))
	}
	r, err := http.NewRequestWithContext(t.Context(), e.Method, url+e.Path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("User-Agent", "dialogue/1")
	for name, value := range e.Headers {
		if name == "X-Chunked" {
			r.ContentLength = -1
			continue
		}
		r.Header[name] = []string{value}
	}
	res, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	got := &mediaAnswer{
		Status: res.StatusCode, Type: res.Header.Get("Content-Type"), Warnings: slices.Clone(res.Header["Warning"]),
		Nosniff: res.Header.Get("X-Content-Type-Options") != "",
	}
	if e.Method != http.MethodHead && !strings.Contains(got.Type, "protobuf") {
		got.Body = string(b)
		for _, m := range mediaMasks {
			got.Body = m.what.ReplaceAllString(got.Body, m.with)
		}
	}
	return got, nil
}
