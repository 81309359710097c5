// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pluginbench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/mortise-dev/mortise/extension"
)

// The scripts that take the place of a provider's program, $0.real: it does not answer, or only the first half of its answer arrives.
const (
	neverAnswers = `exec sleep 3600`
	answersHalf  = `"$0.real" "$@" | head -c 40`
)

// late is the check of a provider that does not answer: kubelet gives it up after a minute, and pulls without it.
func (d *providerBench) late(ctx context.Context) finding {
	ctx, cancel := context.WithTimeout(ctx, givenUp)
	defer cancel()
	said, err := d.faulty(ctx, neverAnswers)
	if err != nil {
		return fail("%v", err)
	}
	if ctx.Err() == nil {
		return warn("a provider that does not answer was not waited for: %s", said)
	}
	return ok("kubelet gives it up after a minute, and pulls the image without it").kubeletSays(
		"error execing credential provider plugin: context deadline exceeded")
}

// half is the check of a provider half of whose answer arrives.
func (d *providerBench) half(ctx context.Context) finding {
	said, err := d.faulty(ctx, answersHalf)
	switch {
	case err != nil:
		return fail("%v", err)
	case said == "":
		return warn("half of its answer is an answer")
	}
	return ok("kubelet pulls the image without it").kubeletSays(said)
}

// faulty asks the providers that were asked before, each with a script in the place of its program, and returns the event.
func (d *providerBench) faulty(ctx context.Context, script string) (said string, err error) {
	dir, err := os.MkdirTemp(d.Dir, "faulty-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	programs, err := os.ReadDir(d.Provider.BinDir)
	if err != nil {
		return "", err
	}
	there, err := filepath.Abs(d.Provider.BinDir)
	if err != nil {
		return "", err
	}
	asked := map[string]bool{}
	for _, e := range d.ledger.Snapshot() {
		asked[e.Name] = e.Point == extension.ImageCredentials && e.Calls > 0
	}
	for _, p := range programs {
		name := filepath.Join(dir, p.Name())
		if asked[p.Name()] {
			if err := os.WriteFile(name, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
				return "", err
			}
			name += ".real"
		}
		if err := os.Symlink(filepath.Join(there, p.Name()), name); err != nil {
			return "", err
		}
	}
	own := d.Provider.BinDir
	d.Provider.BinDir = dir
	err = d.open()
	d.Provider.BinDir = own
	if err != nil {
		return "", fmt.Errorf("open the providers with a faulty one: %w", err)
	}
	_, err = d.providers.Lookup(ctx, d.pod, d.Provider.Image)
	return strings.TrimSpace(d.event()), err
}
