// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/internal/apiserver/managedfields"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// dialogue is a server that an administrator calls without a network.
type dialogue struct {
	*Server
	store *store.Store
}

func converse(t *testing.T, kinds ...*resource.Descriptor) *dialogue {
	t.Helper()
	return converseOn(t, memory.Open(memory.Options{}), kinds...)
}

// converseOn is converse with the objects that an engine has.
func converseOn(t *testing.T, e store.Engine, kinds ...*resource.Descriptor) *dialogue {
	t.Helper()
	engine := store.New(e)
	s, err := New(Options{Store: engine, Kinds: kinds, Fields: managedfields.New(nil)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.end()
		s.lifetime.Group.Wait()
		if err := engine.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
	})
	return &dialogue{s, engine}
}

// exchange is one request and its expected response. {continue} is the last continue token.
type exchange struct {
	method, path, body string
	code               int
	holds              string // a text in the response; empty: any
}

var media = map[string]string{http.MethodPatch: "application/merge-patch+json"}

func (d *dialogue) say(method, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if body == "" {
		r.Body = http.NoBody
	}
	r.Header.Set("Content-Type", "application/json")
	if m := media[method]; m != "" {
		r.Header.Set("Content-Type", m)
	}
	if strings.HasPrefix(body, "[") && method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/json-patch+json")
	}
	if strings.HasPrefix(body, "apiVersion:") {
		r.Header.Set("Content-Type", "application/apply-patch+yaml")
	}
	r.Header.Set("User-Agent", "tester/1")
	return d.ask(r)
}

// ask is a request of the administrator's.
func (d *dialogue) ask(r *http.Request) *httptest.ResponseRecorder {
	r = r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}))
	w := httptest.NewRecorder()
	d.Handler().ServeHTTP(w, r)
	return w
}

func (d *dialogue) run(t *testing.T, exchanges []exchange) {
	t.Helper()
	token := ""
	for i, e := range exchanges {
		w := d.say(e.method, strings.ReplaceAll(e.path, "{continue}", token), e.body)
		if w.Code != e.code || !strings.Contains(w.Body.String(), e.holds) {
			t.Errorf("%d %s %s %.200s: answered %d %.600s\nwant %d %s", i, e.method, e.path, e.body, w.Code, w.Body, e.code, e.holds)
		}
		var m metav1.PartialObjectMetadataList
		if json.Unmarshal(w.Body.Bytes(), &m) == nil && m.Continue != "" {
			token = m.Continue
		}
	}
}

func TestListOptions(t *testing.T) {
	d := converse(t, configMaps())
	const at = "/api/v1/namespaces/ns/configmaps"
	var es []exchange
	for i := range 5 {
		es = append(es, exchange{"POST", at, fmt.Sprintf(`{"metadata":{"name":"c%d","labels":{"odd":"%d"}}}`, i, i%2), 201, ""})
	}
	es = append(es, []exchange{
		{"GET", at + "?limit=2", "", 200, `"remainingItemCount":3`},
		{"GET", at + "?limit=2&continue={continue}", "", 200, `"name":"c2"`},
		{"GET", at + "?limit=2&resourceVersion=0&continue={continue}", "", 200, `"name":"c4"`}, // limits do not apply to lists at any revision
		{"GET", at + "?continue={continue}&resourceVersion=7", "", 400, "specifying resource version is not allowed when using continue"},
		{"GET", at + "?continue=zz&resourceVersion=7", "", 400, "invalid continue token: continue key is not valid: "},
		{"GET", at + "?resourceVersion=abc", "", 400, `invalid resource version: resourceVersion: Invalid value: \"abc\": strconv.ParseUint`},
		{"GET", at + "?resourceVersion=99999", "", 504, "Too large resource version: 99999, current: "},
		{"GET", at + "?resourceVersion=99999&resourceVersionMatch=Exact", "", 504, `"retryAfterSeconds":1`},
		{"GET", at + "?resourceVersion=0&resourceVersionMatch=Exact", "", 422, ""},
		{"GET", at + "?labelSelector=odd%3D1&limit=1", "", 200, `"continue":"ey`},
		{"GET", at + "?fieldSelector=metadata.name%3Dc1&resourceVersion=2&limit=1", "", 200, `"name":"c1"`}, // one object is the newest one
		{"GET", at + "/c1?export=true", "", 400, "no longer supported"},
		{"GET", at + "/c1?watch=true", "", 200, `"kind":"ConfigMap"`}, // with a name it is a get
	}...)
	d.run(t, es)
	if got := d.say("GET", at+"?labelSelector=odd%3D1&limit=1", "").Body.String(); strings.Contains(got, "remainingItemCount") {
		t.Errorf("counted what a selector may leave out: %s", got)
	}
}

