// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/docs"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/cli/docsite"
	"github.com/mortise-dev/mortise/internal/version"
)

// runDocs serves the documentation until a signal ends it, or writes it.
func runDocs(ctx context.Context, p Program, args []string) int {
	f := pflag.NewFlagSet("docs", pflag.ContinueOnError)
	f.SetOutput(p.Err)
	f.SortFlags = false
	listen := f.String("listen", "127.0.0.1:0", "HOST:PORT of the web site. Port 0 selects a free port.")
	write := f.String("write", "", "`DIR` to write the web site to as static files, with a search of their own, instead of serving it.")
	man := f.String("man", "", "`DIR` to write the commands' manual pages to, for man(1), instead of serving the web site.")
	f.Usage = func() {
		fmt.Fprintf(f.Output(), `Usage: mortise docs [flags]

Serves the documentation of this version as a web site with a search, and prints its URL: the tutorials, the guides, a page
for each extension point, all commands with their flags, and the decisions. Ctrl-C ends it.

%s`, f.FlagUsages())
	}
	if code, done := parse(p, f, "docs", args); done {
		return code
	}
	if f.NArg() > 0 {
		f.Usage()
		return 2
	}
	var err error
	switch {
	case *man != "":
		err = writeManual(ctx, p, *man)
	case *write != "":
		var site *docsite.Site
		if site, err = documentation(ctx, p); err == nil {
			err = site.Write(*write)
		}
	default:
		err = serveDocs(ctx, p, *listen)
	}
	if err != nil {
		return fail(p, err)
	}
	return 0
}

// documentation makes the web site.
func documentation(ctx context.Context, p Program) (*docsite.Site, error) {
	sources, err := docsite.Sources(docs.Files, "Guides")
	if err != nil {
		return nil, err
	}
	var commands bytes.Buffer
	fmt.Fprintf(&commands, "# Commands and flags\n\nThe commands of Mortise %s (Kubernetes %s).\n\n", version.Mortise, version.Kubernetes)
	for _, page := range pages(ctx, p) {
		if err := page.WriteMarkdown(&commands); err != nil {
			return nil, err
		}
	}
	points := "# Extension points\n\nThe places where a server or a node of this version calls out. `mortise extensions` lists what is there.\n\n" +
		"| Point | Way | Contract | Configured by |\n|---|---|---|---|\n"
	cell := strings.NewReplacer("|", `\|`, "<", "&lt;")
	for _, d := range extension.Points() {
		points += fmt.Sprintf("| [%s](points/%s.md) | %s | %s | %s |\n",
			d.Title, d.Point, cell.Replace(fmt.Sprint(d.Way)), cell.Replace(d.Contract), cell.Replace(d.Configured))
	}
	sources = append([]docsite.Source{
		{Path: "commands.md", Section: "Reference", Text: commands.Bytes()},
		{Path: "extension-points.md", Section: "Points", Text: []byte(points)},
	}, sources...)
	return docsite.New(inSections(sources))
}

// inSections orders the pages by their sections, which the navigation shows one after the other; those of other folders come last.
func inSections(sources []docsite.Source) []docsite.Source {
	order := []string{"Tutorials", "Guides", "Points", "Reference"}
	rank := func(s docsite.Source) int {
		if i := slices.Index(order, s.Section); i >= 0 {
			return i
		}
		return len(order)
	}
	slices.SortStableFunc(sources, func(a, b docsite.Source) int { return rank(a) - rank(b) })
	for i := range sources {
		if sources[i].Section == "Points" {
			sources[i].Section = "Extension points"
		}
	}
	return sources
}

// serveDocs serves the documentation until ctx or a signal ends it.
func serveDocs(ctx context.Context, p Program, address string) error {
	site, err := documentation(ctx, p)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen for the documentation: %w", err)
	}
	srv := &http.Server{Handler: site, ReadHeaderTimeout: 10 * time.Second}
	fmt.Fprintf(p.Out, "http://%s/\n", l.Addr())
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	select {
	case <-ctx.Done():
		err := srv.Close()
		<-ended
		return err
	case err := <-ended:
		return errors.Join(fmt.Errorf("serve the documentation: %w", err), srv.Close())
	}
}
