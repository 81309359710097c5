// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package transcripts

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/internal/golden"
)

var (
	peer = flag.String("peer", "", "a kubeconfig: say the dialogues to that server, and compare")
)

// start starts a server, or takes the peer, and makes what dialogues stand on.
func start(t *testing.T) *server {
	t.Helper()
	var s *server
	if *peer != "" {
		config, err := clientcmd.BuildConfigFromFlags("", *peer)
		if err != nil {
			t.Fatal(err)
		}
		config.QPS = -1
		s = newServer(t, config)
	} else {
		s = newServer(t, embedtest.Start(t, &embed.Server{Node: embed.NodeNone, Controllers: []string{"none"}}).Config())
	}
	for path, body := range map[string]string{
		"/api/v1/namespaces": `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"transcript"}}`,
	} {
		if _, err := s.say(t.Context(), exchange{method: "POST", path: path, body: body}, newView(), map[string]any{}); err != nil {
			t.Fatal(err)
		}
	}
	account := exchange{method: "POST", path: "/api/v1/namespaces/transcript/serviceaccounts", body: `{"metadata":{"name":"default"}}`}
	if _, err := s.say(t.Context(), account, newView(), map[string]any{}); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestKinds says the dialogue of each built-in kind, and wants one for each kind that is kept.
func TestKinds(t *testing.T) {
	s := start(t)
	all, does, seen := s.resources(t), changes(t), map[schema.GroupKind]bool{}
	for _, o := range subjects(t) {
		gvk := schema.FromAPIVersionAndKind(fmt.Sprint(o["apiVersion"]), fmt.Sprint(o["kind"]))
		seen[gvk.GroupKind()] = true
		r := all[gvk]
		if r == nil {
			t.Errorf("%s is not served", gvk)
			continue
		}
		name := schema.GroupResource{Group: gvk.Group, Resource: r.name}.String()
		if *peer != "" && does[name].Noisy {
			t.Logf("%s is not compared with a peer", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			es := kindDialogue(clone(o), r, does[name])
			s.check(t, "kinds/"+name+".txt", fmt.Sprintf("# %s, made from kinds.yaml and changes.yaml.\n\n", name), es)
		})
	}
	for gvk, r := range all {
		if r.kept && !seen[gvk.GroupKind()] {
			t.Errorf("kinds.yaml has no %s", gvk)
		}
	}
}

// TestDialogues says what is written in *.txt.
func TestDialogues(t *testing.T) {
	s := start(t)
	files, err := filepath.Glob("*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(file, ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			intro, es, err := parse(string(data))
			if err != nil {
				t.Fatal(err)
			}
			s.check(t, file, intro, es)
		})
	}
}

// check says a dialogue and compares it with its file, or writes that.
func (s *server) check(t *testing.T, file, intro string, es []exchange) {
	t.Helper()
	got, err := s.dialogue(t.Context(), intro, es)
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, file, got)
}
