// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
)

var at = metav1.NewMicroTime(time.Date(2026, 11, 21, 10, 30, 0, 123000, time.FixedZone("x", 3600)))

func whole() *auditinternal.Event {
	return &auditinternal.Event{
		Level: auditinternal.LevelRequestResponse, AuditID: "id-1", Stage: auditinternal.StageResponseComplete,
		RequestURI: `/api/v1/pods?labelSelector=a<b>"c\&d`, Verb: "list",
		User: authenticationv1.UserInfo{Username: "jané", UID: "u", Groups: []string{"a", "b\n"},
			Extra: map[string]authenticationv1.ExtraValue{"z": {"1", "2"}, "a": nil, "m": {}}},
		ImpersonatedUser:       &authenticationv1.UserInfo{Username: "x\u2028"},
		AuthenticationMetadata: &auditinternal.AuthenticationMetadata{ImpersonationConstraint: "impersonate:user-info"},
		SourceIPs:              []string{"1.2.3.4", "::1"},
		UserAgent:              "kubectl/v1 \xff",
		ObjectRef: &auditinternal.ObjectReference{Resource: "pods", Namespace: "n", Name: "p", UID: "u", APIGroup: "g",
			APIVersion: "v", ResourceVersion: "7", Subresource: "log"},
		ResponseStatus: &metav1.Status{Status: "Failure", Message: "no", Reason: "Gone", Code: 410,
			Details: &metav1.StatusDetails{Kind: "pods"}, ListMeta: metav1.ListMeta{Continue: "c"}},
		RequestObject:            &runtime.Unknown{Raw: []byte(`{"kind":"Pod","a":[1,2]}`), ContentType: runtime.ContentTypeJSON},
		ResponseObject:           &runtime.Unknown{Raw: []byte(`{"kind":"Status"}`), ContentType: runtime.ContentTypeJSON},
		RequestReceivedTimestamp: at, StageTimestamp: at,
		Annotations: map[string]string{"b/c": "<1>", "a/b": ""},
	}
}

