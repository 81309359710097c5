// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// examplePrograms are the programs of the pages.
var examplePrograms = []string{"extensions", "clients", "nodeplugins", "embedded"}

// pages runs the pages of extension points and the tutorials.
type pages struct {
	t       *testing.T
	dir     string
	env     []string
	replace *strings.Replacer // of paths and addresses that pages and examples have
}

// The commands that the pages use. Servers of the pages are one, which has all their flags and runs already. "go run" starts a program that
// was built before, in the background, and ends when the program is ready; a second one of the same arguments finds it running.
const (
	pageMortise = `#!/bin/bash
[ "$1" = up ] && exit
exec %q "$@"
`
	pageKubectl = `#!/bin/bash
[ "$1" = wait ] && set -- "$@" --timeout 5m # of a machine that does much else
exec %q kubectl "$@"
`
	pageGo = `#!/bin/bash
set -eu
dir=%[1]q
case $1 in
build) ln -sf "$dir/programs/$(basename "$4")" "$3"; exit ;;
esac
name=$(basename "$2"); shift 2
case $name in
extensions) set -- --dir "$dir/x" --listen %[2]s ;;
embedded) set -- --dir "$dir/embedded" ;;
esac
arguments=$*; own="$dir/running/$name ${arguments//\//_}"
[ -e "$own" ] && exit
mkfifo "$own"
"$dir/programs/$name" "$@" >"$own" 2>&1 &
echo $! >>"$dir/pids"
exec 3<"$own"
while read -r line <&3; do
  echo "$line" >>"$dir/log"
  case $line in *" Ready "*) cat <&3 >>"$dir/log" 2>&1 & exit ;; esac
done
cat "$dir/log" >&2
exit 1
`
)

// newPages builds the programs and writes what the pages find.
func newPages(t *testing.T) *pages {
	t.Helper()
	dir, err := os.MkdirTemp("", "pages") // a socket's path is to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	p := &pages{t: t, dir: dir, replace: strings.NewReplacer("/tmp/extensions", dir+"/x", "/tmp/embedded", dir+"/embedded",
		"127.0.0.1:9443", address, "bin/mortise", "mortise")}
	p.env = append(os.Environ(), "PATH="+dir+"/bin:"+os.Getenv("PATH"), "HOME="+dir)
	args := []string{"build", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", dir + "/programs/"}
	for _, name := range examplePrograms {
		args = append(args, "../examples/"+name)
	}
	if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
		t.Fatalf("go %v: %v\n%s", args, err, out)
	}
	for name, text := range map[string]string{
		"bin/mortise": fmt.Sprintf(pageMortise, built(t)), "bin/kubectl": fmt.Sprintf(pageKubectl, built(t)),
		"bin/go": fmt.Sprintf(pageGo, dir, address), "running/none": "",
	} {
		writeGuideFile(t, filepath.Join(dir, name), text)
	}
	// The examples, with the directory and the address of this run.
	err = filepath.WalkDir("../examples", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) == ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		writeGuideFile(t, filepath.Join(dir, strings.TrimPrefix(path, "../")), p.replace.Replace(string(text)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.end)
	return p
}

// end ends the programs.
func (p *pages) end() {
	text, _ := os.ReadFile(filepath.Join(p.dir, "pids"))
	for _, line := range strings.Fields(string(text)) {
		if id, err := strconv.Atoi(line); err == nil {
			_ = syscall.Kill(id, syscall.SIGKILL)
		}
	}
	if log, err := os.ReadFile(filepath.Join(p.dir, "log")); err == nil && p.t.Failed() {
		p.t.Logf("the examples said:\n%s", log)
	}
}

// run runs a script.
func (p *pages) run(script, kubeconfig string) ([]byte, error) {
	output, err := os.CreateTemp(p.dir, "output") // a pipe would be open for as long as the programs in the background are
	if err != nil {
		return nil, err
	}
	defer output.Close()
	c := exec.CommandContext(p.t.Context(), "bash", "-eu", "-o", "pipefail", "-c", script)
	c.Dir, c.Env, c.Stdout, c.Stderr = p.dir, append(p.env, "KUBECONFIG="+kubeconfig), output, output
	c.WaitDelay = time.Second
	failed := c.Run()
	text, err := os.ReadFile(output.Name())
	if err == nil {
		err = failed
	}
	return text, err
}

// refusal is the first line of what a command prints that fails.
var refusal = regexp.MustCompile(`^([Ee]rror\b|The .* is invalid)`)

