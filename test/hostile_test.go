// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	wire "encoding/binary"
	"flag"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

var hostilePeer = flag.String("hostile.peer", "", "a kubeconfig: be hostile to that server, to see what it answers")

// mostTime is how long any answer may take, on a machine that does much else.
const mostTime = 30 * time.Second

// mostHeap is how much more memory than before may be in use after hostility, that of the clients included.
const mostHeap = 96 << 20

// victim is a server that has to stand what clients do.
type victim struct {
	t      *testing.T
	config *rest.Config
	client *http.Client
	before uint64
}

func newVictim(t *testing.T) *victim {
	t.Helper()
	v := &victim{t: t}
	if *hostilePeer != "" {
		config, err := clientcmd.BuildConfigFromFlags("", *hostilePeer)
		if err != nil {
			t.Fatal(err)
		}
		v.config = config
	} else {
		v.config = embedtest.Start(t, &embed.Server{Node: embed.NodeNone, Controllers: []string{"none"}}).Config()
	}
	client, err := rest.HTTPClientFor(v.config)
	if err != nil {
		t.Fatal(err)
	}
	v.client = client
	v.say(request{method: "POST", path: "/api/v1/namespaces/default/configmaps",
		body: strings.NewReader(`{"metadata":{"name":"there","finalizers":["a.b/c"],"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u"}]},"data":{"a":"b"}}`)})
	v.before = heap()
	return v
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// stands wants the server to answer at once, with no more memory in use than is right.
func (v *victim) stands() {
	v.t.Helper()
	begun := time.Now()
	if code, body := v.say(request{method: "GET", path: "/api/v1/namespaces/default/configmaps/there"}); code != http.StatusOK {
		v.t.Errorf("afterwards a GET is answered %d %s", code, body)
	}
	if took := time.Since(begun); took > mostTime {
		v.t.Errorf("afterwards a GET takes %s", took)
	}
	// Whoever served a client that has gone gives up what he held a little later, and nobody says when.
	again, limit := time.NewTicker(200*time.Millisecond), time.After(patience)
	defer again.Stop()
	for {
		now := heap()
		if now <= v.before+mostHeap {
			return
		}
		select {
		case <-again.C:
		case <-limit:
			v.t.Errorf("%d MB of heap are in use, %d MB before", now>>20, v.before>>20)
			return
		}
	}
}

type request struct {
	method, path, contentType string
	headers                   map[string]string
	body                      io.Reader
}

func (v *victim) say(r request) (int, string) {
	v.t.Helper()
	q, err := http.NewRequestWithContext(v.t.Context(), r.method, v.config.Host+r.path, r.body)
	if err != nil {
		v.t.Fatal(err)
	}
	if r.body != nil {
		q.Header.Set("Content-Type", "application/json")
	}
	if r.contentType != "" {
		q.Header.Set("Content-Type", r.contentType)
	}
	for k, x := range r.headers {
		q.Header.Set(k, x)
	}
	response, err := v.client.Do(q)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(body)
}

// endless gives a JSON string that does not end.
type endless struct{ begun bool }

func (e *endless) Read(p []byte) (int, error) {
	if !e.begun {
		e.begun = true
		return copy(p, `{"data":{"a":"`), nil
	}
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// TestHostileBodies sends bodies that are large, deep or wrong, and wants the documented answer to each.
func TestHostileBodies(t *testing.T) {
	managers := 9_000
	if testing.Short() { // their cost grows with the square of their number, and the race detector's with that
		managers = 2_000
	}
	v := newVictim(t)
	const maps, one, crds = "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/configmaps/there",
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	text := func(s string) io.Reader { return strings.NewReader(s) }
	deep := func(open, mid, end string, n int) string {
		return strings.Repeat(open, n) + mid + strings.Repeat(end, n)
	}
	for name, c := range map[string]struct {
		request
		want []int
	}{
		"3 MiB and more": {request{method: "POST", path: maps, body: text(`{"data":{"a":"` + strings.Repeat("x", 3<<20) + `"}}`)},
			[]int{413}},
		"endless": {request{method: "POST", path: maps, body: &endless{}}, []int{413}},
		"endless patch": {request{method: "PATCH", path: one, contentType: "application/merge-patch+json", body: &endless{}},
			[]int{413}},
		"endless options": {request{method: "DELETE", path: one + "x", body: &endless{}}, []int{413}},
		"deep arrays": {request{method: "POST", path: maps, body: text(`{"data":` + deep("[", "", "]", 1<<20) + `}`)},
			[]int{400}},
		"deep objects": {request{method: "POST", path: maps, body: text(deep(`{"a":`, "1", "}", 400_000))}, []int{400}},
		"deep YAML": {request{method: "POST", path: maps, contentType: "application/yaml",
			body: text("data: " + deep("[", "", "]", 100_000))}, []int{400}},
		"YAML of a billion laughs": {request{method: "POST", path: maps, contentType: "application/yaml", body: text(laughs())}, []int{400}},
		"apply of a billion laughs": {request{method: "PATCH", path: one + "?fieldManager=m", contentType: "application/apply-patch+yaml",
			body: text(laughs())}, []int{400}},
		"deep definition, as protobuf": {request{method: "POST", path: crds, contentType: "application/vnd.kubernetes.protobuf",
			body: bytes.NewReader(deepDefinition())}, []int{400, 413, 422}},
		"protobuf cut short": {request{method: "POST", path: maps, contentType: "application/vnd.kubernetes.protobuf",
			body: text("k8s\x00\x0a\xff\xff\xff\xff\x0f")}, []int{400}},
		"number out of range": {request{method: "POST", path: maps, body: text(`{"metadata":{"name":"n","generation":1e999999}}`)},
			[]int{400}},
		"integer out of range": {request{method: "POST", path: maps,
			body: text(`{"metadata":{"name":"n","generation":` + strings.Repeat("9", 10_000) + `}}`)}, []int{400}},
		"NUL in a name":      {request{method: "POST", path: maps, body: text(`{"metadata":{"name":"a\u0000b"}}`)}, []int{422}},
		"NUL in a body":      {request{method: "POST", path: maps, body: text("{\"metadata\":{\"name\":\"a\x00b\"}}")}, []int{400}},
		"no UTF-8 in a name": {request{method: "POST", path: maps, body: text("{\"metadata\":{\"name\":\"a\xff\xfeb\"}}")}, []int{422}},
		"no UTF-8 in a key": {request{method: "POST", path: maps,
			body: text("{\"metadata\":{\"name\":\"n\"},\"data\":{\"\xff\":\"x\"}}")}, []int{422}},
		"one key 100,000 times": {request{method: "POST", path: maps + "?fieldValidation=Strict",
			body: text(`{"data":{` + strings.Repeat(`"a":"b",`, 100_000) + `"a":"b"}}`)}, []int{400}},
		"100,000 unknown fields": {request{method: "POST", path: maps + "?dryRun=All",
			body: text(`{"metadata":{"name":"n"}` + many(100_000, func(i int) string { return fmt.Sprintf(`,"f%d":1`, i) }) + `}`)}, []int{201}},
		"half a surrogate": {request{method: "POST", path: maps + "?dryRun=All",
			body: text(`{"metadata":{"name":"n"},"data":{"a":"\ud800"}}`)}, []int{201}},
		"only spaces": {request{method: "POST", path: maps, body: text(strings.Repeat(" ", 2<<20))}, []int{400}},
		"10,001 operations": {request{method: "PATCH", path: one, contentType: "application/json-patch+json",
			body: text(operations(10_001, `{"op":"test","path":"/kind","value":"ConfigMap"}`))}, []int{413}},
		"copies that double": {request{method: "PATCH", path: one, contentType: "application/json-patch+json", body: text(doubling())},
			[]int{413, 422}},
		"patch that makes too much": {request{method: "PATCH", path: one, contentType: "application/merge-patch+json",
			body: text(`{"data":{"a":"` + strings.Repeat("x", 2<<20) + `"}}`)}, []int{422}},
		"deep merge patch": {request{method: "PATCH", path: one, contentType: "application/merge-patch+json",
			body: text(deep(`{"data":`, "1", "}", 300_000))}, []int{400}},
		"deep strategic merge patch": {request{method: "PATCH", path: one, contentType: "application/strategic-merge-patch+json",
			body: text(deep(`{"data":`, "1", "}", 300_000))}, []int{400}},
		"deep merge patch of 2 MiB": {request{method: "PATCH", path: one, contentType: "application/merge-patch+json",
			body: text(`{"data":` + deep(`{"a":`, `"`+strings.Repeat("x", 2<<20)+`"`, "}", 9_000) + `}`)}, []int{422}},
		"deep JSON patch": {request{method: "PATCH", path: one, contentType: "application/json-patch+json",
			body: text(`[{"op":"add","path":"/data","value":` + deep(`{"a":`, `"`+strings.Repeat("x", 2<<20)+`"`, "}", 9_000) +
				`},{"op":"add","path":"/data` + strings.Repeat("/a", 8_999) + `","value":1}]`)}, []int{413}},
		"JSON patch that shifts": {request{method: "PATCH", path: one, contentType: "application/json-patch+json",
			body: text(`[{"op":"add","path":"/data","value":[` + strings.Repeat("0,", 1_200_000) + `0]}` +
				strings.Repeat(`,{"op":"add","path":"/data/0","value":1}`, 9_999) + `]`)}, []int{413}},
		"40,000 finalizers": {request{method: "PATCH", path: one + "?dryRun=All", contentType: "application/strategic-merge-patch+json",
			body: text(`{"metadata":{"finalizers":[` + strings.TrimSuffix(many(40_000, func(i int) string { return fmt.Sprintf(`"a.b/%d",`, i) }),
				",") + `]}}`)}, []int{200}},
		"deep managed fields": {request{method: "PUT", path: one,
			body: text(`{"metadata":{"name":"there","managedFields":[{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":` + deep(`{"f:a":`, "{}", "}", 9_000) + `}]}}`)}, []int{200, 400, 422}},
		"many managers": {request{method: "PUT", path: one,
			body: text(`{"metadata":{"name":"there","managedFields":[` + strings.TrimSuffix(many(managers, func(i int) string {
				return fmt.Sprintf(`{"manager":"m%d","operation":"Update","apiVersion":"v1","time":"2020-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:a%d":{}}}},`, i, i)
			}), ",") + `]}}`)}, []int{200, 413, 422}},
		"garbage as managed fields": {request{method: "PUT", path: one,
			body: text(`{"metadata":{"name":"there","managedFields":[{"manager":"m","operation":"Nothing","fieldsV1":[1]}]}}`)},
			[]int{200, 400, 422}},
		"rule that costs too much": {request{method: "POST", path: crds,
			body: text(withSchema("costly", `{"type":"object","properties":{"l":{"type":"array","items":{"type":"array","items":{"type":"string"}},"x-kubernetes-validations":[{"rule":"self.all(a, self.all(b, a.all(x, b.all(y, x.contains(y)))))"}]}}}`))}, []int{422}},
		"pattern that is too large": {request{method: "POST", path: crds,
			body: text(withSchema("patterned", `{"type":"object","properties":{"s":{"type":"string","pattern":"((((a{0,1000}){0,1000}){0,1000}){0,1000})"}}}`))}, []int{422}},
		"deep schema": {request{method: "POST", path: crds,
			body: text(withSchema("deeper", deep(`{"type":"object","properties":{"p":`, `{"type":"string"}`, "}}", 2_000)))}, []int{201, 400, 422}},
		"10,000 owners": {request{method: "POST", path: maps + "?dryRun=All",
			body: text(`{"metadata":{"name":"n","ownerReferences":[` +
				strings.TrimSuffix(many(10_000, func(i int) string {
					return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u%d"},`,
						i)
				}), ",") + `]}}`)}, []int{201, 422}},
	} {
		t.Run(name, func(t *testing.T) {
			begun := time.Now()
			code, body := v.say(c.request)
			if !slices.Contains(c.want, code) {
				t.Errorf("answered %d, want %v: %.300s", code, c.want, body)
			}
			if took := time.Since(begun); took > mostTime {
				t.Errorf("took %s", took)
			}
			if *hostilePeer != "" {
				t.Logf("%d after %s: %.200s", code, time.Since(begun), body)
			}
		})
	}
	v.stands()
}

func many(n int, f func(int) string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(f(i))
	}
	return b.String()
}

