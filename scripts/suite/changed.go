// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
)

// changed returns what the change is compared with, and the paths that it touches. The change of a branch begins where the branch left
// main, that of main itself at the commit before. Without a commit to compare with, there is no change.
func changed(ctx context.Context) (base string, paths []string) {
	head, err := git(ctx, "rev-parse", "HEAD")
	if err != nil {
		return "", nil
	}
	for _, upstream := range []string{"origin/main", "main"} {
		if at, err := git(ctx, "merge-base", upstream, "HEAD"); err == nil && at != head {
			base = at
			break
		}
	}
	if base == "" {
		if base, err = git(ctx, "rev-parse", "--verify", "--quiet", "HEAD^1"); err != nil {
			return "", nil
		}
	}
	out, err := git(ctx, "diff", "--name-only", base, "HEAD")
	if err != nil {
		return "", nil
	}
	return base, strings.Fields(out)
}

func git(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", args...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// others are the trees that are modules of their own, or hold no packages.
var others = regexp.MustCompile(
	`^(test/(aggregated|cloud|csi|csisanity|dex|etcd|helm|ingress|kubescheduler|opa|persistentvolume|podautoscaler|resourcemanagers|` +
		`robustness|scheduling)|tools|docs|examples)(/|$)|(^|/)testdata(/|$)`)

// packages are the folders of the root module with Go files among the paths, as patterns of the go command. What is in a package's
// testdata belongs to the package.
func packages(paths []string) []string {
	var out []string
	for _, p := range paths {
		dir := path.Dir(p)
		if before, _, in := strings.Cut(dir+"/", "/testdata/"); in {
			dir = before
		} else if !strings.HasSuffix(p, ".go") {
			continue
		}
		if others.MatchString(dir) || slices.Contains(out, "./"+dir) || len(goFiles(dir)) == 0 {
			continue
		}
		out = append(out, "./"+dir)
	}
	slices.Sort(out)
	return out
}

// goFiles are a folder's files of Go.
func goFiles(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // the change has removed it
	}
	var out []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".go") {
			out = append(out, path.Join(dir, e.Name()))
		}
	}
	return out
}

var fuzzTarget = regexp.MustCompile(`(?m)^func (Fuzz\w*)\(`)

// targets are the fuzz targets of packages, each as package and name.
func targets(packages []string) [][2]string {
	var out [][2]string
	for _, p := range packages {
		for _, f := range goFiles(p) {
			text, err := os.ReadFile(f)
			if err != nil || !strings.HasSuffix(f, "_test.go") {
				continue
			}
			for _, m := range fuzzTarget.FindAllSubmatch(text, -1) {
				out = append(out, [2]string{p, string(m[1])})
			}
		}
	}
	return out
}
