// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"

	ociregistry "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// registry serves images on an address of this machine.
type registry struct {
	address string
	server  *http.Server
	served  chan error
}

// blobs are the layers and configurations, which are never written.
type blobs map[v1.Hash]blob

type blob struct {
	size int64
	open func() (io.ReadCloser, error)
}

func (b blobs) Stat(_ context.Context, _ string, h v1.Hash) (int64, error) {
	found, ok := b[h]
	if !ok {
		return 0, ociregistry.ErrNotFound
	}
	return found.size, nil
}

func (b blobs) Get(_ context.Context, _ string, h v1.Hash) (io.ReadCloser, error) {
	found, ok := b[h]
	if !ok {
		return nil, ociregistry.ErrNotFound
	}
	return found.open()
}

// add adds what an image is made of.
func (b blobs) add(img v1.Image) error {
	config, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	name, err := img.ConfigName()
	if err != nil {
		return err
	}
	b[name] = blob{int64(len(config)), func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(config)), nil }}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			return err
		}
		size, err := l.Size()
		if err != nil {
			return err
		}
		b[digest] = blob{size, l.Compressed}
	}
	return nil
}

// serve serves images under their names, repository:tag, at a free port of an address.
func serve(images map[string]v1.Image, at string) (*registry, error) {
	all := blobs{}
	handler := ociregistry.New(ociregistry.WithBlobHandler(all), ociregistry.Logger(log.New(io.Discard, "", 0)))
	for name, img := range images {
		if err := all.add(img); err != nil {
			return nil, fmt.Errorf("serve image %s: %w", name, err)
		}
		manifest, err := img.RawManifest()
		if err != nil {
			return nil, fmt.Errorf("serve image %s: %w", name, err)
		}
		mediaType, err := img.MediaType()
		if err != nil {
			return nil, fmt.Errorf("serve image %s: %w", name, err)
		}
		repository, tag, _ := strings.Cut(name, ":")
		put := httptest.NewRequest(http.MethodPut, "/v2/"+repository+"/manifests/"+tag, bytes.NewReader(manifest))
		put.Header.Set("Content-Type", string(mediaType))
		answer := httptest.NewRecorder()
		if handler.ServeHTTP(answer, put); answer.Code != http.StatusCreated {
			return nil, fmt.Errorf("serve image %s: %d %s", name, answer.Code, answer.Body)
		}
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(at, "0"))
	if err != nil {
		return nil, fmt.Errorf("serve images: %w", err)
	}
	r := &registry{address: listener.Addr().String(), server: &http.Server{Handler: handler}, served: make(chan error, 1)}
	go func() { r.served <- r.server.Serve(listener) }()
	return r, nil
}

// close ends the registry with all its connections.
func (r *registry) close() error {
	err := r.server.Close()
	if served := <-r.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