func operations(n int, op string) string {
	return "[" + strings.TrimSuffix(strings.Repeat(op+",", n), ",") + "]"
}

// doubling copies what it has made so far into itself, again and again.
func doubling() string {
	var b strings.Builder
	b.WriteString(`[{"op":"add","path":"/data/x","value":"` + strings.Repeat("x", 1000) + `"}`)
	for i := range 40 {
		fmt.Fprintf(&b, `,{"op":"copy","from":"/data","path":"/data/c%d"}`, i)
	}
	return b.String() + "]"
}

func laughs() string {
	var b strings.Builder
	b.WriteString("a: &a [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n")
	for c := 'b'; c <= 'i'; c++ {
		ref := fmt.Sprintf("*%c", c-1)
		fmt.Fprintf(&b, "%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(ref+", ", 9), ", "))
	}
	return b.String() + "data: *i\n"
}

func withSchema(name, s string) string {
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]s.hostile.example.com"},"spec":{"group":"hostile.example.com","scope":"Cluster","names":{"plural":%[1]q,"kind":"K%[1]s"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":%[2]s}}]}}`, name, s)
}

// deepDefinition is a definition in protobuf whose schema refuses a schema that refuses a schema …, as deep as a body allows.
func deepDefinition() []byte {
	nest := func(field byte, length int) []byte { // what comes before a message, in reverse
		var head []byte
		if field < 16 {
			head = []byte{field<<3 | 2}
		} else {
			head = wire.AppendUvarint(nil, uint64(field)<<3|2)
		}
		head = wire.AppendUvarint(head, uint64(length))
		slices.Reverse(head)
		return head
	}
	var reversed []byte
	wrap := func(field byte) { reversed = append(reversed, nest(field, len(reversed))...) }
	for len(reversed) < 3<<20-1000 {
		wrap(28) // JSONSchemaProps.not
	}
	wrap(1) // CustomResourceValidation.openAPIV3Schema
	wrap(4) // CustomResourceDefinitionVersion.schema
	wrap(7) // CustomResourceDefinitionSpec.versions
	wrap(2) // CustomResourceDefinition.spec
	wrap(2) // Unknown.raw
	kind := []byte("\x0a\x31\x0a\x17apiextensions.k8s.io/v1\x12\x18CustomResourceDefinition")
	kind[1] = byte(len(kind) - 2)
	slices.Reverse(reversed)
	return slices.Concat([]byte("k8s\x00"), kind, reversed)
}
