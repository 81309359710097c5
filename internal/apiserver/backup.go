// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

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

// backUp writes a backup of the store at one revision, while the store is in use: the newest one, that of the query's parameter revision,
// or that of its parameter at, which is a time of RFC 3339. A client learns from a connection that is cut that the backup is not whole.
func backUp(s *store.Store) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			status.Write(w, r, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "store/backup"}, r.Method))
			return
		}
		if _, ok := store.Ability[store.Backuper](s.Engine()); !ok {
			status.Write(w, r, status.Route(http.StatusNotImplemented, "the store of this server is in memory alone, and has no backups"))
			return
		}
		state, err := backupState(r.URL.Query())
		if err != nil {
			status.Write(w, r, apierrors.NewBadRequest(err.Error()))
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Trailer", backupRevision)
		begun := &begins{Writer: w}
		revision, err := s.BackupAt(r.Context(), begun, state)
		switch {
		case err == nil:
			w.Header().Set(backupRevision, strconv.FormatInt(revision, 10))
		case begun.written:
			panic(http.ErrAbortHandler)
		case errors.Is(err, store.ErrClosed):
			status.Write(w, r, apierrors.NewServiceUnavailable("the server is shutting down"))
		default:
			w.Header().Del("Trailer")
			refusal := apierrors.NewInternalError(err)
			if errors.Is(err, store.ErrCompacted) {
				refusal = apierrors.NewResourceExpired(err.Error())
			} else if errors.Is(err, store.ErrFuture) {
				refusal = apierrors.NewBadRequest(err.Error())
			}
			status.Write(w, r, refusal)
		}
	}
}

// backupState returns the state that a query asks for.
func backupState(query url.Values) (state store.Point, err error) {
	revision, at := query.Get("revision"), query.Get("at")
	switch {
	case revision != "" && at != "":
		err = errors.New("revision and at exclude each other")
	case revision != "":
		if state.Revision, err = strconv.ParseInt(revision, 10, 64); err == nil && state.Revision <= 0 {
			err = fmt.Errorf("revision %d is not positive", state.Revision)
		}
	case at != "":
		state.Time, err = time.Parse(time.RFC3339, at)
	}
	return state, err
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
