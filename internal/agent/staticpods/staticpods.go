// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package staticpods reads static pods: manifests in a directory or a file (file.go), and at a URL (url.go).
//
// A source delivers the complete set of its pods at each change, and the first time after the first read, even if there are none. It logs
// an invalid manifest, and keeps the pod of the file's previous content: a partially written file, or a mistake, ends no pod. The removal
// of a file removes its pod.
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

// The names of sources, as in the pods' annotation.
const (
	File = "file"
	HTTP = "http"
)

// largest is the maximum size of a manifest.
const largest = 10 << 20

// Options configure the sources.
type Options struct {
	Path       string // of a directory or a file; empty: none
	FilePeriod time.Duration
	URL        string // empty: none
	Header     http.Header
	URLPeriod  time.Duration

	// Decode decodes a manifest of a source (its path or URL).
	Decode func(data []byte, source string, file bool) ([]*corev1.Pod, error)
	// Set is called with all pods of a source.
	Set func(source string, pods []*corev1.Pod)

	Logger *slog.Logger
	Clock  clock.WithTicker
}

// Sources returns the names of the configured sources.
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

// Run reads the sources until ctx is done.
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
