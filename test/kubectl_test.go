// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/mortise-dev/mortise/internal/golden"
)

var (
	against = flag.String("against", "", "a kubeconfig: hold the sessions with that server instead, one that knows nothing of them")
)

// TestKubectl holds the sessions of testdata/kubectl: what a person types into a shell, and what kubectl then prints.
//
// A session is a txtar archive. Its first part is the dialogue: a line that begins with "$ " is given to bash, where
// kubectl is `mortise kubectl`; the lines up to the next such line, or to one that begins with "#", are what came of it on
// both streams, with the exit code at the end if it is not 0. The other parts are files in the folder that the commands
// run in. A line "#up FLAGS" starts the server with more flags. What is different each time (times, UIDs, addresses) is
// written in capitals. Each session has a server of its own, and a namespace of the session's name.
//
// Sessions were compared with kube-apiserver 1.37.1 where no controllers are needed; -against does that.
func TestKubectl(t *testing.T) {
	files, err := filepath.Glob("testdata/kubectl/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no sessions: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			archive := txtar.Parse(data)
			s := open(t, name, archive)
			got := s.hold(string(archive.Comment))
			if diff := cmp.Diff(strings.Split(string(archive.Comment), "\n"), strings.Split(got, "\n")); diff != "" && !golden.Update() {
				t.Errorf("session %s (-want +got):\n%s", name, diff)
			}
			archive.Comment = []byte(got)
			if now := txtar.Format(archive); golden.Update() && *against == "" && !bytes.Equal(now, data) {
				if err := os.WriteFile(file, now, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// session is a shell with a server.
type session struct {
	t    *testing.T
	dir  string
	home string
}

// open starts a session's server, writes its files and makes its namespace.
func open(t *testing.T, name string, archive *txtar.Archive) *session {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, dir: t.TempDir(), home: t.TempDir()}
	for _, f := range archive.Files {
		to := filepath.Join(s.dir, filepath.FromSlash(f.Name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, f.Data, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	objects, err := filepath.Abs("testdata/kubectl/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := *against
	if kubeconfig == "" {
		var flags []string
		for _, line := range strings.Split(string(archive.Comment), "\n") {
			if rest, ok := strings.CutPrefix(line, "#up "); ok {
				flags = strings.Fields(rest)
			}
		}
		kubeconfig = up(t, t.TempDir(), append([]string{"--node", "simulated"}, flags...)...).kubeconfig
	}
	config, err := os.ReadFile(kubeconfig)
	kubectl := fmt.Sprintf("#!/bin/sh\nexec %s kubectl \"$@\"\n", path)
	if err := errors.Join(err,
		os.Mkdir(filepath.Join(s.home, "bin"), 0o755),
		os.WriteFile(filepath.Join(s.home, "bin", "kubectl"), []byte(kubectl), 0o755),
		os.WriteFile(filepath.Join(s.home, "kubeconfig"), config, 0o600),
		os.Symlink(objects, filepath.Join(s.dir, "objects.yaml")),
	); err != nil {
		t.Fatal(err)
	}
	s.say("kubectl create namespace " + name + "; kubectl config set-context --current --namespace=" + name)
	s.say("kubectl create serviceaccount default") // if no controller was faster
	return s
}

// hold goes through a dialogue and returns it with what was said this time.
func (s *session) hold(dialogue string) string {
	var out strings.Builder
	for _, line := range strings.Split(dialogue, "\n") {
		switch {
		case strings.HasPrefix(line, "#"):
			fmt.Fprintln(&out, line)
		case strings.HasPrefix(line, "$ "):
			fmt.Fprintln(&out, line)
			out.WriteString(s.say(line[2:]))
		}
	}
	return out.String()
}

// say gives bash a command and returns what came of it.
func (s *session) say(command string) string {
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "bash", "-c", command)
	c.Dir = s.dir
	c.WaitDelay = time.Second
	c.Env = []string{"HOME=" + s.home, "KUBECONFIG=" + filepath.Join(s.home, "kubeconfig"),
		"PATH=" + filepath.Join(s.home, "bin") + ":/usr/bin:/bin", "TZ=UTC", "LC_ALL=C"}
	out, err := c.CombinedOutput()
	text := s.settle(string(out))
	if err != nil {
		code := c.ProcessState.ExitCode()
		if ctx.Err() != nil {
			text += "(no end after two minutes)\n"
		}
		text += fmt.Sprintf("[exit %d]\n", code)
	}
	return text
}

// changes are what a session says differently each time, and how it is written.
var changes = []struct {
	what *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`X509SHA256=[0-9a-f]{64}`), "X509SHA256=HASH"},
	{regexp.MustCompile(`20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| \+0000( UTC)?|\+00:00)`), "TIME"},
	{regexp.MustCompile(`^[WIE]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ `), "KLOG "},
	{regexp.MustCompile(`[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d \+0000`), "TIME"},
	{regexp.MustCompile(`(?i)(resource ?version\\?"?[:=]\s*\\?"?)\d+`), "${1}RV"},
	{regexp.MustCompile(`127\.0\.0\.1:\d{4,5}`), "SERVER"},
	{regexp.MustCompile(`10\.244\.\d+\.\d+`), "POD-IP"},
	{regexp.MustCompile(`\b10\.96\.(\d{1,2}|1\d\d|2\d\d)\.\d+\b`), "CLUSTER-IP"},
	{regexp.MustCompile(`\b3(00(8[6-9]|9\d)|0[1-9]\d\d|1\d{3}|2[0-7]\d\d)\b`), "NODE-PORT"},
	{regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]{5}\b`), "-RANDOM"},
	{regexp.MustCompile(`(^| |\()(\d+[smhdy]){1,2}( ago|\)|$)`), "${1}AGE$3"},
	{regexp.MustCompile(`^(\d+[smhdy]){1,2} `), "AGE "},
	{regexp.MustCompile(` (\d+[smhdy]){1,2} `), " AGE "},
	{regexp.MustCompile(` (\d+[smhdy]){1,2} `), " AGE "},
	{regexp.MustCompile(`<invalid>`), "AGE"},
	{regexp.MustCompile(`\.[0-9a-f]{16}\b`), ".HEX"},
	{regexp.MustCompile(`v1\.37\.1[+a-z.0-9]*`), "VERSION"},
}

// settle makes an output the same each time: it takes out what differs, and the spaces that align columns by it.
func (s *session) settle(out string) string {
	out = strings.ReplaceAll(out, s.dir, "DIR")
	out = regexp.MustCompile(`/tmp/[\w./-]*`).ReplaceAllString(out, "TMP")
	var b strings.Builder
	for _, line := range strings.SplitAfter(out, "\n") {
		end := ""
		if strings.HasSuffix(line, "\n") {
			line, end = line[:len(line)-1], "\n"
		}
		indent := len(line) - len(strings.TrimLeft(line, " "))
		line = line[:indent] + strings.Join(strings.Fields(line), " ")
		for _, c := range changes {
			line = c.what.ReplaceAllString(line, c.as)
		}
		if strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "#") {
			line = `\` + line
		}
		b.WriteString(line + end)
	}
	if out = b.String(); out != "" && !strings.HasSuffix(out, "\n") {
		out += "(no newline)\n"
	}
	return out
}
