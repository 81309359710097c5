// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/store"
)

// backupPath serves a backup of the store to users with the right to get this path: to administrators, for it holds all objects, Secrets
// among them. It is not below /debug/, whose paths others may get to profile the server.
const backupPath = "/store/backup"

// backupRevision is the trailer of a backup's response that tells the revision of the store that the backup has.
const backupRevision = "Mortise-Backup-Revision"

// backUp writes a backup of the store at one revision, while the store is in use. A client learns from a connection that is cut that the
// backup is not whole.
func backUp(s *store.Store) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			status.Write(w, r, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "store/backup"}, r.Method))
			return
		}
		if _, ok := store.Ability[store.Backuper](s.Engine()); !ok {
			status.Write(w, r, status.Route(http.StatusNotImplemented, "this server's store is kept elsewhere, or in memory alone, and has no backups"))
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Trailer", backupRevision)
		begun := &begins{Writer: w}
		revision, err := s.Backup(r.Context(), begun)
		switch {
		case err == nil:
			w.Header().Set(backupRevision, strconv.FormatInt(revision, 10))
		case begun.written:
			panic(http.ErrAbortHandler)
		case errors.Is(err, store.ErrClosed):
			status.Write(w, r, apierrors.NewServiceUnavailable("the server is shutting down"))
		default:
			w.Header().Del("Trailer")
			status.Write(w, r, apierrors.NewInternalError(fmt.Errorf("back up the store: %w", err)))
		}
	}
}

// begins is a writer that knows whether something was written.
type begins struct {
	io.Writer
	written bool
}

func (b *begins) Write(p []byte) (int, error) {
	b.written = true
	return b.Writer.Write(p)
}
