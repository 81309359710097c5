// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// block is one block of a guide.
type block struct {
	guide, language string
	text            string
	reason          string // why it is not run: the comment before it
}

// first returns the first line, by which this test knows a block.
func (b *block) first() string {
	line, _, _ := strings.Cut(b.text, "\n")
	return b.guide + ": " + line
}

// shell returns the commands of a block: all of it, or the lines after the prompts and what they continue on.
func (b *block) shell() string {
	if !strings.Contains("\n"+b.text, "\n$ ") {
		return b.text
	}
	var out []string
	more := false
	for _, line := range strings.Split(b.text, "\n") {
		command, prompt := strings.CutPrefix(line, "$ ")
		if prompt || more {
			out = append(out, command)
			more = strings.HasSuffix(line, "\\")
		}
	}
	return strings.Join(out, "\n")
}

var (
	notRun  = regexp.MustCompile(`^<!-- not run: (.{10,}) -->$`)
	command = regexp.MustCompile(`(?m)^(\$ )?((sudo )?(bin/)?mortise [a-z]|kubectl |make |apt |systemctl |ctr |docker |git |ln |scp |mkdir |T=|export |` +
		`prometheus-adapter |go (run|build|test) |sed |cat > |CNI_COMMAND=)`)
)

// guideBlocks returns the code blocks, fenced and indented, of the files that match a pattern.
func guideBlocks(t *testing.T, patterns ...string) (out []*block) {
	t.Helper()
	var guides []string
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%d files %s, %v", len(found), pattern, err)
		}
		guides = append(guides, found...)
	}
	for _, guide := range guides {
		text, err := os.ReadFile(guide)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(guide)
		var current *block
		fenced, before, reason := false, "", ""
		for line := range strings.Lines(string(text) + "\n\n.\n") {
			line = strings.TrimRight(line, "\n")
			language, fence := strings.CutPrefix(line, "```")
			indented, isIndented := strings.CutPrefix(line, "    ")
			switch {
			case fence && !fenced:
				fenced, current = true, &block{guide: name, language: language, reason: reason}
			case fence:
				fenced, out, current, reason = false, append(out, current), nil, ""
			case fenced:
				current.text += line + "\n"
			case isIndented && (current != nil || before == ""):
				if current == nil {
					current = &block{guide: name, reason: reason}
				}
				current.text += indented + "\n"
			case current != nil:
				out, current, reason = append(out, current), nil, ""
			}
			if m := notRun.FindStringSubmatch(line); m != nil {
				reason = m[1]
			} else if line != "" && current == nil {
				reason = ""
			}
			before = line
		}
	}
	return out
}