func TestRoutes(t *testing.T) {
	d := converse(t, configMaps(), nodes())
	const none = "the server could not find the requested resource"
	d.run(t, []exchange{
		{"GET", "/api/v1/configmaps/x", "", 404, none},
		{"POST", "/api/v1/configmaps", "{}", 405, "the server does not allow this method on the requested resource"},
		{"GET", "/api/v1/proxy/nodes/x", "", 404, none},
		{"POST", "/api/v1/watch/namespaces/ns/configmaps", `{"metadata":{"name":"sly"}}`, 405, ""},
		{"GET", "/api/v1/namespaces/ns/nodes", "", 404, none},
		{"GET", "/api/v1//configmaps", "", 404, none},
		{"GET", "//api/v1/configmaps", "", 404, "404 page not found"},
		{"GET", "/apis//v1/configmaps", "", 404, "404 page not found"},
		{"GET", "/api/v1/watch", "", 500, `Internal Server Error: "/api/v1/watch": failed to create RequestInfo: unable to determine kind and namespace from url, /api/v1/watch`},
		{"GET", "/api/v1/namespaces/ns/configmaps/%2e%2e", "", 400, `Name parameter invalid: \"..\": may not be '..'`},
		{"DELETE", "/api/v1/namespaces/ns/configmaps/a%25b", "", 400, `may not contain '%'`},
		{"GET", "/api/v1/configmaps?timeout=5", "", 400, `invalid timeout specified in the request URL - time: missing unit in duration \"5\"`},
		{"GET", "/version?timeout=x", "", 400, "invalid timeout"},
		{"GET", "/api/v1/configmaps?timeout=1ns", "", 504,
			`{"metadata":{},"status":"Failure","message":"Timeout: request did not complete within the allotted timeout","reason":"Timeout","details":{},"code":504}`},
		{"GET", "/api/v1/configmaps?timeout=5s", "", 200, ""},
		{"GET", "/api/v1/configmaps?timeout=0", "", 200, ""},
	})
}

