// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package transcripts

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// view turns what was answered into text that is equal for equal behaviour.
type view struct {
	uids, revisions map[string]string
	known           map[string]map[string]string // by object: what was shown last, flat
	shownAt         map[string]map[string]string // by object and resourceVersion: what was shown of it
	now             time.Time
}

func newView() *view {
	return &view{uids: map[string]string{}, revisions: map[string]string{}, known: map[string]map[string]string{},
		shownAt: map[string]map[string]string{}, now: time.Now()}
}

var (
	instants     = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	identities   = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	serviceIPs   = regexp.MustCompile(`\b10\.96\.\d+\.\d+\b`)
	tokenVolumes = regexp.MustCompile(`kube-api-access-[a-z0-9]{5}`)
	oldRevisions = regexp.MustCompile(`(too old resource version: \d+) \(\d+\)`)
	current      = regexp.MustCompile(`(current: |expected: |in record \(|in object meta: )\d+`)
	quotedRev    = regexp.MustCompile(`(\\?"resourceVersion\\?": ?\\?")\d+`)
	age          = regexp.MustCompile(`^(\d+(ms|s|m|h|d|y))+$`)
	nodePort     = regexp.MustCompile(`(\d+):3\d{4}/`)
)

// line masks a piece of text.
func (v *view) line(s string) string {
	s = instants.ReplaceAllStringFunc(s, func(m string) string {
		t, err := time.Parse(time.RFC3339Nano, m)
		if err == nil && t.Sub(v.now).Abs() < 48*time.Hour {
			return "<time>"
		}
		return m
	})
	s = identities.ReplaceAllStringFunc(s, func(m string) string {
		if strings.HasPrefix(m, "00000000-") {
			return m
		}
		return number(v.uids, m, "uid")
	})
	s = serviceIPs.ReplaceAllString(s, "<ip>")
	s = tokenVolumes.ReplaceAllString(s, "kube-api-access-<5>")
	s = oldRevisions.ReplaceAllString(s, "$1 (<rv>)")
	s = nodePort.ReplaceAllString(s, "$1:<port>/")
	s = quotedRev.ReplaceAllString(s, "$1<rv>")
	return current.ReplaceAllString(s, "$1<rv>")
}

func number(seen map[string]string, s, prefix string) string {
	if seen[s] == "" {
		seen[s] = fmt.Sprintf("%s%d", prefix, len(seen)+1)
	}
	return seen[s]
}

// mask is a value with all that varies taken out; list is true for the metadata of lists and bookmarks.
func (v *view) mask(x any, key string, list bool) any {
	switch x := x.(type) {
	case map[string]any:
		out := make(map[string]any, len(x))
		for _, k := range sorted(x) {
			out[k] = v.maskField(k, x[k], list)
		}
		if g, ok := out["generateName"].(string); ok {
			if n, ok := out["name"].(string); ok && strings.HasPrefix(n, g) && len(n) == len(g)+5 {
				out["name"] = g + "<5>"
			}
		}
		return out
	case []any:
		out := make([]any, len(x))
		for i, y := range x {
			out[i] = v.mask(y, key, list)
		}
		return out
	case string:
		return v.line(x)
	}
	return x
}

func (v *view) maskField(k string, x any, list bool) any {
	s, _ := x.(string)
	switch k {
	case "resourceVersion":
		if s == "" || s == "0" {
			return x
		}
		if list {
			return "<rv>"
		}
		return number(v.revisions, s, "rv")
	case "continue":
		if s != "" {
			return "<continue>"
		}
	case "token":
		if strings.HasPrefix(s, "ey") {
			return "<token>"
		}
	case "nodePort", "healthCheckNodePort":
		if n, ok := x.(float64); ok && n != 0 {
			return "<port>"
		}
	case "managedFields":
		if entries, ok := x.([]any); ok {
			return v.managers(entries)
		}
	}
	return v.mask(x, k, false)
}

// managers shows managedFields as a line for each.
func (v *view) managers(entries []any) any {
	out := map[string]any{}
	for i, e := range entries {
		m, ok := e.(map[string]any)
		if !ok {
			return entries
		}
		who := fmt.Sprintf("%v %v", m["manager"], m["operation"])
		if s := m["subresource"]; s != nil {
			who += fmt.Sprintf(" %v", s)
		}
		if _, twice := out[who]; twice {
			who += fmt.Sprintf(" %d", i)
		}
		out[who] = fmt.Sprintf("%v: %s", m["apiVersion"], fieldSet(m["fieldsV1"]))
	}
	return out
}