// TestGuidesRun runs the command blocks of README and the guides, on one cluster with simulated nodes. A block that cannot run here has the
// reason in a comment before it, "<!-- not run: REASON -->". A server that a block starts has a directory, a port and simulated nodes of
// its own, and ends when it is ready. Files that a block names are those that the guide shows, or are written below.
func TestGuidesRun(t *testing.T) {
	all := guideBlocks(t, "../docs/*.md", "../README.md")
	shown := map[string]string{} // by guide and first line
	for _, b := range all {
		shown[b.first()] = b.text
	}
	// What has to be there before a block runs: files by their paths, and commands.
	prepared := map[string]struct {
		files  map[string]string // their texts, or the blocks of the guide that show them
		before string
		edit   []string // pairs, as of strings.NewReplacer
	}{
		"README.md: export KUBECONFIG=/var/lib/mortise/kubeconfig": {edit: []string{"get pods -w", "get pods", "examples/", "EXAMPLES/"}},
		"audit.md: mortise up --data-dir /var/lib/mortise \\":      {files: map[string]string{"etc/audit-policy.yaml": "audit.md: apiVersion: audit.k8s.io/v1"}},
		"configuration.md: mortise config print --config server.yaml --audit-log-path - > effective.yaml": {
			before: "mortise config print --defaults > server.yaml",
		},
		"encryption.md: mortise up --encryption-provider-config /etc/mortise/encryption.yaml --encryption-provider-config-automatic-reload": {
			files: map[string]string{"etc/encryption.yaml": "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n" +
				"- resources: [secrets]\n  providers: [{aesgcm: {keys: [{name: a, secret: " + strings.Repeat("QUJD", 10) + "QUI=}]}}]\n"},
		},
		"explain.md: $ mortise explain pod/web 'spec.containers[1].image'": {before: `echo '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
			"spec": {"containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]}}' | kubectl apply -f -`},
		"scheduling.md: $ mortise explain pod/web --scheduling": {before: "kubectl wait pod/web --for=condition=PodScheduled"},
		"high-availability.md: $ mortise store backup cluster.backup": {
			edit: []string{"cluster.backup", "cluster.backup --kubeconfig $KUBECONFIG"},
		},
		"kubelet-configuration.md: mortise up --kubelet-config /etc/mortise/kubelet.yaml --kubelet-config-dir /etc/mortise/kubelet.conf.d": {
			before: `mkdir -p /etc/mortise/kubelet.conf.d; printf 'apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n' ` +
				`> /etc/mortise/kubelet.yaml`,
		},
	}
	dir := t.TempDir()
	server := up(t, filepath.Join(dir, "cluster"), "--node", "simulated", "--nodes", "2")
	shim := fmt.Sprintf(`#!/bin/bash
# A server ends as soon as it is ready.
if [ "$1" = up ]; then
  own=$(mktemp -d %[2]s/server.XXXX)
  mkfifo "$own/says"
  "%[1]s" "$@" --data-dir "$own/data" --kubeconfig "$own/kubeconfig" --listen 127.0.0.1:0 --node simulated >"$own/says" 2>&1 &
  while read -r line; do
    echo "$line"
    case $line in *"ready in"*) kill $! && ready=yes ;; esac
  done <"$own/says"
  [ "$ready" = yes ]
  exit
fi
exec "%[1]s" "$@"
`, built(t), dir)
	for name, text := range map[string]string{
		"bin/mortise": shim, "bin/kubectl": fmt.Sprintf("#!/bin/sh\nexec %q kubectl \"$@\"\n", built(t)), "etc/none": "", "log/none": "",
	} {
		writeGuideFile(t, filepath.Join(dir, name), text)
	}
	examples, err := filepath.Abs("../examples")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, b := range all {
		runs := command.MatchString(b.text) && b.language != "yaml" && b.language != "go"
		switch {
		case !runs && b.reason != "" && b.language != "go": // of Go, the reason says why no test has the block
			t.Errorf("%s: the block has no command, so that it needs no reason", b.first())
			continue
		case !runs || b.reason != "":
			keepsPromise(t, b)
			continue
		}
		p := prepared[b.first()]
		delete(prepared, b.first())
		for name, from := range p.files {
			if text, ok := shown[from]; ok {
				from = text
			}
			writeGuideFile(t, filepath.Join(dir, name), from)
		}
		paths := strings.NewReplacer("/etc/mortise", dir+"/etc", "/var/lib/mortise/kubeconfig", server.kubeconfig,
			"/var/lib/mortise", dir+"/data", "/var/log/mortise", dir+"/log", "bin/mortise", "mortise", "EXAMPLES", examples)
		script := paths.Replace(p.before + "\n" + strings.NewReplacer(p.edit...).Replace(b.shell()))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		c := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
		c.Dir = dir
		c.Env = append(os.Environ(), "PATH="+dir+"/bin:"+os.Getenv("PATH"), "HOME="+dir, "KUBECONFIG="+server.kubeconfig)
		c.WaitDelay = time.Second
		out, err := c.CombinedOutput()
		cancel()
		if err != nil {
			t.Errorf("%s: %v\n%s\n%s", b.first(), err, script, out)
		}
		ran++
	}
	for name := range prepared {
		t.Errorf("no block %q", name)
	}
	if ran < 14 {
		t.Errorf("only %d blocks ran", ran)
	}
}

var named = regexp.MustCompile(`\bTest[A-Z]\w*|\b(?:test|internal|embed|scripts)/[\w/]+`)

// keepsPromise checks that the tests and directories which a reason names exist.
func keepsPromise(t *testing.T, b *block) {
	t.Helper()
	for _, name := range named.FindAllString(b.reason, -1) {
		look := exec.CommandContext(t.Context(), "grep", "-rqE", "--include=*_test.go", `^func `+name+`\(`, "..")
		if strings.Contains(name, "/") {
			look = exec.CommandContext(t.Context(), "ls", "../"+name)
		}
		if err := look.Run(); err != nil {
			t.Errorf("%s: the reason names %s, which is not there", b.first(), name)
		}
	}
}

func writeGuideFile(t *testing.T, name, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(name), 0o755)
	if err == nil {
		err = os.WriteFile(name, []byte(text), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}