func TestDeleteOptions(t *testing.T) {
	d := converse(t, configMaps(), pods())
	const at, pod = "/api/v1/namespaces/ns/configmaps", "/api/v1/namespaces/ns/pods"
	d.run(t, []exchange{
		{"POST", at, `{"metadata":{"name":"a"}}`, 201, ""},
		{"DELETE", at + "/a", `{"ignoreStoreReadErrorWithClusterBreakingPotential":true}`, 409,
			`StorageError: invalid object, Code: 4, Key: /registry/configmaps/ns/a, ResourceVersion: 0, AdditionalErrorMsg: unsafe deletion is not allowed because the object is decodable from storage`},
		{"DELETE", at + "/a", `{"ignoreStoreReadErrorWithClusterBreakingPotential":true,"gracePeriodSeconds":1}`, 422,
			"cannot be set together with .gracePeriodSeconds"},
		{"DELETE", at, `{"ignoreStoreReadErrorWithClusterBreakingPotential":true}`, 422, "is not allowed with DELETECOLLECTION"},
		{"DELETE", at + "/none?ignoreStoreReadErrorWithClusterBreakingPotential=true", "", 404, ""},
		{"DELETE", at + "/a?dryRun=All", "", 200, `"status":"Success"`},
		{"GET", at + "/a", "", 200, ""},
		{"DELETE", at + "?limit=1", "", 200, `"name":"a"`},
		{"GET", at + "/a", "", 404, ""},
		{"POST", pod, `{"metadata":{"name":"p","generation":1},"spec":{"containers":[{"name":"c"}]}}`, 201, ""},
		{"DELETE", pod + "/p?gracePeriodSeconds=0&dryRun=All", "", 200, `"deletionGracePeriodSeconds":0`}, // the object as it would be marked
		{"GET", pod + "/p", "", 200, `"generation":1`},
		{"POST", at, `{"metadata":{"name":"held","finalizers":["a.b/c"]}}`, 201, ""},
		{"DELETE", at + "/held", "", 200, `"deletionTimestamp"`},
		{"POST", at, `{"metadata":{"name":"held"}}`, 409,
			`"message":"object is being deleted: configmaps \"held\" already exists","reason":"AlreadyExists"`},
		{"POST", at + "?dryRun=All", `{"metadata":{"name":"held"}}`, 409, `object is being deleted: `},
		{"POST", at, `{"metadata":{"name":"rv","resourceVersion":"7"}}`, 500, "resourceVersion should not be set on objects to be created"},
		{"POST", at, `{"metadata":{"name":"rv","resourceVersion":"abc"}}`, 201, ""},
		{"PUT", at + "/rv", `{"metadata":{"name":"rv","resourceVersion":"abc"}}`, 500,
			`"message":"strconv.ParseUint: parsing \"abc\": invalid syntax"`},
		{"PUT", at + "/rv", `{"metadata":{"name":"rv","selfLink":"/x"}}`, 200, ""},
	})
	if got := d.say("GET", at+"/rv", "").Body.String(); strings.Contains(got, "selfLink") {
		t.Errorf("a self link was kept: %s", got)
	}
}

// Objects that cannot be decoded can be deleted with an explicit option.
func TestDeleteUnreadable(t *testing.T) {
	d := converse(t, configMaps())
	if _, err := d.store.Create(t.Context(), "/registry/configmaps/ns/broken", []byte("{"), 0); err != nil {
		t.Fatal(err)
	}
	const at = "/api/v1/namespaces/ns/configmaps/broken"
	d.run(t, []exchange{
		{"DELETE", at, "", 500, ""},
		{"DELETE", at + "?ignoreStoreReadErrorWithClusterBreakingPotential=true&dryRun=All", "", 200,
			`"details":{"name":"broken","kind":"ConfigMap"}`},
		{"DELETE", at + "?ignoreStoreReadErrorWithClusterBreakingPotential=true", "", 200,
			`"details":{"name":"broken","kind":"ConfigMap"},"code":200`},
		{"GET", at, "", 404, ""},
	})
}

