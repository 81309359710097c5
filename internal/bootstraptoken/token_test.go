// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package bootstraptoken

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes/fake"
)

func TestParse(t *testing.T) {
	for text, ok := range map[string]bool{
		"abcdef.0123456789abcdef": true, "": false, "abcdef": false, "ABCDEF.0123456789abcdef": false,
		"abcdef.0123456789abcdef\n": false, "abcde.0123456789abcdef": false, "abcdef.0123456789abcde": false,
	} {
		got, err := Parse(text)
		if (err == nil) != ok || ok && got.String() != text {
			t.Errorf("%q: %v, %v", text, got, err)
		}
		if err != nil && len(text) > 10 && strings.Contains(err.Error(), text) {
			t.Errorf("the error repeats the token: %v", err)
		}
	}
	a, err := Generate()
	if err != nil {
		t.Fatal(err)
	}
	b, err := Generate()
	if err != nil || a == b {
		t.Errorf("twice the same token: %v", err)
	}
	if _, err := Parse(a.String()); err != nil {
		t.Errorf("what was made cannot be read: %v", err)
	}
}

func signed(head, secret, content string) string {
	enc := base64.RawURLEncoding
	h := enc.EncodeToString([]byte(head))
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(h + "." + enc.EncodeToString([]byte(content))))
	return h + ".." + enc.EncodeToString(mac.Sum(nil))
}

func TestVerify(t *testing.T) {
	token := Token{"abcdef", "0123456789abcdef"}
	const good = `{"alg":"HS256","kid":"abcdef"}`
	for name, c := range map[string]struct {
		signature string
		ok        bool
	}{
		"good":                      {signed(good, token.Secret, "content"), true},
		"another secret":            {signed(good, "fedcba9876543210", "content"), false},
		"another content":           {signed(good, token.Secret, "content2"), false},
		"another token":             {signed(`{"alg":"HS256","kid":"abcdeg"}`, token.Secret, "content"), false},
		"no algorithm":              {signed(`{"alg":"none","kid":"abcdef"}`, token.Secret, "content"), false},
		"with a content of its own": {strings.Replace(signed(good, token.Secret, "content"), "..", ".Y29udGVudA.", 1), false},
		"no signature":              {"", false},
		"no JSON":                   {signed("x", token.Secret, "content"), false},
	} {
		if err := token.Verify("content", c.signature); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEntries: what is made is what is listed, those that end first before the others; twice the same ID is refused.
func TestEntries(t *testing.T) {
	ctx, client := context.Background(), fake.NewClientset()
	now := time.Now().UTC().Truncate(time.Second)
	all := []Entry{
		{Token: Token{"cccccc", "0123456789abcdef"}, Expires: now.Add(time.Hour), Usages: Usages(), Groups: []string{DefaultGroup},
			Description: "soon"},
		{Token: Token{"bbbbbb", "0123456789abcdef"}, Expires: now.Add(2 * time.Hour), Usages: []string{Signing}},
		{Token: Token{"aaaaaa", "0123456789abcdef"}, Usages: []string{Authentication}},
	}
	for _, i := range []int{2, 0, 1} {
		if err := all[i].Check(); err != nil {
			t.Error(err)
		}
		if err := Create(ctx, client, all[i]); err != nil {
			t.Fatal(err)
		}
	}
	got, skipped, err := List(ctx, client)
	if err != nil || len(skipped) > 0 {
		t.Fatal(err, skipped)
	}
	if diff := cmp.Diff(all, got); diff != "" {
		t.Error(diff)
	}
	if err := Create(ctx, client, all[0]); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("the same token again: %v", err)
	}
	if err := Delete(ctx, client, "aaaaaa"); err != nil {
		t.Error(err)
	}
	if err := Delete(ctx, client, "aaaaaa"); err == nil {
		t.Error("what is gone was deleted")
	}
	for _, wrong := range []Entry{{Usages: []string{"other"}}, {Usages: Usages(), Groups: []string{"system:masters"}},
		{Usages: []string{Signing}, Groups: []string{DefaultGroup}}} {
		if wrong.Check() == nil {
			t.Errorf("%+v is taken", wrong)
		}
	}
}
