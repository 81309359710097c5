// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package robustness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/mortise-dev/mortise/test/programs"
)

// page is the documentation whose steps are tried.
const page = "../../docs/high-availability.md"

// block is a block of the documentation: a file, or commands.
type block struct {
	language string
	where    string // the sentence before it
	text     string
}

var fenced = regexp.MustCompile("(?ms)^([^\n]+)\n\n(?:<!--[^\n]*-->\n)?```(\\w+)\n(.*?)^```$")

// blocks are those of a section.
func blocks(t *testing.T, heading string) []block {
	t.Helper()
	text, err := os.ReadFile(page)
	must(t, err)
	_, section, found := strings.Cut(string(text), heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", page, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var out []block
	for _, m := range fenced.FindAllStringSubmatch(section, -1) {
		out = append(out, block{language: m[2], where: m[1], text: m[3]})
	}
	return out
}

// host is a machine with files of its own, below root.
type host struct {
	*machine
	index    int
	root     string
	services map[string]*process
}

// own returns a text with the paths of this machine.
func (h *host) own(text string) string {
	return regexp.MustCompile(`/(etc|var/lib)/`).ReplaceAllStringFunc(text, func(path string) string { return h.root + path })
}

// write writes a file that the page shows for the first machine, with this one's own name and address.
func (h *host) write(t *testing.T, text string) {
	t.Helper()
	name, rest, _ := strings.Cut(strings.TrimPrefix(text, "# "), "\n")
	if h.index > 0 {
		lines := strings.SplitAfter(rest, "\n")
		for i, line := range lines {
			if !strings.Contains(line, "10.0.0.2") && !strings.HasPrefix(line, "#") { // not a list of all
				line = strings.ReplaceAll(line, "10.0.0.1", h.at)
				lines[i] = strings.Replace(line, "=m1\n", fmt.Sprintf("=m%d\n", h.index+1), 1)
			}
		}
		rest = strings.Join(lines, "")
	}
	file := h.own(name)
	must(t, os.MkdirAll(filepath.Dir(file), 0o700))
	must(t, os.WriteFile(file, []byte(strings.ReplaceAll(h.own(rest), "/usr/bin/etcd", programs.Path("etcd"))), 0o600))
}

// service starts what systemctl would.
func (h *host) service(t *testing.T, name string) {
	t.Helper()
	p := &process{machine: h.machine, log: filepath.Join(h.root, name+".log")}
	if name == "etcd" {
		p.args = []string{"sh", "-c", "set -a; . " + h.own("/etc/default/etcd") + "; exec " +
			programs.Path("etcd") + " --log-level error --logger zap"}
	} else {
		p.args = []string{programs.Path("mortise"), "up", "--config", h.own("/etc/mortise/config.yaml"), "--node", "none"}
	}
	must(t, p.start())
	h.services[name] = p
	t.Cleanup(func() { p.end(syscall.SIGKILL) })
}

// run carries out a command of the page, and returns what it prints.
func (h *host) run(t *testing.T, command string) string {
	t.Helper()
	words := strings.Fields(command)
	switch {
	case words[0] == "systemctl":
		h.service(t, words[len(words)-1])
		return ""
	case words[0] == "scp": // to another machine's files
		to := words[len(words)-1]
		other := filepath.Join(filepath.Dir(h.root), "machine"+to[len("10.0.0."):len("10.0.0.")+1])
		must(t, os.MkdirAll(filepath.Join(other, "etc", "etcd"), 0o700))
		command = "cp -p " + strings.Join(words[2:len(words)-1], " ") + " " + other + to[strings.Index(to, ":")+1:]
	default:
		command = h.own(command)
	}
	if p := h.services["mortise"]; p != nil {
		must(t, p.ready(t.Context()))
	}
	if words[0] == "mortise" && words[1] == "up" {
		p := &process{machine: h.machine, log: filepath.Join(h.root, "first.log"), args: []string{"sh", "-c",
			"exec " + command + " --node none"}}
		must(t, p.start())
		defer p.end(syscall.SIGINT)
		must(t, p.ready(t.Context()))
		return ""
	}
	if words[0] != "mkdir" { // the directory and the mask are those of that command
		command = "cd " + h.own("/etc/etcd") + "; umask 077; " + command
	}
	cmd := h.command("sh", "-ec", command)
	var errors strings.Builder
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", command, err, out, errors.String())
	}
	return string(out)
}

// TestPage follows the documentation of three machines, step by step.
func TestPage(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	must(t, os.Setenv("PATH", programs.Dir()+":"+os.Getenv("PATH")))
	dir := scratch(t)
	var hosts []*host
	for i, m := range build(t, 3).machines {
		h := &host{machine: m, index: i, root: filepath.Join(dir, fmt.Sprint("machine", i+1)), services: map[string]*process{}}
		must(t, os.MkdirAll(filepath.Join(h.root, "var", "lib"), 0o700))
		must(t, os.MkdirAll(filepath.Join(h.root, "etc", "etcd"), 0o700))
		hosts = append(hosts, h)
	}
	token, commands := "", 0
	for _, b := range blocks(t, "### Three machines, step by step") {
		if b.language != "console" {
			for _, h := range hosts {
				h.write(t, b.text)
			}
			continue
		}
		at := hosts
		switch {
		case strings.Contains(b.where, "On the first machine"):
			at = hosts[:1]
		case strings.Contains(b.where, "On the others"):
			at = hosts[1:]
		case !strings.Contains(b.where, "On each machine"):
			t.Fatalf("where are these commands run? %s", b.where)
		}
		for _, h := range at {
			for line := range strings.Lines(b.text) {
				command, is := strings.CutPrefix(strings.TrimSpace(line), "$ ")
				if !is {
					continue
				}
				commands++
				out := h.run(t, strings.ReplaceAll(command, "sha256:1f6d…::abcdef.0123456789abcdef", token))
				switch {
				case strings.HasPrefix(command, "mortise token"):
					token = strings.TrimSpace(out)
				case strings.Contains(command, "get endpointslices") && !strings.Contains(out, "10.0.0.1,10.0.0.2,10.0.0.3"):
					t.Errorf("the endpoints at machine %d: %s", h.index+1, out)
				}
			}
		}
		for _, h := range at { // the services of a block start together
			if p := h.services["mortise"]; p != nil {
				must(t, p.ready(t.Context()))
			}
		}
	}
	t.Logf("%d commands", commands)
	if commands < 19 {
		t.Errorf("%d commands are not all of the page", commands)
	}
	verifyUnit(t, hosts[0])
}

// verifyUnit lets systemd examine the unit, where it is installed.
func verifyUnit(t *testing.T, h *host) {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Log("systemd-analyze is not installed: the unit is not examined")
		return
	}
	out, err := exec.Command("systemd-analyze", "verify", h.own("/etc/systemd/system/etcd.service")).CombinedOutput()
	if err != nil || strings.Contains(string(out), "etcd.service") {
		t.Errorf("systemd-analyze verify: %v %s", err, out)
	}
}
