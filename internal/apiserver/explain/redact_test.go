// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/resource"
)

func secretWith(name string, data map[string]string) *corev1.Secret {
	s := &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Data: map[string][]byte{}}
	for k, v := range data {
		s.Data[k] = []byte(v)
	}
	return s
}

// wroteSecrets traces one write of several secrets, each with its old and new state.
func (s *server) wroteSecrets(id string, pairs ...[2]*corev1.Secret) {
	d := kind("secrets", func() resource.Object { return &corev1.Secret{} })
	w := s.begin("update", "secrets", "", pairs[0][1].Name)
	for _, p := range pairs {
		w.Committed(d, p[0], p[1], encoded(s.t, p[0]), encoded(s.t, p[1]), 1+s.numbers.Load())
	}
	s.finish(w, id, http.StatusOK)
}

// marksOf returns the marks of an object's members after a write, by field.
func (s *server) marksOf(id string, object int) map[string]string {
	s.t.Helper()
	out := map[string]string{}
	for _, c := range s.view("/" + id).Traces[0].Objects[object].Changes {
		mark, _ := c.Value.(string)
		if out[c.Field] = mark; !strings.HasPrefix(mark, "[redacted ") {
			s.t.Errorf("%s: %v is no mark", c.Field, c.Value)
		}
	}
	return out
}

// TestMarksTellNoValue writes guesses next to secrets with the same values: all marks differ, so they reveal nothing.
func TestMarksTellNoValue(t *testing.T) {
	s := newServer(t, 1<<20)
	empty := func(name string) *corev1.Secret { return secretWith(name, map[string]string{"kept": "as it is"}) }
	both := map[string]string{"kept": "as it is", "password": "guess", "guess": "guess"}
	s.wroteSecrets("theirs", [2]*corev1.Secret{empty("theirs"), secretWith("theirs", both)},
		[2]*corev1.Secret{empty("beside"), secretWith("beside", both)})
	s.wroteSecrets("mine", [2]*corev1.Secret{empty("mine"), secretWith("mine", both)})
	s.wroteSecrets("again", [2]*corev1.Secret{empty("theirs"), secretWith("theirs", both)})
	seen := map[string]string{}
	for _, from := range []struct {
		id string
		nr int
	}{{"theirs", 0}, {"theirs", 1}, {"mine", 0}, {"again", 0}} {
		marks := s.marksOf(from.id, from.nr)
		if len(marks) != 2 {
			t.Errorf("%s: marks %v", from.id, marks)
		}
		for field, mark := range marks {
			at := from.id + " " + field
			if was, ok := seen[mark]; ok {
				t.Errorf("%s and %s have the mark %s", was, at, mark)
			}
			seen[mark] = at
			if len(mark) < len("[redacted ]")+32 {
				t.Errorf("%s: the mark %s is short enough to be met by chance", at, mark)
			}
		}
	}
}

// TestMarksOfOneWrite checks that the marks within one write show which values changed.
func TestMarksOfOneWrite(t *testing.T) {
	s := newServer(t, 1<<20)
	s.wroteSecrets("w", [2]*corev1.Secret{secretWith("s", map[string]string{"a": "1", "b": "2"}),
		secretWith("s", map[string]string{"a": "1", "b": "3"})})
	if marks := s.marksOf("w", 0); len(marks) != 1 || marks["data.b"] == "" {
		t.Errorf("what changed: %v", marks)
	}
}

// TestFieldOfSecret queries the writes of a secret's member: the live object has the mark of the newest write while it
// has that write's value.
func TestFieldOfSecret(t *testing.T) {
	s := newServer(t, 1<<20)
	first, second := secretWith("s", map[string]string{"p": "1"}), secretWith("s", map[string]string{"p": "2"})
	s.wroteSecrets("one", [2]*corev1.Secret{secretWith("s", nil), first})
	s.wroteSecrets("two", [2]*corev1.Secret{first, second})
	for _, c := range []struct{ live, note string }{
		{"2", ""}, {"1", "a later write, whose contents are not recorded, changed the field"},
	} {
		s.obj.live = map[string]any{}
		if err := json.Unmarshal(encoded(t, secretWith("s", map[string]string{"p": c.live})), &s.obj.live); err != nil {
			t.Fatal(err)
		}
		code, body := s.ask("?resource=secrets&namespace=shop&name=s&field=data.p")
		var f trace.Field
		if err := json.Unmarshal(body, &f); err != nil || code != http.StatusOK {
			t.Fatalf("%d, %v: %s", code, err, body)
		}
		if len(f.Settings) != 2 || f.Settings[0].AuditID != "two" || f.Note != c.note || (f.Value == f.Settings[0].Value) != (c.note == "") {
			t.Errorf("live %s: %s", c.live, body)
		}
	}
}
