// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devhook

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// record is the annotation's value: where a session has pointed an object's webhooks, and what was there before.
type record struct {
	Created bool     `json:"created,omitempty"` // the object was not there before
	Target  string   `json:"target"`            // URL
	CA      string   `json:"ca"`                // digest of the caBundle that the session wrote
	Before  []before `json:"before,omitempty"`
}

// before is the address of a webhook before the redirect, and the CA that it had.
type before struct {
	Webhook string         `json:"webhook,omitempty"` // its name; empty: the conversion webhook
	Nth     int            `json:"nth,omitempty"`     // of that name
	Config  map[string]any `json:"clientConfig"`
}

// nameOf is what a webhook is called in print.
func nameOf(webhook string) string {
	if webhook == "" {
		return "the conversion webhook"
	}
	return webhook
}

// clientConfig is one clientConfig of an object, and the webhook that has it.
type clientConfig struct {
	webhook string
	nth     int
	owner   map[string]any // has it under the key "clientConfig"
}

func (p *clientConfig) config() map[string]any {
	m, _ := p.owner["clientConfig"].(map[string]any)
	return m
}

// clientConfigsOf returns the clientConfigs of an object.
func clientConfigsOf(obj *unstructured.Unstructured) []clientConfig {
	if obj.GetKind() == "CustomResourceDefinition" {
		w, _, _ := unstructured.NestedFieldNoCopy(obj.Object, "spec", "conversion", "webhook")
		if m, ok := w.(map[string]any); ok {
			return []clientConfig{{owner: m}}
		}
		return nil
	}
	webhooks, _, _ := unstructured.NestedFieldNoCopy(obj.Object, "webhooks")
	list, _ := webhooks.([]any)
	var out []clientConfig
	seen := map[string]int{}
	for _, w := range list {
		m, ok := w.(map[string]any)
		if !ok {
			continue
		}
		name, _ := m["name"].(string)
		out = append(out, clientConfig{name, seen[name], m})
		seen[name]++
	}
	return out
}

// aim points obj at the target and returns the record of what was before. held is the record of what was pointed elsewhere already, nil
// if nothing was.
func aim(obj *unstructured.Unstructured, t Target, held *record) (_ *record, lines []string, err error) {
	clientConfigs := clientConfigsOf(obj)
	if len(clientConfigs) == 0 {
		return nil, nil, errors.New("it has no webhook")
	}
	next := &record{Target: t.URL.String(), CA: digest(t.encoded())}
	for i := range clientConfigs {
		p := &clientConfigs[i]
		was := p.config()
		if b := held.find(p); b != nil {
			was = held.undo(b, was)
		}
		b := before{p.webhook, p.nth, was}
		next.Before = append(next.Before, b)
		to := next.url(&b)
		lines = append(lines, fmt.Sprintf("  %s → %s\n", strings.TrimSpace(p.webhook+" "+address(was)), to))
		p.owner["clientConfig"] = map[string]any{"url": to, "caBundle": t.encoded()}
	}
	return next, lines, nil
}

// note writes the record into the annotation of obj.
func (r *record) note(obj *unstructured.Unstructured) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode annotation: %w", err)
	}
	a := obj.GetAnnotations()
	if a == nil {
		a = map[string]string{}
	}
	a[Annotation] = string(b)
	obj.SetAnnotations(a)
	return nil
}

// noted is the record in the annotation of obj; nil: there is none.
func noted(obj *unstructured.Unstructured) (*record, error) {
	text, ok := obj.GetAnnotations()[Annotation]
	if !ok {
		return nil, nil
	}
	r := &record{}
	if err := json.Unmarshal([]byte(text), r); err != nil {
		return nil, fmt.Errorf("read annotation %s: %w", Annotation, err)
	}
	return r, nil
}

func (r *record) find(p *clientConfig) *before {
	if r == nil {
		return nil
	}
	i := slices.IndexFunc(r.Before, func(b before) bool { return b.Webhook == p.webhook && b.Nth == p.nth })
	if i < 0 {
		return nil
	}
	return &r.Before[i]
}

// url is where the session has pointed a webhook.
func (r *record) url(b *before) string {
	u, err := url.Parse(r.Target)
	if err != nil {
		return ""
	}
	return u.JoinPath(pathOf(b.Config)).String()
}

// pointsAt reports whether a clientConfig has the address that the session wrote, and trusts whether it has the session's CA.
func (r *record) pointsAt(b *before, config map[string]any) bool {
	return config["service"] == nil && config["url"] == r.url(b)
}

func (r *record) trusts(config map[string]any) bool {
	bundle, _ := config["caBundle"].(string)
	return digest(bundle) == r.CA
}

// undo is a clientConfig as it is without the session: what the session wrote is what was before, what others have written stays.
func (r *record) undo(b *before, config map[string]any) map[string]any {
	addressed, trusted := config, config
	if r.pointsAt(b, config) {
		addressed = b.Config
	}
	if r.trusts(config) {
		trusted = b.Config
	}
	out := map[string]any{}
	for key, from := range map[string]map[string]any{"url": addressed, "service": addressed, "caBundle": trusted} {
		if v, ok := from[key]; ok {
			out[key] = v
		}
	}
	return out
}