// Lists name objects that cannot be decoded, at most 100, and everything else is served.
func TestUnreadable(t *testing.T) {
	d := converse(t, configMaps())
	const at = "/api/v1/namespaces/ns/configmaps"
	corrupt := func(name string) {
		t.Helper()
		if _, err := d.store.Create(t.Context(), "/registry/configmaps/ns/"+name, []byte("{"), 0); err != nil {
			t.Fatal(err)
		}
	}
	d.run(t, []exchange{{"POST", at, `{"metadata":{"name":"fine"}}`, 201, ""}})
	corrupt("broken")
	const what = "StorageError: corrupt object, Code: 7, Key: /registry/configmaps/ns/broken, ResourceVersion: 0, AdditionalErrorMsg: " +
		"object not decodable revision=3: "
	d.run(t, []exchange{
		{"GET", at, "", 500, `"message":"failed to read one or more configmaps from the storage: ` + what},
		{"GET", at, "", 500, `"reason":"StorageReadError","details":{"name":"list","kind":"configmaps",` +
			`"causes":[{"reason":"UnexpectedServerResponse"`},
		{"GET", at, "", 500, `"field":"/registry/configmaps/ns/broken"}]},"code":500}`},
		{"GET", at + "?labelSelector=a=b", "", 500, `"reason":"StorageReadError"`},
		{"GET", "/api/v1/configmaps", "", 500, `"reason":"StorageReadError"`},
		{"GET", "/api/v1/namespaces/other/configmaps", "", 200, ""},
		{"GET", at + "/fine", "", 200, ""},
		{"GET", at + "/broken", "", 500, `"message":"Internal error occurred: StorageError: corrupt object, Code: 7, ` +
			`Key: /configmaps/ns/broken, `},
		{"PUT", at + "/broken", `{"metadata":{"name":"broken"}}`, 500, `"message":"object not decodable revision=3: `},
		{"DELETE", at + "/broken", "", 500, `"reason":"InternalError"`},
		{"POST", at, `{"metadata":{"name":"broken"}}`, 409, `"reason":"AlreadyExists"`},
		{"POST", at, `{"metadata":{"name":"more"}}`, 201, ""},
		{"GET", "/metrics", "", 200, `apiserver_storage_decode_errors_total{group="",resource="configmaps"}`},
	})
	for i := range 120 {
		corrupt(fmt.Sprint("broken-", i))
	}
	var answer metav1.Status
	if err := json.Unmarshal(d.say("GET", at, "").Body.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	if n := len(answer.Details.Causes); n != 101 || answer.Details.Causes[100].Type != metav1.CauseTypeTooMany {
		t.Errorf("%d causes, the last %v", n, answer.Details.Causes[n-1])
	}
	if !strings.Contains(answer.Message, " (and 99 more)") {
		t.Errorf("it says %q", answer.Message)
	}
}

// sharedEngine is one that other processes write into, too.
type sharedEngine struct{ store.Decorator }

func (sharedEngine) CompactShared(context.Context) error { return nil }

// A list that is sent as it is made names an object that cannot be decoded, too: one from before the server's start, or another server's.
func TestUnreadableInLargeList(t *testing.T) {
	fill := func(t *testing.T, e store.Engine) {
		t.Helper()
		s, codec := store.New(e), configMaps().Codec
		for i := range 300 {
			name := fmt.Sprint("a-", i)
			b, err := codec.Encode(&corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string]string{"a": strings.Repeat("x", 1000)},
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Create(t.Context(), "/registry/configmaps/ns/"+name, b, 0); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Create(t.Context(), "/registry/configmaps/ns/broken", []byte("{"), 0); err != nil {
			t.Fatal(err)
		}
	}
	for name, header := range map[string]http.Header{
		"JSON": {}, "gzip": {"Accept-Encoding": {"gzip"}}, "protobuf": {"Accept": {"application/vnd.kubernetes.protobuf"}},
		"table":    {"Accept": {"application/json;as=Table;g=meta.k8s.io;v=v1"}},
		"metadata": {"Accept": {"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}},
	} {
		t.Run(name, func(t *testing.T) {
			before, others := memory.Open(memory.Options{}), sharedEngine{store.Decorator{Engine: memory.Open(memory.Options{})}}
			fill(t, before)
			all := []*dialogue{converseOn(t, before, configMaps()), converseOn(t, others, configMaps())}
			fill(t, others)
			for i, d := range all {
				r := httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/ns/configmaps", nil)
				r.Header = header.Clone()
				w := d.ask(r)
				if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "/registry/configmaps/ns/broken") {
					t.Errorf("store %d: %d %.200s", i, w.Code, w.Body.String())
				}
				d.run(t, []exchange{
					{"DELETE", "/api/v1/namespaces/ns/configmaps/broken?ignoreStoreReadErrorWithClusterBreakingPotential=true", "", 200, ""},
					{"GET", "/api/v1/namespaces/ns/configmaps", "", 200, "a-299"},
				})
			}
		})
	}
}

// A watch ends with an error when the last state of a deleted object cannot be decoded; the next one goes on.
func TestUnreadableDeleted(t *testing.T) {
	d := converse(t, configMaps())
	at, err := d.store.Create(t.Context(), "/registry/configmaps/ns/broken", []byte("{"), 0)
	if err != nil {
		t.Fatal(err)
	}
	revision, err := d.store.Delete(t.Context(), at.Key, at.Revision)
	if err != nil {
		t.Fatal(err)
	}
	said := d.say("GET", fmt.Sprintf("/api/v1/namespaces/ns/configmaps?watch=1&resourceVersion=%d", at.Revision), "").Body.String()
	if !strings.Contains(said, `"type":"ERROR"`) || !strings.Contains(said, "saw a DELETED event, but object data is corrupt - object not decodable") {
		t.Errorf("the watch says %s", said)
	}
	d.run(t, []exchange{{"GET", fmt.Sprintf("/api/v1/namespaces/ns/configmaps?watch=1&timeoutSeconds=1&resourceVersion=%d", revision), "", 200, ""}})
}

// A graceful object that is deleted immediately is updated first, and many objects are deleted at the end.
func TestDeletionsAsWatched(t *testing.T) {
	d := converse(t, configMaps(), pods())
	c := kubernetes.NewForConfigOrDie(d.Config(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})).CoreV1()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	p, err := c.Pods("ns").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.Pods("ns").Watch(ctx, metav1.ListOptions{ResourceVersion: p.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := c.Pods("ns").Delete(ctx, "p", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	got := ""
	for range 2 {
		e := <-w.ResultChan()
		o := e.Object.(*corev1.Pod)
		got += fmt.Sprintf("%s %d ", e.Type, *o.DeletionGracePeriodSeconds)
	}
	if got != "MODIFIED 0 DELETED 0 " {
		t.Errorf("watched %s", got)
	}
	for i := range 200 {
		if _, err := c.ConfigMaps("ns").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i)}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.ConfigMaps("ns").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if left, err := c.ConfigMaps("ns").List(ctx, metav1.ListOptions{}); err != nil || len(left.Items) > 0 {
		t.Errorf("%d are left, %v", len(left.Items), err)
	}
}

// A watch that cannot begin at its revision reports this as an event.
func TestWatchRefusals(t *testing.T) {
	d := converse(t, configMaps())
	const at = "/api/v1/namespaces/ns/configmaps"
	for i := range 5 {
		d.say("POST", at, fmt.Sprintf(`{"metadata":{"name":"c%d"}}`, i))
	}
	if err := d.store.Compact(t.Context(), d.store.Revision()); err != nil {
		t.Fatal(err)
	}
	d.run(t, []exchange{
		{"GET", at + "?watch=1&resourceVersion=2", "", 200,
			`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version: 2 (` +
				strconv.FormatInt(d.store.Compacted(), 10) + `)","reason":"Expired","code":410}}`},
		{"GET", at + "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=9999", "", 200,
			`"reason":"ResourceVersionTooLarge"`},
		{"GET", at + "?watch=1&timeoutSeconds=-1", "", 200, ""},
		{"GET", at + "?watch=1&resourceVersion=abc", "", 500, ""},
		{"GET", at + "?limit=1&resourceVersion=2", "", 410, "The resourceVersion for the provided list is too old."},
	})
}

// A PUT may create an object if the kind allows that, but not with a UID.
func TestUpdateThatCreates(t *testing.T) {
	kind := configMaps()
	kind.Strategy.CreateOnUpdate = true
	d := converse(t, kind)
	const at = "/api/v1/namespaces/ns/configmaps/a"
	d.run(t, []exchange{
		{"PUT", at, `{"metadata":{"name":"a","uid":"u"}}`, 409, `Precondition failed: UID in precondition: u, UID in object meta: "`},
		{"PUT", at + "?dryRun=All", `{"metadata":{"name":"a"}}`, 201, ""},
		{"PUT", at, `{"metadata":{"name":"a","resourceVersion":"7"}}`, 201, ""},
		{"PUT", at, `{"metadata":{"name":"a","uid":"u"}}`, 409, "Precondition failed: UID in precondition: u, UID in object meta: "},
		{"PUT", at, `{"metadata":{"name":"a"},"data":{"k":"v"}}`, 200, `"k":"v"`},
	})
}

func TestPatchOfKind(t *testing.T) {
	d := converse(t, configMaps(), widgets())
	const at, cr = "/api/v1/namespaces/ns/configmaps", "/apis/example.com/v1/namespaces/ns/widgets"
	d.run(t, []exchange{
		{"POST", at, `{"metadata":{"name":"a"},"data":{"k":"v"}}`, 201, ""},
		{"PATCH", at + "/a", `{"kind":"Y"}`, 422, `no kind \"Y\" is registered for version \"v1\" in scheme`},
		{"PATCH", at + "/a", `{"apiVersion":"v9"}`, 422, `no kind \"ConfigMap\" is registered for version \"v9\" in scheme`},
		{"PATCH", at + "/a", `{"apiVersion":null}`, 400, "the name of the object (a based on URL) was undeterminable: name must be provided"},
		{"PATCH", at + "/a?fieldValidation=Strict", `{"apiVersion":null}`, 422,
			`strict decoding error: unknown field \"data\", unknown field \"metadata\"`},
		{"PATCH", at + "/a", `[{"op":"remove","path":"/kind"}]`, 200, `"kind":"ConfigMap"`},
		{"PATCH", at + "/none", "{", 400, "invalid JSON patch"},
		{"PATCH", at + "/a", `{"metadata":{"name":"b"}}`, 400, "does not match the name on the URL"},
		{"POST", cr, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"}}`, 201, ""},
		{"PATCH", cr + "/a", `{"kind":"Y"}`, 422, `Y.example.com \"a\" is invalid: kind: Invalid value: \"Y\": must be Widget`},
		{"PATCH", cr + "/a", `{"apiVersion":"v9"}`, 422, `Widget \"a\" is invalid: apiVersion: Invalid value: \"v9\": must be example.com/v1`},
		{"PATCH", cr + "/a", `{"kind":null}`, 422, "Object 'Kind' is missing in"},
		{"PATCH", cr + "/a", `{"apiVersion":null}`, 500, "Object 'apiVersion' is missing in 'object has no apiVersion field'"},
	})
}

// Fields applied to a scale belong to its manager, and conflict with the managers of the parent's fields.
func TestApplyToScale(t *testing.T) {
	d := converse(t, controllers())
	const at = "/api/v1/namespaces/ns/replicationcontrollers"
	scale := func(n int) string {
		return fmt.Sprintf("apiVersion: autoscaling/v1\nkind: Scale\nmetadata: {name: a}\nspec: {replicas: %d}\n", n)
	}
	d.run(t, []exchange{
		{"POST", at, `{"metadata":{"name":"a"},"spec":{"replicas":1}}`, 201, ""},
		{"PATCH", at + "/a/scale?fieldManager=m", scale(3), 409, `conflict with \"tester\" using autoscaling/v1: .spec.replicas`},
		{"PATCH", at + "/a/scale?fieldManager=m&force=true&dryRun=All", scale(3), 200, `"replicas":3`},
		{"GET", at + "/a", "", 200, `"spec":{"replicas":1`},
		{"PATCH", at + "/a/scale?fieldManager=m&force=true", scale(3), 200, `"replicas":3`},
		{"GET", at + "/a", "", 200, `"manager":"m","operation":"Apply","apiVersion":"v1"`},
		{"GET", at + "/a", "", 200, `"fieldsV1":{"f:spec":{"f:replicas":{}}},"subresource":"scale"`},
		{"PATCH", at + "/a/scale?fieldManager=n", scale(4), 409, `conflict with \"m\" with subresource \"scale\": .spec.replicas`},
		{"PATCH", at + "/a/scale", `{"spec":{"replicas":5}}`, 200, `"replicas":5`},
		{"GET", at + "/a", "", 200, `"manager":"tester","operation":"Update","apiVersion":"v1"`},
		{"PATCH", at + "/a/scale", `{"kind":"X"}`, 422, `no kind \"X\" is registered for version \"autoscaling/v1\" in scheme`},
		{"PATCH", at + "/a/scale?fieldManager=n", "apiVersion: autoscaling/v1\nkind: Scale\nmetadata: {name: b}\n", 400,
			"does not match the name on the URL"},
	})
}

// An object may be as large as etcd allows, and loses its managed fields if necessary.
func TestObjectLimit(t *testing.T) {
	d := converse(t, widgets())
	const cr = "/apis/example.com/v1/namespaces/ns/widgets"
	widget := func(size, fields int) string {
		long := strings.Repeat("f", fields)
		return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"v":%q,%q:1}}`,
			strings.Repeat("x", size), long)
	}
	d.run(t, []exchange{
		{"POST", cr, widget(1600000, 1), 500, `"message":"etcdserver: request is too large","code":500`},
		{"POST", cr, widget(2200000, 1), 500, "rpc error: code = ResourceExhausted desc = trying to send message larger than max (22"},
		{"POST", cr + "?dryRun=All", widget(1600000, 1), 201, ""},
		{"POST", cr, widget(1100000, 300000), 201, ""}, // only without its managed fields
		{"PATCH", cr + "/a", `{"spec":{"v":"` + strings.Repeat("y", 1700000) + `"}}`, 500, "etcdserver: request is too large"},
		{"PATCH", cr + "/a", `{"spec":null}`, 200, ""},
	})
}

// A bookmark is sent shortly before a watch ends.
func TestLastBookmark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := converse(t, configMaps())
		const at = "/api/v1/namespaces/ns/configmaps"
		d.say("POST", at, `{"metadata":{"name":"a"}}`)
		for query, want := range map[string]int{"timeoutSeconds=5": 0, "allowWatchBookmarks=1&timeoutSeconds=5": 1,
			"allowWatchBookmarks=1&timeoutSeconds=1": 0, "allowWatchBookmarks=1&timeoutSeconds=150": 3} {
			go func() { // otherwise there is nothing to report
				time.Sleep(500 * time.Millisecond)
				d.say("POST", at, `{"metadata":{"generateName":"a"}}`)
			}()
			if got := strings.Count(d.say("GET", at+"?watch=1&resourceVersion=2&"+query, "").Body.String(), `"BOOKMARK"`); got != want {
				t.Errorf("%s: %d bookmarks, want %d", query, got, want)
			}
		}
	})
}

// A user who is not an administrator waits when there are too many requests in flight.
func TestTooManyRequests(t *testing.T) {
	d := converse(t, configMaps())
	d.flow, d.limiter.MaxReads = nil, 1 // without priorities
	if !d.limiter.Enter(http.MethodGet, false, time.Now()) {
		t.Fatal("no room for one")
	}
	r := httptest.NewRequest("GET", "/api/v1/configmaps", nil)
	r = r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: "jane"}))
	w := httptest.NewRecorder()
	d.Handler().ServeHTTP(w, r)
	if w.Code != 429 || w.Body.String() != "Too many requests, please try again later.\n" || w.Header().Get("Retry-After") != "1" {
		t.Errorf("answered %d %q %v", w.Code, w.Body, w.Header())
	}
	d.run(t, []exchange{{"GET", "/api/v1/configmaps", "", 200, ""}})
}
