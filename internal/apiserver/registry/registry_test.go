// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/resource"
)

func TestPropagation(t *testing.T) {
	orphan, foreground := metav1.DeletePropagationOrphan, metav1.DeletePropagationForeground
	for name, c := range map[string]struct {
		has  []string
		opts metav1.DeleteOptions
		want []string
	}{
		"silent":               {[]string{"a"}, metav1.DeleteOptions{}, []string{"a"}},
		"orphan":               {[]string{"a"}, metav1.DeleteOptions{PropagationPolicy: &orphan}, []string{"a", "orphan"}},
		"foreground":           {nil, metav1.DeleteOptions{PropagationPolicy: &foreground}, []string{"foregroundDeletion"}},
		"keeps what was asked": {[]string{"orphan"}, metav1.DeleteOptions{}, []string{"orphan"}},
		"changes its mind":     {[]string{"orphan"}, metav1.DeleteOptions{PropagationPolicy: &foreground}, []string{"foregroundDeletion"}},
	} {
		if diff := cmp.Diff(c.want, withPropagation(&resource.Strategy{}, c.has, &c.opts)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func FuzzContinue(f *testing.F) {
	for _, start := range []string{"/ns/a\x00", "ns/a\x00", "ns/a", "/", "\x00", "../x"} {
		f.Add(encodeContinue(start, 5))
	}
	f.Add("zzz")
	f.Fuzz(func(t *testing.T, token string) {
		after, rv, err := decodeContinue(token, "/registry/pods/")
		if err != nil {
			return
		}
		if after == "" {
			return
		}
		start, ok := strings.CutPrefix(after, "/registry/pods/")
		if !ok {
			t.Fatalf("%q leads out of the prefix: %q", token, after)
		}
		if !utf8.ValidString(start) {
			return
		}
		again, rv2, err := decodeContinue(encodeContinue("/"+start+"\x00", rv), "/registry/pods/")
		if err != nil || again != after || rv2 != rv {
			t.Fatalf("%q does not come back: %q %d %v", token, again, rv2, err)
		}
	})
}

func TestContinue(t *testing.T) {
	token := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	const bad = "invalid continue token: continue key is not valid: "
	for said, want := range map[string]string{
		`{"v":"meta.k8s.io/v1","rv":5,"start":"/a\u0000"}`: "p/a 5",
		`{"v":"meta.k8s.io/v1","rv":-1,"start":"a\u0000"}`: "p/a -1",
		`{"v":"meta.k8s.io/v1","rv":5,"start":"a"}`:        "p/`\xff 5", // the key itself comes
		`{"v":"meta.k8s.io/v1","rv":5,"start":"/"}`:        " 5",
		`{"v":"meta.k8s.io/v1","rv":5,"start":"../x"}`:     bad + "../x",
		`{"v":"meta.k8s.io/v1","rv":5,"start":"a//x"}`:     bad + "a//x",
		`{"v":"meta.k8s.io/v1","rv":5}`:                    bad + "encoded start key empty (version meta.k8s.io/v1)",
		`{"v":"meta.k8s.io/v1","start":"a"}`:               bad + "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
		`{"v":"meta.k8s.io/v2","rv":5,"start":"a"}`:        bad + "server does not recognize this encoded version meta.k8s.io/v2",
		`[]`: bad + "json: cannot unmarshal array into Go value of type storage.continueToken",
	} {
		after, rv, err := decodeContinue(token(said), "p/")
		got := fmt.Sprint(after, " ", rv)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s:\n got %q\nwant %q", said, got, want)
		}
	}
}