var serverFlags = regexp.MustCompile(`(?m)^(?:\$ )?(?:bin/)?mortise up((?:[^\n#\\]|\\\n)*)`)

// flags returns the flags of all servers that the pages start, each once.
func (p *pages) flags(all []*block) []string {
	var flags []string
	for _, b := range all {
		if b.reason != "" {
			continue
		}
		for _, m := range serverFlags.FindAllStringSubmatch(b.text, -1) {
			words := strings.Fields(strings.ReplaceAll(m[1], "\\\n", " "))
			for i, w := range words {
				next := i + 1
				for next < len(words) && !strings.HasPrefix(words[next], "--") {
					next++
				}
				if !strings.HasPrefix(w, "--") || slices.Contains([]string{"--node", "--nodes", "--data-dir", "--listen"}, w) {
					continue
				}
				flag := strings.Join(append([]string{w}, words[i+1:next]...), "=")
				if other := slices.IndexFunc(flags, func(f string) bool { return strings.HasPrefix(f+"=", w+"=") }); other < 0 {
					flags = append(flags, p.replace.Replace(strings.ReplaceAll(flag, "examples/", p.dir+"/examples/")))
				} else if flags[other] != p.replace.Replace(strings.ReplaceAll(flag, "examples/", p.dir+"/examples/")) {
					p.t.Errorf("%s: %s, and elsewhere %s: the pages share a server", b.guide, flag, flags[other])
				}
			}
		}
	}
	return flags
}

// script is what a page's blocks run. A command with an output that begins with an error has to fail, with this error; "…" in it stands for
// anything.
func (p *pages) script(b *block) string {
	if !strings.Contains("\n"+b.text, "\n$ ") {
		return b.text
	}
	var out strings.Builder
	lines := strings.Split(b.text, "\n")
	for i := 0; i < len(lines); i++ {
		line, prompt := strings.CutPrefix(lines[i], "$ ")
		if !prompt {
			continue
		}
		for strings.HasSuffix(line, "\\") {
			i++
			line += "\n" + lines[i]
		}
		if i+1 == len(lines) || !refusal.MatchString(lines[i+1]) {
			out.WriteString(line + "\n")
			continue
		}
		var want strings.Builder
		for _, part := range strings.Split(lines[i+1], "…") {
			want.WriteString("*'" + strings.ReplaceAll(part, "'", `'\''`) + "'")
		}
		fmt.Fprintf(&out, "if said=$(%s 2>&1); then echo \"did not fail: $said\"; exit 1; fi\n", line)
		fmt.Fprintf(&out, "case $said in %s*) ;; *) echo \"$said\"; exit 1 ;; esac\n", want.String())
	}
	return out.String()
}

// TestPagesRun runs the command blocks of the pages of extension points and of the tutorials, each page from top to bottom, on one server
// with simulated nodes. The server has the flags of all servers of the pages, and calls the examples. A block that cannot run here has the
// reason in a comment before it, as in TestGuidesRun.
func TestPagesRun(t *testing.T) {
	all := guideBlocks(t, "../docs/points/*.md", "../docs/tutorials/*.md")
	p := newPages(t)
	scripts, order := map[string]string{}, []string{}
	for _, b := range all {
		runs := command.MatchString(b.text) && b.language != "yaml" && b.language != "go"
		switch {
		case !runs && b.reason != "":
			t.Errorf("%s: the block has no command, so that it needs no reason", b.first())
		case !runs || b.reason != "":
			keepsPromise(t, b)
		default:
			if scripts[b.guide] == "" {
				order = append(order, b.guide)
			}
			scripts[b.guide] += p.replace.Replace(p.script(b)) + "\n"
		}
	}
	if out, err := p.run("go run ./examples/extensions", ""); err != nil {
		t.Fatalf("start the examples: %v\n%s", err, out)
	}
	server := up(t, filepath.Join(p.dir, "cluster"), append([]string{"--node", "simulated", "--nodes", "2"}, p.flags(all)...)...)
	for _, page := range order {
		t.Run(page, func(t *testing.T) {
			own, err := os.ReadFile(server.kubeconfig)
			if err != nil {
				t.Fatal(err)
			}
			kubeconfig := filepath.Join(p.dir, page+".kubeconfig") // pages add users to it
			writeGuideFile(t, kubeconfig, string(own))
			if out, err := p.run(scripts[page], kubeconfig); err != nil {
				t.Errorf("%v\n%s\n%s", err, scripts[page], out)
			}
		})
	}
	if len(order) < 25 {
		t.Errorf("only %d pages ran", len(order))
	}
}