// restore undoes what the session wrote into obj.
func (r *record) restore(obj *unstructured.Unstructured) {
	clientConfigs := clientConfigsOf(obj)
	for i := range clientConfigs {
		if p := &clientConfigs[i]; r.find(p) != nil {
			p.owner["clientConfig"] = r.undo(r.find(p), p.config())
		}
	}
	a := obj.GetAnnotations()
	delete(a, Annotation)
	obj.SetAnnotations(a)
}

// change is a difference between an object and what the session wrote.
type change struct {
	what  string
	owned bool // its writer owns an address or a CA now
}

// changes are the differences between the webhooks of obj and what the session wrote.
func (r *record) changes(obj *unstructured.Unstructured) []change {
	var out []change
	clientConfigs := clientConfigsOf(obj)
	for i := range clientConfigs {
		p := &clientConfigs[i]
		b := r.find(p)
		switch {
		case b == nil:
			out = append(out, change{nameOf(p.webhook) + " added " + address(p.config()), true})
		case !r.pointsAt(b, p.config()):
			out = append(out, change{nameOf(b.Webhook) + " pointed at " + address(p.config()), true})
		case !r.trusts(p.config()):
			out = append(out, change{"caBundle of " + nameOf(b.Webhook) + " replaced", true})
		}
	}
	for i := range r.Before {
		b := &r.Before[i]
		if !slices.ContainsFunc(clientConfigs, func(p clientConfig) bool { return p.webhook == b.Webhook && p.nth == b.Nth }) {
			out = append(out, change{nameOf(b.Webhook) + " removed", false})
		}
	}
	return out
}

// survives reports whether obj has a webhook that was redirected.
func (r *record) survives(obj *unstructured.Unstructured) bool {
	clientConfigs := clientConfigsOf(obj)
	return slices.ContainsFunc(clientConfigs, func(p clientConfig) bool { return r.find(&p) != nil })
}

// describe is what changed in obj, and who wrote it. before are the managed fields of what the session wrote.
func describe(changes []change, obj *unstructured.Unstructured, before []metav1.ManagedFieldsEntry) string {
	var whats []string
	owned := false
	for _, c := range changes {
		whats = append(whats, c.what)
		owned = owned || c.owned
	}
	return strings.Join(whats, ", ") + " by " + writer(obj, before, owned)
}

// writer is the field manager of obj that has changed what a session wrote. It has come to own addresses or CAs since before, or it owns
// them besides the session, or else it is the one that has written obj last. Times have whole seconds, so that they alone do not tell.
func writer(obj *unstructured.Unstructured, before []metav1.ManagedFieldsEntry, owned bool) string {
	var gained, owner, last metav1.ManagedFieldsEntry
	own := false
	for _, e := range obj.GetManagedFields() {
		fields := ownedAddresses(fieldsOf(e))
		if e.Manager == manager {
			own = own || len(fields) > 0
			continue
		}
		if len(fields) > 0 && !e.Time.Before(owner.Time) {
			owner = e
		}
		if gains(fields, e, before) && !e.Time.Before(gained.Time) {
			gained = e
		}
		if !e.Time.Before(last.Time) {
			last = e
		}
	}
	switch {
	case gained.Manager != "":
		return strconv.Quote(gained.Manager)
	case owner.Manager != "":
		return strconv.Quote(owner.Manager)
	case own && owned:
		return "another `mortise webhook dev`"
	case last.Manager != "":
		return strconv.Quote(last.Manager)
	}
	return "an unknown client"
}

// gains reports whether the entry of a manager has fields that its entry of before did not have.
func gains(fields []string, entry metav1.ManagedFieldsEntry, before []metav1.ManagedFieldsEntry) bool {
	var had []string
	for _, b := range before {
		if b.Manager == entry.Manager && b.Operation == entry.Operation && b.Subresource == entry.Subresource {
			had = append(had, ownedAddresses(fieldsOf(b))...)
		}
	}
	return slices.ContainsFunc(fields, func(f string) bool { return !slices.Contains(had, f) })
}

// fieldsOf are the fields of an entry. An entry that cannot be read has none.
func fieldsOf(e metav1.ManagedFieldsEntry) map[string]any {
	var fields map[string]any
	if e.FieldsV1 != nil {
		_ = json.Unmarshal([]byte(e.FieldsV1.GetRawString()), &fields)
	}
	return fields
}

// ownedAddresses are the paths of what a manager owns in clientConfigs.
func ownedAddresses(fields map[string]any) []string {
	var out []string
	for key, value := range fields {
		below, _ := value.(map[string]any)
		if key != "f:clientConfig" {
			for _, path := range ownedAddresses(below) {
				out = append(out, key+"/"+path)
			}
			continue
		}
		for field := range below {
			if field != "." {
				out = append(out, field)
			}
		}
	}
	return out
}

// digest is a short form of a caBundle, which can be large.
func digest(bundle string) string {
	sum := sha256.Sum256([]byte(bundle))
	return hex.EncodeToString(sum[:])
}

// pathOf is the path at which a webhook is called.
func pathOf(config map[string]any) string {
	if s, ok := config["service"].(map[string]any); ok {
		path, _ := s["path"].(string)
		return path
	}
	text, _ := config["url"].(string)
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.Path
}

// address is where a webhook is called, in words.
func address(config map[string]any) string {
	if s, ok := config["service"].(map[string]any); ok {
		return fmt.Sprintf("(service %v/%v%s)", s["namespace"], s["name"], pathOf(config))
	}
	return fmt.Sprintf("(%v)", config["url"])
}
