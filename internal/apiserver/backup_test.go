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
	"strings"
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

// TestBackupOfThePast backs up an older state of the store. The server refuses revisions that its history does not have.
func TestBackupOfThePast(t *testing.T) {
	dir := t.TempDir()
	engine, err := local.Open(filepath.Join(dir, "store"), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := store.New(engine)
	defer s.Close()
	var revisions []int64
	for i := range 4 {
		r, err := s.Update(t.Context(), "/registry/a", store.Any, fmt.Append(nil, i), 0)
		if err != nil {
			t.Fatal(err)
		}
		revisions = append(revisions, r.Revision)
	}
	if err := s.Compact(t.Context(), revisions[1]); err != nil {
		t.Fatal(err)
	}
	get := func(query string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		backUp(s)(w, httptest.NewRequest(http.MethodGet, backupPath+query, nil))
		return w
	}
	w := get(fmt.Sprint("?revision=", revisions[2]))
	to := filepath.Join(dir, "restored")
	if _, err := local.Restore(t.Context(), w.Body, to, 10, local.Options{}); err != nil || w.Code != http.StatusOK {
		t.Fatal(w.Code, err)
	}
	if c, err := local.ReadContent(t.Context(), to, local.Options{}); err != nil || len(c.Records) != 1 || string(c.Records[0].Value) != "2" {
		t.Errorf("%+v %v", c, err)
	}
	for query, want := range map[string]struct {
		code int
		says string
	}{
		fmt.Sprint("?revision=", revisions[0]):   {http.StatusGone, fmt.Sprint("the history begins at revision ", revisions[1])},
		fmt.Sprint("?revision=", revisions[3]+1): {http.StatusBadRequest, fmt.Sprint("the store is at revision ", revisions[3])},
		"?at=2001-01-01T00:00:00Z":               {http.StatusGone, "2001"},
		"?at=2101-01-01T00:00:00Z":               {http.StatusBadRequest, "2101"},
		"?at=yesterday":                          {http.StatusBadRequest, "yesterday"},
		"?revision=x":                            {http.StatusBadRequest, "x"},
		"?revision=-1":                           {http.StatusBadRequest, "-1"},
		"?revision=5&at=2001-01-01T00:00:00Z":    {http.StatusBadRequest, "exclude"},
	} {
		if w := get(query); w.Code != want.code || !strings.Contains(w.Body.String(), want.says) {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
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