func fieldSet(x any) string {
	m, ok := x.(map[string]any)
	if !ok || len(m) == 0 {
		return ""
	}
	parts := make([]string, 0, len(m))
	for _, k := range sorted(m) {
		s := strings.TrimPrefix(k, "f:")
		if below := fieldSet(m[k]); below != "" {
			s += "{" + below + "}"
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, " ")
}

// body shows what was answered.
func (v *view) body(x any) string {
	m, ok := x.(map[string]any)
	if !ok {
		return plain(v.mask(x, "", false))
	}
	kind, _ := m["kind"].(string)
	switch {
	case kind == "Table":
		return v.table(m)
	case strings.HasSuffix(kind, "List") && m["items"] != nil:
		return v.list(m)
	case kind == "Status":
		return v.status(m)
	case field2(m, "metadata", "name") == "":
		return plain(v.mask(m, "", true))
	}
	return v.object(m)
}

// status shows a Status in few lines; what it always holds is left out.
func (v *view) status(m map[string]any) string {
	masked := v.mask(m, "", true).(map[string]any)
	if masked["apiVersion"] == "v1" {
		delete(masked, "apiVersion")
	}
	if meta, _ := masked["metadata"].(map[string]any); meta != nil && len(meta) == 0 {
		delete(masked, "metadata")
	}
	return plain(masked)
}

func field2(m map[string]any, a, b string) string {
	x, _ := field(m, a, b)
	s, _ := x.(string)
	return s
}

func plain(x any) string {
	if s, ok := x.(string); ok {
		return strings.TrimRight(s, "\n") + "\n"
	}
	data, err := yaml.Marshal(x)
	if err != nil {
		return err.Error() + "\n"
	}
	return string(data)
}

// object shows an object whole for the first time, and then what is different.
func (v *view) object(m map[string]any) string {
	masked := v.mask(m, "", false).(map[string]any)
	id := fmt.Sprint(masked["apiVersion"], " ", masked["kind"], " ", field2(masked, "metadata", "namespace"), "/",
		field2(masked, "metadata", "name"))
	now := map[string]string{}
	flatten(masked, "", now)
	name := fmt.Sprint(masked["kind"], " ", field2(masked, "metadata", "name"))
	key := fmt.Sprint(field2(masked, "metadata", "namespace"), "/", field2(masked, "metadata", "name"), " ", field2(masked, "metadata", "uid"))
	revision := field2(masked, "metadata", "resourceVersion")
	at := key + " " + revision + " "
	if masked["kind"] == "PartialObjectMetadata" {
		for _, whole := range v.shownAt {
			if whole["metadata.resourceVersion"] == now["metadata.resourceVersion"] && maps.Equal(metadataOf(whole), metadataOf(now)) {
				return name + " with the metadata of " + revision + "\n"
			}
		}
	}
	old, seen := v.known[id]
	if again := v.shownAt[at+id]; again != nil && maps.Equal(again, now) && !maps.Equal(old, now) {
		v.known[id] = now
		return name + " as at " + revision + "\n"
	}
	v.known[id], v.shownAt[at+id] = now, now
	if !seen {
		return plain(masked)
	}
	var changes []string
	for p, x := range now {
		if was, ok := old[p]; !ok || was != x {
			changes = append(changes, fmt.Sprintf("+ %s: %s", p, x))
		}
	}
	for p, x := range old {
		if _, still := now[p]; !still {
			changes = append(changes, fmt.Sprintf("- %s: %s", p, x))
		}
	}
	if len(changes) == 0 {
		return name + " as before\n"
	}
	sort.Slice(changes, func(i, j int) bool { return changes[i][2:] < changes[j][2:] })
	return name + " as before, but\n" + strings.Join(changes, "\n") + "\n"
}

func metadataOf(flat map[string]string) map[string]string {
	out := map[string]string{}
	for k, x := range flat {
		if strings.HasPrefix(k, "metadata.") {
			out[k] = x
		}
	}
	return out
}

func flatten(x any, path string, out map[string]string) {
	switch x := x.(type) {
	case map[string]any:
		if len(x) == 0 {
			out[path] = "{}"
		}
		for k, y := range x {
			if strings.ContainsAny(k, " .") {
				k = "[" + k + "]"
			}
			p := path + "." + k
			if path == "" {
				p = k
			}
			flatten(y, p, out)
		}
	case []any:
		if len(x) == 0 {
			out[path] = "[]"
		}
		for i, y := range x {
			flatten(y, fmt.Sprintf("%s[%d]", path, i), out)
		}
	default:
		data, err := json.Marshal(x)
		if err != nil {
			data = []byte(err.Error())
		}
		out[path] = strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(string(data))
	}
}

// list shows the metadata of a list, and then its items.
func (v *view) list(m map[string]any) string {
	items, _ := m["items"].([]any)
	var b strings.Builder
	fmt.Fprintf(&b, "%v %v, %d items%s\n", m["apiVersion"], m["kind"], len(items), v.listMeta(m))
	for _, item := range items {
		if o, ok := item.(map[string]any); ok {
			b.WriteString(indent(v.item(m, o)))
		}
	}
	return b.String()
}

// item shows an item; those of typed lists carry no kind and apiVersion and are shown by the list's.
func (v *view) item(list, o map[string]any) string {
	if o["kind"] == nil {
		with := map[string]any{"kind": strings.TrimSuffix(fmt.Sprint(list["kind"]), "List"), "apiVersion": list["apiVersion"]}
		for k, x := range o {
			with[k] = x
		}
		return v.object(with)
	}
	return "(with kind) " + v.object(o)
}

func (v *view) listMeta(m map[string]any) string {
	meta, _ := m["metadata"].(map[string]any)
	masked, _ := v.mask(meta, "", true).(map[string]any)
	var b strings.Builder
	for _, k := range sorted(masked) {
		if k == "resourceVersion" && masked[k] == "<rv>" {
			continue
		}
		fmt.Fprintf(&b, ", %s %v", k, masked[k])
	}
	return b.String()
}

func (v *view) table(m map[string]any) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Table%s\n", v.listMeta(m))
	columns, _ := m["columnDefinitions"].([]any)
	for i, c := range columns {
		d, _ := c.(map[string]any)
		if i > 0 {
			b.WriteString(" | ")
		}
		fmt.Fprintf(&b, "%v %v", d["name"], d["type"])
		if f := d["format"]; f != "" {
			fmt.Fprintf(&b, "/%v", f)
		}
		if p := d["priority"]; p != 0.0 {
			fmt.Fprintf(&b, " %v", p)
		}
	}
	if len(columns) > 0 {
		b.WriteByte('\n')
	}
	rows, _ := m["rows"].([]any)
	for _, r := range rows {
		row, _ := r.(map[string]any)
		cells, _ := row["cells"].([]any)
		var texts []string
		for _, c := range cells {
			s := v.line(fmt.Sprint(c))
			if age.MatchString(s) && s != "0" {
				s = "<age>"
			}
			texts = append(texts, s)
		}
		b.WriteString(strings.Join(texts, " | "))
		if o, ok := row["object"].(map[string]any); ok {
			fmt.Fprintf(&b, "  (%v)", o["kind"])
		}
		if cs, ok := row["conditions"]; ok {
			fmt.Fprintf(&b, "  %v", cs)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// event shows an event of a watch.
func (v *view) event(kind string, object any) string {
	m, ok := object.(map[string]any)
	if !ok {
		return fmt.Sprintf("%s %v\n", kind, object)
	}
	if kind == "BOOKMARK" {
		return "BOOKMARK " + strings.TrimSpace(strings.ReplaceAll(
			plain(dropNulls(v.mask(map[string]any{"kind": m["kind"], "annotations": dig(m, "metadata", "annotations")}, "", true))), "\n", " ")) +
			"\n"
	}
	return kind + " " + v.body(m)
}

func dropNulls(x any) any {
	m, _ := x.(map[string]any)
	for k, y := range m {
		if y == nil {
			delete(m, k)
		}
	}
	return x
}

func dig(m map[string]any, path ...string) any {
	x, _ := field(m, path...)
	return x
}

func indent(s string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n  ") + "\n"
}

func sorted[T any](m map[string]T) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
