// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local"
	"github.com/mortise-dev/mortise/store/memory"
)

// TestBackup backs up a store that is being written, and restores what it has at one revision.
func TestBackup(t *testing.T) {
	dir := t.TempDir()
	engine, err := local.Open(filepath.Join(dir, "store"), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := store.New(engine)
	defer s.Close()
	pair := func(n int) []store.Op { // of one revision
		value := fmt.Append(nil, n)
		return []store.Op{{Key: "/registry/a", Value: value, Expect: store.Any}, {Key: "/registry/b", Value: value, Expect: store.Any}}
	}
	commit := func(n int) {
		if _, _, err := s.Commit(t.Context(), pair(n)...); err != nil {
			t.Error(err)
		}
	}
	commit(0)
	web := httptest.NewServer(backUp(s))
	defer web.Close()
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() {
		for n := 1; ctx.Err() == nil; n++ {
			commit(n)
		}
	})
	defer writing.Wait()
	defer stop()
	for i := range 3 {
		response, err := web.Client().Get(web.URL)
		if err != nil {
			t.Fatal(err)
		}
		backup, err := io.ReadAll(response.Body)
		response.Body.Close()
		revision, other := strconv.ParseInt(response.Trailer.Get(backupRevision), 10, 64)
		if err != nil || other != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s %v %v", response.Status, err, other)
		}
		to := filepath.Join(dir, fmt.Sprint("restored", i))
		if got, err := local.Restore(t.Context(), bytes.NewReader(backup), to, 10, local.Options{}); err != nil || got != revision+10 {
			t.Fatalf("restored at %d, the backup is of %d: %v", got, revision, err)
		}
		restored, err := local.Open(to, local.Options{})
		if err != nil {
			t.Fatal(err)
		}
		page, err := restored.Range(t.Context(), store.Range{Prefix: "/registry/"})
		if err != nil || len(page.Records) != 2 || !bytes.Equal(page.Records[0].Value, page.Records[1].Value) {
			t.Errorf("restored %v: %v", page.Records, err)
		}
		if err := restored.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestBackupFails: a store that has no backups says so, and a backup that fails midway ends without its end.
func TestBackupFails(t *testing.T) {
	inMemory := store.New(memory.Open(memory.Options{}))
	defer inMemory.Close()
	if w := serveBackup(inMemory, http.MethodGet); w.Code != http.StatusNotImplemented {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := serveBackup(store.New(unbacked{inMemory.Engine(), 0}), http.MethodPost); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := serveBackup(store.New(unbacked{inMemory.Engine(), 0}), http.MethodGet); w.Code != http.StatusInternalServerError {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	web := httptest.NewServer(backUp(store.New(unbacked{inMemory.Engine(), 100_000})))
	defer web.Close()
	response, err := web.Client().Get(web.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if n, err := io.Copy(io.Discard, response.Body); !errors.Is(err, io.ErrUnexpectedEOF) || response.Trailer.Get(backupRevision) != "" {
		t.Errorf("%d bytes, %v, %v", n, err, response.Trailer)
	}
}

func serveBackup(s *store.Store, method string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	backUp(s)(w, httptest.NewRequest(method, backupPath, nil))
	return w
}

// unbacked is an engine whose backups fail after some bytes.
type unbacked struct {
	store.Engine
	after int
}

func (f unbacked) Backup(_ context.Context, w io.Writer) (int64, error) {
	if f.after > 0 {
		_, _ = w.Write(make([]byte, f.after))
	}
	return 0, errors.New("the disk is gone")
}
