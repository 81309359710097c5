// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/mortise-dev/mortise/internal/cli/manual"
	"github.com/mortise-dev/mortise/internal/durable"
	"github.com/mortise-dev/mortise/internal/version"
)

// allFlags are the commands whose --help prints the common flags only.
var allFlags = map[string]bool{"up": true, "node": true}

// pages returns the help of all commands but kubectl, which has its own.
func pages(ctx context.Context, p Program) []manual.Page {
	var out []manual.Page
	for _, v := range verbs() {
		if v.name == "kubectl" {
			continue
		}
		out = append(out, page(ctx, p, v, ""))
		for word := range strings.FieldsSeq(v.words) {
			if own, ok := strings.CutPrefix(word, "!"); ok {
				out = append(out, page(ctx, p, v, own))
			}
		}
	}
	return out
}

// page asks a command for its help. Word is a word of the command, or empty.
func page(ctx context.Context, p Program, v verb, word string) manual.Page {
	var help bytes.Buffer
	p.In, p.Out, p.Err = strings.NewReader(""), &help, io.Discard
	args, name := []string{"--help"}, v.name
	switch {
	case word != "":
		args, name = []string{word, "--help"}, v.name+" "+word
	case allFlags[v.name]:
		args = []string{"--help=all"}
	}
	v.run(ctx, p, args)
	out := manual.Parse(name, v.about, help.String())
	if word != "" && len(out.Text) > 0 {
		out.About = summary(out.Text[0])
	}
	return out
}

// summary returns the first sentence of a text, up to a colon, as a line about a command.
func summary(text string) string {
	sentence, _, _ := strings.Cut(text, ". ")
	sentence, _, _ = strings.Cut(strings.TrimSuffix(sentence, "."), ": ")
	return strings.ToLower(sentence[:1]) + sentence[1:]
}

// overview is the page of the program.
func overview(all []manual.Page) manual.Page {
	o := manual.Page{
		About: "Kubernetes-compatible control plane and node in one binary", Synopsis: []string{"mortise COMMAND [ARGS...]"},
		Text: []string{"Mortise serves the API of Kubernetes " + version.Kubernetes + " and runs pods: mortise up starts a cluster, mortise kubectl " +
			"is kubectl. The other commands have a page each, and mortise docs shows the guides."},
	}
	for _, p := range all {
		if !strings.Contains(p.Name, " ") {
			o.Text = append(o.Text, "mortise "+p.Name+": "+p.About+".")
		}
	}
	return o
}

// writeManual writes the manual's pages into a directory.
func writeManual(ctx context.Context, p Program, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // everybody may read them
		return fmt.Errorf("make directory of manual pages: %w", err)
	}
	all := pages(ctx, p)
	first := overview(all)
	for i, page := range append([]manual.Page{first}, all...) {
		others := []manual.Page{first}
		if i == 0 {
			others = all
		}
		var b bytes.Buffer
		if err := page.WriteRoff(&b, version.Mortise, others); err != nil {
			return err
		}
		if err := durable.Write(filepath.Join(dir, page.File()), 0o644, b.Bytes()); err != nil {
			return fmt.Errorf("write manual page: %w", err)
		}
	}
	return nil
}
