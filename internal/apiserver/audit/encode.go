// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
)

// head begins each line of a log. Events in a list have no kind and version, and begin with a brace instead.
const head = `{"kind":"Event","apiVersion":"audit.k8s.io/v1",`

// appendEvent appends an event as one line of audit.k8s.io/v1 JSON, byte for byte as upstream's codec writes it. Each
// event is encoded once for all backends, and nearly every request has two events: that justifies a specialised
// encoder.
func appendEvent(b []byte, e *auditinternal.Event) []byte {
	b = append(b, head...)
	b = appendString(append(b, `"level":`...), string(e.Level))
	b = appendString(append(b, `,"auditID":`...), string(e.AuditID))
	b = appendString(append(b, `,"stage":`...), string(e.Stage))
	b = appendString(append(b, `,"requestURI":`...), e.RequestURI)
	b = appendString(append(b, `,"verb":`...), e.Verb)
	b = appendUser(append(b, `,"user":`...), &e.User)
	if e.ImpersonatedUser != nil {
		b = appendUser(append(b, `,"impersonatedUser":`...), e.ImpersonatedUser)
	}
	if m := e.AuthenticationMetadata; m != nil {
		w := object{b: append(b, `,"authenticationMetadata":`...)}
		w.text("impersonationConstraint", m.ImpersonationConstraint)
		b = w.end()
	}
	if len(e.SourceIPs) > 0 {
		b = appendStrings(append(b, `,"sourceIPs":`...), e.SourceIPs)
	}
	if e.UserAgent != "" {
		b = appendString(append(b, `,"userAgent":`...), e.UserAgent)
	}
	if r := e.ObjectRef; r != nil {
		w := object{b: append(b, `,"objectRef":`...)}
		w.text("resource", r.Resource)
		w.text("namespace", r.Namespace)
		w.text("name", r.Name)
		w.text("uid", string(r.UID))
		w.text("apiGroup", r.APIGroup)
		w.text("apiVersion", r.APIVersion)
		w.text("resourceVersion", r.ResourceVersion)
		w.text("subresource", r.Subresource)
		b = w.end()
	}
	if e.ResponseStatus != nil {
		b = appendStatus(append(b, `,"responseStatus":`...), e.ResponseStatus)
	}
	if e.RequestObject != nil {
		b = appendRaw(append(b, `,"requestObject":`...), e.RequestObject)
	}
	if e.ResponseObject != nil {
		b = appendRaw(append(b, `,"responseObject":`...), e.ResponseObject)
	}
	b = appendTime(append(b, `,"requestReceivedTimestamp":`...), e.RequestReceivedTimestamp)
	b = appendTime(append(b, `,"stageTimestamp":`...), e.StageTimestamp)
	if len(e.Annotations) > 0 {
		keys := make([]string, 0, 8)
		for k := range e.Annotations {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		b = append(b, `,"annotations":`...)
		for i, k := range keys {
			b = appendString(append(b, separator(i)), k)
			b = appendString(append(b, ':'), e.Annotations[k])
		}
		b = append(b, '}')
	}
	return append(b, '}', '\n')
}

// separator returns the byte before member i of an object.
func separator(i int) byte {
	if i == 0 {
		return '{'
	}
	return ','
}

// object writes a JSON object and omits empty fields.
type object struct {
	b []byte
	n int
}

func (o *object) key(name string) {
	o.b = append(o.b, separator(o.n), '"')
	o.b = append(append(o.b, name...), '"', ':')
	o.n++
}

func (o *object) text(name, s string) {
	if s != "" {
		o.key(name)
		o.b = appendString(o.b, s)
	}
}

func (o *object) end() []byte {
	if o.n == 0 {
		o.b = append(o.b, '{')
	}
	return append(o.b, '}')
}

func appendUser(b []byte, u *authenticationv1.UserInfo) []byte {
	w := object{b: b}
	w.text("username", u.Username)
	w.text("uid", u.UID)
	if len(u.Groups) > 0 {
		w.key("groups")
		w.b = appendStrings(w.b, u.Groups)
	}
	if len(u.Extra) > 0 {
		w.key("extra")
		keys := make([]string, 0, 8)
		for k := range u.Extra {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for i, k := range keys {
			w.b = appendString(append(w.b, separator(i)), k)
			w.b = append(w.b, ':')
			if v := u.Extra[k]; v == nil {
				w.b = append(w.b, "null"...)
			} else {
				w.b = appendStrings(w.b, v)
			}
		}
		w.b = append(w.b, '}')
	}
	return w.end()
}

func appendStatus(b []byte, s *metav1.Status) []byte {
	w := object{b: b}
	w.text("kind", s.Kind)
	w.text("apiVersion", s.APIVersion)
	w.key("metadata")
	if l := &s.ListMeta; l.ResourceVersion == "" && l.Continue == "" && l.RemainingItemCount == nil {
		w.b = append(w.b, "{}"...)
	} else {
		w.b = appendAny(w.b, l)
	}
	w.text("status", s.Status)
	w.text("message", s.Message)
	w.text("reason", string(s.Reason))
	if s.Details != nil {
		w.key("details")
		w.b = appendAny(w.b, s.Details)
	}
	if s.Code != 0 {
		w.key("code")
		w.b = strconv.AppendInt(w.b, int64(s.Code), 10)
	}
	return w.end()
}

// appendRaw appends an object in JSON as one line.
func appendRaw(b []byte, u *runtime.Unknown) []byte {
	if len(u.Raw) == 0 {
		return append(b, "null"...)
	}
	return append(b, u.Raw...)
}

func appendAny(b []byte, v any) []byte {
	j, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode audit event: %v", err)) // parts of a Status are always JSON
	}
	return append(b, j...)
}

// appendTime appends a time in the format metav1.RFC3339Micro.
func appendTime(b []byte, t metav1.MicroTime) []byte {
	if t.IsZero() {
		return append(b, "null"...)
	}
	utc := t.UTC()
	year, month, day := utc.Date()
	if year < 0 || year > 9999 {
		return append(utc.AppendFormat(append(b, '"'), metav1.RFC3339Micro), '"')
	}
	hour, minute, second := utc.Clock()
	b = digits(append(b, '"'), year, 4)
	b = digits(append(b, '-'), int(month), 2)
	b = digits(append(b, '-'), day, 2)
	b = digits(append(b, 'T'), hour, 2)
	b = digits(append(b, ':'), minute, 2)
	b = digits(append(b, ':'), second, 2)
	b = digits(append(b, '.'), utc.Nanosecond()/1000, 6)
	return append(b, 'Z', '"')
}

// digits appends n digits of a number.
func digits(b []byte, number, n int) []byte {
	for range n {
		b = append(b, '0')
	}
	for i := len(b) - 1; number > 0; i-- {
		b[i] += byte(number % 10)
		number /= 10
	}
	return b
}

func appendStrings(b []byte, all []string) []byte {
	b = append(b, '[')
	for i, s := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return append(b, ']')
}

// The classes of bytes in a JSON string: bytes that need no escape, bytes that need a backslash, and bytes that the
// library escapes.
const (
	plain = iota
	quoted
	other
)

var sorts = func() (t [256]byte) {
	for c := range t {
		switch {
		case c == '"' || c == '\\':
			t[c] = quoted
		case c < ' ' || c >= utf8.RuneSelf-1 || c == '<' || c == '>' || c == '&':
			t[c] = other
		}
	}
	return t
}()

// appendString appends a JSON string. Nearly all need no escapes.
func appendString(b []byte, s string) []byte {
	begun := len(b)
	b = append(b, '"')
	from := 0
	for i := range len(s) {
		switch sorts[s[i]] {
		case quoted:
			b = append(append(b, s[from:i]...), '\\')
			from = i
		case other:
			return appendAny(b[:begun], s)
		}
	}
	b = append(b, s[from:]...)
	return append(b, '"')
}
