// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/resource"
)

// withheld stands where a text may quote a secret.
const withheld = "[redacted]"

// secret reports whether requests for a resource contain secrets: the values of Secrets, and tokens.
func secret(group, resource, subresource string) bool {
	switch {
	case group == "" && resource == "secrets":
		return true
	case group == "" && resource == "serviceaccounts":
		return subresource == "token"
	case group == "authentication.k8s.io":
		return true
	}
	return false
}

// harmless are the reasons of refusals whose texts quote nothing of an object's contents.
func harmless(r metav1.StatusReason) bool {
	switch r {
	case metav1.StatusReasonUnauthorized, metav1.StatusReasonNotFound, metav1.StatusReasonAlreadyExists, metav1.StatusReasonConflict,
		metav1.StatusReasonTooManyRequests, metav1.StatusReasonMethodNotAllowed, metav1.StatusReasonNotAcceptable:
		return true
	}
	return false
}

// free reports whether an object has no Go type.
func free(obj runtime.Object) bool {
	_, ok := obj.(*unstructured.Unstructured)
	return ok
}

// marks make what stands for the values of one object in one write. Within these, the same member has the same mark as long as it
// has the same value, so that what changed can be told. Another member, object or write has other marks: who may write secrets, and
// read traces, must not learn what secrets hold by writing guesses and comparing.
type marks struct {
	key   *[32]byte // drawn when the server starts
	write int64     // the trace's number
	nth   int       // of the objects that the write stored; what admission sees is the first
}

// marks are those of an object of the write.
func (t *Trace) marks(nth int) marks { return marks{&t.recorder.key, t.number, nth} }

// The kinds of members.
const (
	ofData       = "data"
	ofAnnotation = "annotation"
)

// of is the mark of a member's value.
func (m marks) of(kind, name string, value []byte) string {
	h := hmac.New(sha256.New, m.key[:])
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(m.write)), uint64(m.nth))
	for _, s := range []string{kind, name} {
		b = append(binary.BigEndian.AppendUint64(b, uint64(len(s))), s...)
	}
	h.Write(b)
	h.Write(value)
	return "[redacted " + hex.EncodeToString(h.Sum(nil)[:16]) + "]"
}

// lastApplied is where kubectl apply keeps what it sent, which of a secret is all of it.
const lastApplied = corev1.LastAppliedConfigAnnotation

// redactObject is an object of a secret kind as JSON without its values; of others than Secrets, nothing.
func (m marks) redactObject(info *request.RequestInfo, obj resource.Object) ([]byte, form) {
	s, ok := obj.(*corev1.Secret)
	if !ok {
		return nil, hidden
	}
	return m.redactSecret(info.APIVersion, s)
}

func (m marks) redactSecret(version string, s *corev1.Secret) ([]byte, form) {
	out := *s
	out.TypeMeta = metav1.TypeMeta{APIVersion: version, Kind: "Secret"}
	out.Data, out.StringData = nil, make(map[string]string, len(s.Data)+len(s.StringData))
	for k, v := range s.Data {
		out.StringData[k] = m.of(ofData, k, v)
	}
	for k, v := range s.StringData {
		out.StringData[k] = m.of(ofData, k, []byte(v))
	}
	out.ManagedFields = nil
	out.Annotations = m.redactAnnotations(s.Annotations)
	b, err := json.Marshal(struct {
		*corev1.Secret
		Data any `json:"data,omitempty"`
		Not  any `json:"stringData,omitempty"`
	}{Secret: &out, Data: orNil(out.StringData)})
	if err != nil {
		return nil, hidden
	}
	return b, inJSON
}

func orNil(m map[string]string) any {
	if len(m) == 0 {
		return nil
	}
	return m
}

func (m marks) redactAnnotations(has map[string]string) map[string]string {
	said, ok := has[lastApplied]
	if !ok {
		return has
	}
	out := make(map[string]string, len(has))
	for k, v := range has {
		out[k] = v
	}
	out[lastApplied] = m.of(ofAnnotation, lastApplied, []byte(said))
	return out
}

// redactJSON is the same for an object of a hook, as JSON. What is no Secret, or cannot be read, is not kept at all.
func (m marks) redactJSON(info *request.RequestInfo, b []byte) []byte {
	if info.APIGroup != "" || info.Resource != "secrets" {
		return nil
	}
	var obj map[string]any
	if err := json.Unmarshal(b, &obj); err != nil {
		return nil
	}
	data := map[string]any{}
	for _, member := range []string{"data", "stringData"} {
		values, ok := obj[member].(map[string]any)
		delete(obj, member)
		if !ok {
			continue
		}
		for k, v := range values {
			text, ok := v.(string)
			if member == "data" && ok {
				if raw, err := base64.StdEncoding.DecodeString(text); err == nil {
					text = string(raw)
				}
			}
			data[k] = m.of(ofData, k, []byte(text))
		}
	}
	if len(data) > 0 {
		obj["data"] = data
	}
	if meta, ok := obj["metadata"].(map[string]any); ok {
		delete(meta, "managedFields")
		if notes, ok := meta["annotations"].(map[string]any); ok {
			if said, ok := notes[lastApplied].(string); ok {
				notes[lastApplied] = m.of(ofAnnotation, lastApplied, []byte(said))
			}
		}
	}
	out, err := json.Marshal(obj)
	if err != nil {
		return nil
	}
	return out
}
