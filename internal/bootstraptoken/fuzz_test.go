// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package bootstraptoken

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FuzzToken: a token that can be read is written the same way, and its ID is the same.
func FuzzToken(f *testing.F) {
	f.Add("abcdef.0123456789abcdef")
	f.Add("abcdef")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := Parse(text)
		if err == nil && token.String() != text {
			t.Fatalf("%q is read as %q", text, token)
		}
		if id, e := IDOf(text); err == nil && (e != nil || id != token.ID) {
			t.Fatalf("the ID of %q is %q, %v", text, id, e)
		}
	})
}

// FuzzVerify: what verifies holds for no other content, and for no other token.
func FuzzVerify(f *testing.F) {
	token, other := Token{"abcdef", "0123456789abcdef"}, Token{"abcdef", "fedcba9876543210"}
	f.Add("content", signed(`{"alg":"HS256","kid":"abcdef"}`, token.Secret, "content"))
	f.Add("", "..")
	f.Fuzz(func(t *testing.T, content, signature string) {
		if token.Verify(content, signature) != nil {
			return
		}
		if token.Verify(content+"x", signature) == nil || other.Verify(content, signature) == nil {
			t.Fatalf("%q is a signature of everything", signature)
		}
	})
}

// FuzzSecret: a secret that is read as a token's is written with the same values.
func FuzzSecret(f *testing.F) {
	f.Add("abcdef", "0123456789abcdef", "2026-11-22T02:00:00Z", "system:bootstrappers:a,system:bootstrappers:b")
	f.Fuzz(func(t *testing.T, id, secret, expires, groups string) {
		e, err := read(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secretPrefix + id}, Data: map[string][]byte{
			"token-id": []byte(id), "token-secret": []byte(secret), "expiration": []byte(expires), "auth-extra-groups": []byte(groups),
		}})
		if y := e.Expires.UTC().Year(); err != nil || y < 1 || y > 9999 { // which RFC 3339 cannot write
			return
		}
		if again, err := read(e.secret()); err != nil || again.Token != e.Token || !again.Expires.Equal(e.Expires.Truncate(time.Second)) ||
			strings.Join(again.Groups, ",") != groups {
			t.Fatalf("%+v is written and read as %+v, %v", e, again, err)
		}
	})
}