// TestEventsAreEncodedAsUpstreamDoes compares with the codec of upstream's library, byte for byte.
func TestEventsAreEncodedAsUpstreamDoes(t *testing.T) {
	codec := audit.Codecs.LegacyCodec(auditv1.SchemeGroupVersion)
	events := []*auditinternal.Event{whole(), {}, {User: authenticationv1.UserInfo{Groups: []string{}},
		ResponseStatus: &metav1.Status{Code: 200}, ObjectRef: &auditinternal.ObjectReference{},
		AuthenticationMetadata: &auditinternal.AuthenticationMetadata{}, RequestObject: &runtime.Unknown{ContentType: runtime.ContentTypeJSON}}}
	for _, e := range events {
		want, err := runtime.Encode(codec, e)
		if err != nil {
			t.Fatal(err)
		}
		if got := appendEvent(nil, e); !bytes.Equal(got, want) {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	}
	want, err := runtime.Encode(codec, &auditinternal.EventList{Items: []auditinternal.Event{*events[0], *events[2]}})
	if err != nil {
		t.Fatal(err)
	}
	if got := list([][]byte{appendEvent(nil, events[0]), appendEvent(nil, events[2])}); !bytes.Equal(got, want) {
		t.Errorf("a list: got\n%swant\n%s", got, want)
	}
}

func FuzzEncode(f *testing.F) {
	f.Add("/api?x=<>", "user\x00", "a/b", "é\u2029\"")
	codec := audit.Codecs.LegacyCodec(auditv1.SchemeGroupVersion)
	f.Fuzz(func(t *testing.T, uri, user, key, value string) {
		e := &auditinternal.Event{
			RequestURI: uri, User: authenticationv1.UserInfo{Username: user, Extra: map[string]authenticationv1.ExtraValue{key: {value}}},
			Annotations:    map[string]string{key: value},
			ResponseStatus: &metav1.Status{Message: value},
		}
		want, err := runtime.Encode(codec, e)
		if err != nil {
			t.Skipf("upstream has no encoding of it to compare with: %v", err)
		}
		if got := appendEvent(nil, e); !bytes.Equal(got, want) {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	})
}

func TestManagedFieldsAreLeftOut(t *testing.T) {
	for in, want := range map[string]string{
		`{"kind":"Pod","metadata":{"name":"a","managedFields":[{"x":"}]\""}],"uid":"u"},"spec":{"managedFields":1}}`: `{"kind":"Pod","metadata":{"name":"a","uid":"u"},"spec":{"managedFields":1}}`,
		`{"metadata":{"managedFields":[]},"x":1}`:                                                           `{"metadata":{},"x":1}`,
		`{"items":[{"metadata":{"managedFields":[1],"name":"b"}},{"metadata":{"name":"c"}}],"metadata":{}}`: `{"items":[{"metadata":{"name":"b"}},{"metadata":{"name":"c"}}],"metadata":{}}`,
		`{"rows":[{"cells":[{"managedFields":1}],"object":{"metadata":{"a":1,"managedFields":null}}}]}`:     `{"rows":[{"cells":[{"managedFields":1}],"object":{"metadata":{"a":1}}}]}`,
		`{"metadata":"managedFields","items":null}`:                                                         `{"metadata":"managedFields","items":null}`,
		`{"metadata":{"managedFields":`:                                                                     `{"metadata":{"managedFields":`,
		`"managedFields"`:                                                                                   `"managedFields"`,
		``:                                                                                                  ``,
	} {
		if got := string(withoutManagedFields([]byte(in))); got != want {
			t.Errorf("%s\n got %s\nwant %s", in, got, want)
		}
	}
}

// FuzzStrip compares the result for any JSON with that of a decoder.
func FuzzStrip(f *testing.F) {
	f.Add([]byte(`{"items":[{"metadata":{"managedFields":[{"a":"\\\""}],"name":"b"}}],"rows":[{"object":{"metadata":{"managedFields":{}}}}]}`))
	f.Add([]byte(`{"metadata":{"managedFields":1,"managedFields":2,"x":[]}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		out := withoutManagedFields(bytes.Clone(in))
		var line bytes.Buffer
		if json.Compact(&line, in) != nil || !bytes.Equal(line.Bytes(), in) || in[0] != '{' {
			return // its input is always compact
		}
		var want, got map[string]any
		if json.Unmarshal(in, &want) != nil {
			return
		}
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%s became %s", in, out)
		}
		bare := func(v any) {
			if o, ok := v.(map[string]any); ok {
				if m, ok := o["metadata"].(map[string]any); ok {
					delete(m, "managedFields")
				}
			}
		}
		each := func(v any, f func(any)) {
			if l, ok := v.([]any); ok {
				for _, x := range l {
					f(x)
				}
			}
		}
		for _, o := range []map[string]any{want, got} {
			if bytes.Count(in, []byte(`"metadata"`)) > 1 && bytes.Count(in, []byte(`"items"`)) == 0 && bytes.Count(in, []byte(`"rows"`)) == 0 {
				return // which of two keys of one name counts is unspecified
			}
			bare(o)
			each(o["items"], bare)
			each(o["rows"], func(r any) {
				if m, ok := r.(map[string]any); ok {
					bare(m["object"])
				}
			})
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s became %s: %s", in, out, d)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	e := whole()
	e.RequestURI, e.UserAgent, e.User.Username, e.ImpersonatedUser = "/api/v1/pods", "kubectl/v1", "jane", nil
	e.User.Groups, e.User.Extra, e.ResponseStatus = []string{"a", "b"}, nil, &metav1.Status{Code: 200}
	var line []byte
	b.ReportAllocs()
	for b.Loop() {
		line = appendEvent(line[:0], e)
	}
}
