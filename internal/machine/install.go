// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/mortise-dev/mortise/internal/machine/images"
)

// need is a program and the Debian package that brings it.
type need struct {
	name    string
	pkg     string
	present func() bool
}

// needs are what a node with containers cannot do without.
func needs() []need {
	return []need{
		{"containerd", "containerd", program("containerd", "ctr")},
		{"runc", "runc", program("runc")},
		{"CNI plug-ins", "containernetworking-plugins", func() bool { return cniBinDir() != "" }},
		{"iptables", "iptables", program("iptables")},
		{"nft", "nftables", program("nft")},
		{"a static busybox", "busybox-static", func() bool { return images.Usable() == nil }},
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

// lookPath finds a program where root's programs are, whatever PATH says.
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

// cniBinDir is where the CNI programs are: Debian's place or upstream's; empty if in neither.
func cniBinDir() string {
	for _, dir := range []string{"/usr/lib/cni", "/opt/cni/bin"} {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
			return dir
		}
	}
	return ""
}

// install installs the packages of what is missing, and nothing else.
func install(ctx context.Context, o Options) error {
	var names, pkgs []string
	for _, n := range needs() {
		if !n.present() {
			names, pkgs = append(names, n.name), append(pkgs, n.pkg)
		}
	}
	if len(pkgs) == 0 {
		return nil
	}
	missing := strings.Join(names, ", ")
	if o.NoInstall {
		return fmt.Errorf("prepare machine: not installed: %s", missing)
	}
	if lookPath("apt-get") == "" {
		return fmt.Errorf("prepare machine: not installed: %s, and there is no apt-get to install them with; install them and try again", missing)
	}
	return step(o.Progress, "installing "+strings.Join(pkgs, " "), func() error {
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

// lastLine is the last line that says anything, which is where programs put their reason.
func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
