// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package garbagecollector

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/golden"
)

// TestGraph plays testdata/graph.txt: commands, each followed by the answer.
//
//	new                                   an empty graph
//	see NAME [in=NS] [owner=X|X!] [gone=FINALIZER,…|-]    observe; ! blocks the owner's deletion
//	lose NAME                             it is gone
//	absent NAME [in=NS]                   the server says there is no such owner
//	judge NAME
func TestGraph(t *testing.T) {
	data, err := os.ReadFile("testdata/graph.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	g := newGraph()
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "  ") {
			continue
		}
		fmt.Fprintln(&out, line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if line == "new" {
			g = newGraph()
			continue
		}
		fmt.Fprintln(&out, "  "+play(g, strings.Fields(line)))
	}
	if golden.Update() {
		if err := os.WriteFile("testdata/graph.txt", out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if diff := cmp.Diff(string(data), out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func play(g *graph, words []string) string {
	name, namespace := words[1], "default"
	things := &resourceKind{resource: schema.GroupVersionResource{Version: "v1", Resource: "things"}, kind: "Thing"}
	o := &object{resourceKind: things, uid: types.UID(name), name: name, version: "1"}
	for _, w := range words[2:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "in":
			namespace = value
		case "owner":
			owner, block := strings.CutSuffix(value, "!")
			o.owners = append(o.owners, metav1.OwnerReference{APIVersion: "v1", Kind: "Thing", Name: owner, UID: types.UID(owner),
				BlockOwnerDeletion: &block})
		case "gone":
			o.deleting = true
			if value != "-" {
				o.finalizers = strings.Split(value, ",")
			}
		}
	}
	o.namespace = namespace
	switch words[0] {
	case "see":
		wake, lost := g.observe(o)
		said := "wake " + list(wake)
		for _, a := range lost {
			said += fmt.Sprintf(", %s has an owner elsewhere: %s", a.child.name, a.owner)
		}
		return said
	case "lose":
		return "wake " + list(g.remove(o.uid))
	case "absent":
		g.noteAbsent(ownerKey{uid: o.uid, kind: "Thing", namespace: namespace, name: name})
		return "noted"
	}
	v := g.judge(o.uid, nil)
	switch {
	case len(v.ask) > 0:
		var names []string
		for _, k := range v.ask {
			names = append(names, k.namespace+"/"+k.name)
		}
		return "ask " + strings.Join(names, " ")
	case v.letGo:
		var names []types.UID
		for _, c := range v.release {
			names = append(names, c.uid)
		}
		return "orphan " + list(names)
	case v.finish:
		return "finish"
	case len(v.wake) > 0:
		return "wait for " + list(v.wake)
	case v.trim:
		var names []types.UID
		for _, ref := range v.keep {
			names = append(names, ref.UID)
		}
		return "keep only " + list(names)
	case v.policy != "":
		if v.unblock {
			return fmt.Sprintf("unblock, delete %s", v.policy)
		}
		return fmt.Sprintf("delete %s", v.policy)
	}
	return "stay"
}

func list(uids []types.UID) string {
	if len(uids) == 0 {
		return "nobody"
	}
	slices.Sort(uids)
	var names []string
	for _, u := range slices.Compact(uids) {
		names = append(names, string(u))
	}
	return strings.Join(names, " ")
}
