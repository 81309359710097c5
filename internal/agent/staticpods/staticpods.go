// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package staticpods finds the pods that a node runs without being asked by an API server: manifests in a directory or a
// file (file.go), and at a URL (url.go).
//
// A source delivers the complete set of its pods at each change, and the first time after the first read, even if there are
// none. It logs a manifest that cannot be read, and leaves the pod of the file's previous content alone: a half-written
// file, or a mistake, ends no pod. When the file is removed, so is its pod.
package staticpods

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// The names of sources, as the pods' annotation has them.
const (
	File = "file"
	HTTP = "http"
)

// largest bounds a manifest.
const largest = 10 << 20

// Options say where to look.
type Options struct {
	Path       string // of a directory or a file; empty: none
	FilePeriod time.Duration
	URL        string // empty: none
	Header     http.Header
	URLPeriod  time.Duration

	// Decode reads a manifest of a source (its path or URL).
	Decode func(data []byte, source string, file bool) ([]*corev1.Pod, error)
	// Set is called with all pods of a source.
	Set func(source string, pods []*corev1.Pod)

	Logger *slog.Logger
	Clock  clock.WithTicker
}

// Sources are the names of the sources that are looked at.
func (o Options) Sources() []string {
	var out []string
	if o.Path != "" {
		out = append(out, File)
	}
	if o.URL != "" {
		out = append(out, HTTP)
	}
	return out
}

// Run looks until ctx is done.
func Run(ctx context.Context, o Options) error {
	group, ctx := errgroup.WithContext(ctx)
	if o.Path != "" {
		group.Go(func() error { return newFiles(o).run(ctx) })
	}
	if o.URL != "" {
		group.Go(func() error { return newPage(o).run(ctx) })
	}
	return group.Wait()
}
