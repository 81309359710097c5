// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mortise-dev/mortise/internal/machine/images"
)

// need is a program and the Debian package that contains it.
type need struct {
	name     string
	pkg      string
	present  func() bool
	optional bool // a node can do without it
}

// needs returns the programs that a node with containers needs.
func needs() []need {
	return []need{
		{name: "containerd", pkg: "containerd", present: program("containerd", "ctr")},
		{name: "runc", pkg: "runc", present: program("runc")},
		{name: "CNI plug-ins", pkg: "containernetworking-plugins", present: func() bool { return cniBinDir() != "" }},
		{name: "iptables", pkg: "iptables", present: program("iptables")},
		{name: "nft", pkg: "nftables", present: program("nft"), optional: true}, // without it, iptables writes the rules
		{name: "a static busybox", pkg: "busybox-static", present: func() bool { return images.Usable() == nil }},
	}
}

func program(names ...string) func() bool {
	return func() bool {
		for _, name := range names {
			if lookPath(name) == "" {
				return false
			}
		}
		return true
	}
}

// lookPath finds a program in the directories of root's programs, whatever PATH contains.
func lookPath(name string) string {
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		p := filepath.Join(dir, name)
		if fi, err := os.Stat(p); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return p
		}
	}
	return ""
}

// cniBinDir returns the directory of the CNI programs: Debian's or upstream's; "" if neither exists.
func cniBinDir() string {
	for _, dir := range []string{"/usr/lib/cni", "/opt/cni/bin"} {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
			return dir
		}
	}
	return ""
}

// install installs the packages of missing programs, and nothing else.
func install(ctx context.Context, o Options) error {
	missing, err := lacking(needs(), !o.NoInstall, lookPath("apt-get") != "")
	if err != nil || len(missing) == 0 {
		return err
	}
	pkgs := make([]string, len(missing))
	for i, n := range missing {
		pkgs[i] = n.pkg
	}
	err = step(o.Progress, "installing "+strings.Join(pkgs, " "), func() error {
		args := append([]string{"install", "-y", "--no-install-recommends"}, pkgs...)
		if aptGet(ctx, args...) == nil {
			return nil
		}
		// The usual reason on a fresh machine is that there are no package lists yet.
		if err := aptGet(ctx, "update"); err != nil {
			return err
		}
		return aptGet(ctx, args...)
	})
	if err != nil && !slices.ContainsFunc(missing, need.required) {
		if o.Progress != nil {
			fmt.Fprintf(o.Progress, "mortise: continuing without %s: %v\n", names(missing), err)
		}
		return nil
	}
	return err
}

// lacking returns the needs to install. It returns an error if a required program is missing and installing is not allowed, or there is no
// apt-get.
func lacking(all []need, allowed, apt bool) ([]need, error) {
	var missing []need
	for _, n := range all {
		if !n.present() && (n.required() || allowed && apt) {
			missing = append(missing, n)
		}
	}
	switch {
	case len(missing) == 0, allowed && apt:
		return missing, nil
	case !allowed:
		return nil, fmt.Errorf("prepare machine: not installed: %s", names(missing))
	}
	return nil, fmt.Errorf("prepare machine: not installed: %s; there is no apt-get: install them and try again", names(missing))
}

func (n need) required() bool { return !n.optional }

func names(all []need) string {
	out := make([]string, len(all))
	for i, n := range all {
		out[i] = n.name
	}
	return strings.Join(out, ", ")
}

func aptGet(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, lookPath("apt-get"), append([]string{"-q", "-o", "DPkg::Lock::Timeout=120"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, lastLine(out))
	}
	return nil
}

// lastLine returns the last line that is not empty, where programs print their reason.
func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
