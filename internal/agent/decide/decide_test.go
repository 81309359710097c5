// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/golden"
)

// TestScenarios reads testdata/*.txt. A scenario is a pod and what the runtime has, a line
// each, and after "----" what is to be done:
//
//	pod Always init=a sidecar=s run=c,d
//	sandbox 0 ready
//	c running
//	c exited 1 held
//	----
//	start d
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for i, block := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
			given, want, _ := strings.Cut(block+"\n", "\n----\n")
			got := play(t, given)
			out = append(out, given+"\n----\n"+got)
			if diff := cmp.Diff(strings.TrimSpace(want), strings.TrimSpace(got)); diff != "" && !golden.Update() {
				t.Errorf("%s, scenario %d:\n%s\n(-want +got)\n%s", file, i+1, given, diff)
			}
		}
		if golden.Update() {
			if err := os.WriteFile(file, []byte(strings.Join(out, "\n\n")+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func play(t *testing.T, given string) string {
	t.Helper()
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	always := corev1.ContainerRestartPolicyAlways
	in := Input{Pod: &corev1.Pod{}, State: &podstate.Pod{}, Now: epoch, Failed: map[string]string{},
		Started: func(string) bool { return true }}
	held, ahead := map[string]bool{}, map[string]bool{}
	for n, line := range strings.Split(given, "\n") {
		f := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "#"):
		case f[0] == "pod":
			in.Pod.Spec.RestartPolicy = corev1.RestartPolicy(f[1])
			for _, word := range f[2:] {
				key, names, _ := strings.Cut(word, "=")
				for _, name := range strings.Split(names, ",") {
					c := corev1.Container{Name: name, Image: "i"}
					switch key {
					case "init":
						in.Pod.Spec.InitContainers = append(in.Pod.Spec.InitContainers, c)
					case "sidecar":
						c.RestartPolicy = &always
						in.Pod.Spec.InitContainers = append(in.Pod.Spec.InitContainers, c)
					case "run":
						in.Pod.Spec.Containers = append(in.Pod.Spec.Containers, c)
					default:
						t.Fatalf("unknown word %q", word)
					}
				}
			}
		case f[0] == "sandbox":
			attempt, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			s := podstate.Sandbox{ID: "s" + f[1], Attempt: uint32(attempt), Ready: f[2] == "ready", Networked: true, IPs: []string{"10.0.0.1"}}
			in.State.Sandboxes = append([]podstate.Sandbox{s}, in.State.Sandboxes...)
		default:
			c := podstate.Container{ID: fmt.Sprintf("%s-%d", f[0], n), Name: f[0], State: podstate.State(f[1]), SandboxID: in.State.Sandboxes[0].ID}
			c.Note.Hash = podstate.Hash(&corev1.Container{Name: f[0], Image: "i"})
			for _, word := range f[2:] {
				switch word {
				case "held":
					held[c.Name] = true
				case "ahead": // it ended when the clock said an hour more
					ahead[c.Name] = true
				case "changed":
					c.Note.Hash++
				case "liveness", "startup":
					in.Failed[c.ID] = word
				case "unstarted":
					in.Started = func(id string) bool { return id != c.ID }
				default:
					code, err := strconv.Atoi(word)
					if err != nil {
						t.Fatalf("unknown word %q", word)
					}
					c.ExitCode = int32(code)
				}
			}
			in.State.Containers = append([]podstate.Container{c}, in.State.Containers...)
		}
	}
	in.Backoff = func(c *corev1.Container, _ *podstate.Container) (time.Time, time.Duration) {
		if ahead[c.Name] {
			return epoch.Add(time.Hour + 10*time.Second), 10 * time.Second
		}
		if held[c.Name] {
			return epoch.Add(10 * time.Second), 10 * time.Second
		}
		return time.Time{}, 0
	}
	return write(Next(in))
}

func write(a Action) string {
	var out []string
	if a.KillPod {
		out = append(out, "kill pod")
	}
	if a.CreateSandbox {
		out = append(out, fmt.Sprintf("sandbox %d: %s", a.Attempt, a.SandboxReason))
	}
	for _, k := range a.Kill {
		out = append(out, fmt.Sprintf("kill %s: %s", k.Name, k.Message))
	}
	for _, c := range a.Start {
		out = append(out, "start "+c.Name)
	}
	for _, w := range a.Waiting {
		out = append(out, fmt.Sprintf("hold %s for %s", w.Name, w.For))
	}
	if a.Done {
		out = append(out, "done")
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, "\n")
}
