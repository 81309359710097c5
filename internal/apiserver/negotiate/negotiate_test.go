// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package negotiate

import (
	"net/http/httptest"
	"testing"
)

func TestChoose(t *testing.T) {
	const table = ";as=Table;v=v1;g=meta.k8s.io"
	typed := &Offer{Media: Types(false), Transforms: true, ServerVersion: "v1"}
	custom := &Offer{Media: Types(false), Plain: []string{JSON, YAML}, Transforms: true, ServerVersion: "v1"}
	errs := &Offer{Media: Types(false)}
	binary := &Offer{Media: Types(true), Transforms: true}
	for _, c := range []struct {
		header string
		offer  *Offer
		want   string // media, target, pretty; empty: none
	}{
		{"", typed, JSON},
		{"*/*", typed, JSON},
		{"*", typed, JSON},
		{"application/*", typed, JSON},
		{"text/*", typed, ""},
		{"APPLICATION/JSON", typed, ""},
		{"application/yaml;q=0.5, application/json;q=0.4", typed, YAML},
		{"application/yaml;q=wrong, application/json", typed, JSON},
		{"application/json;charset=latin1", typed, JSON},
		{"application/json;pretty=1", typed, JSON + " pretty"},
		{"application/json;pretty=true", typed, JSON},
		{"application/json;stream=watch", typed, JSON},
		{"application/json;stream=other", typed, ""},
		{"application/yaml;stream=watch", typed, ""},
		{"application/json;sv=v1", typed, JSON},
		{"application/json;sv=v2", typed, ""},
		{"application/json" + table, typed, JSON + " Table"},
		{"application/json;as=Table;v=v2;g=meta.k8s.io,application/yaml", typed, YAML},
		{"application/json;v=v1", typed, ""},
		{"application/vnd.kubernetes.protobuf" + table + ",application/yaml" + table, typed, YAML + " Table"},
		{"application/json" + table, errs, ""},
		{"application/json" + table + ",application/json", errs, JSON},
		{"application/json;sv=v1", errs, ""},
		{Protobuf, custom, ""},
		{Protobuf + ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io", custom, Protobuf + " PartialObjectMetadata"},
		{Protobuf, typed, Protobuf},
		{CBOR, typed, ""},
		{CBOR, binary, CBOR},
		{"application/cbor" + table + ",application/json", binary, JSON},
	} {
		got := ""
		if f, ok := Parse(c.header).Choose(c.header, c.offer); ok {
			if got = f.Media; f.Target != nil {
				got += " " + f.Target.Kind
			}
			if f.Pretty {
				got += " pretty"
			}
		}
		if got != c.want {
			t.Errorf("%q: got %q, want %q", c.header, got, c.want)
		}
	}
}

func TestRouted(t *testing.T) {
	for header, want := range map[string]bool{
		"": true, "*/*": true, "text/html, */*;q=0.1": true, "application/json;as=Table": true, " application/yaml ": true,
		"*": false, "application/*": false, "garbage": false, "application/JSON": false, CBOR: false,
	} {
		if got := Routed(header, Types(false)); got != want {
			t.Errorf("%q: got %v, want %v", header, got, want)
		}
	}
}

func TestConsumed(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "*/*": false, "application/json": true, "text/plain, application/json; charset=x": true, "application/json2": false,
	} {
		if got := Consumed(header, []string{JSON}); got != want {
			t.Errorf("%q: got %v, want %v", header, got, want)
		}
	}
}

func TestPretty(t *testing.T) {
	for _, c := range []struct {
		query, agent string
		want         bool
	}{
		{"", "kubectl/v1.37", false},
		{"", "curl/8", true},
		{"?pretty=false", "curl/8", false},
		{"?pretty=wrong", "curl/8", false},
		{"?pretty=", "curl/8", true},
		{"?pretty=true", "", true},
		{"?pretty=T", "", true},
	} {
		r := httptest.NewRequest("GET", "/api"+c.query, nil)
		r.Header.Set("User-Agent", c.agent)
		if got := Pretty(r); got != c.want {
			t.Errorf("%q by %q: got %v, want %v", c.query, c.agent, got, c.want)
		}
	}
}

func TestBodyAndGzip(t *testing.T) {
	for header, want := range map[string]string{
		"": JSON, "application/json; charset=latin1": JSON, "application/yaml": YAML, "Application/YAML": YAML, "text/plain": "", "a b": "",
		CBOR: "",
	} {
		got, ok := Body(header, Types(false))
		if ok != (want != "") || ok && got != want {
			t.Errorf("%q: got %q %v, want %q", header, got, ok, want)
		}
	}
	for header, want := range map[string]bool{"": false, "gzip": true, "deflate, gzip": true, "gzip;q=1": false, "br": false} {
		r := httptest.NewRequest("GET", "/api", nil)
		r.Header.Set("Accept-Encoding", header)
		if got := AcceptsGzip(r); got != want {
			t.Errorf("%q: got %v, want %v", header, got, want)
		}
	}
}

func FuzzChoose(f *testing.F) {
	for _, s := range []string{"application/json;as=Table;v=v1;g=meta.k8s.io,*/*;q=0.1", "a/b/c;=;q=;q", ",,;;==", "*/*;q=-1"} {
		f.Add(s)
	}
	o := &Offer{Media: Types(true), Plain: []string{JSON, CBOR}, Transforms: true, ServerVersion: "v1"}
	f.Fuzz(func(t *testing.T, header string) {
		var c Cache
		form, ok := c.Clauses(header).Choose(header, o)
		again, ok2 := c.Clauses(header).Choose(header, o)
		if ok != ok2 || form.Media != again.Media {
			t.Errorf("%q: %v, then %v", header, form, again)
		}
		if ok && form.Target == nil && form.Media != JSON && form.Media != CBOR {
			t.Errorf("%q: got %q, which has no plain form", header, form.Media)
		}
	})
}
