// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mortise-dev/mortise/internal/durable"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local"
)

// backupPath is where a server serves a backup, backupRevision the trailer with the backup's revision.
const backupPath, backupRevision = "/store/backup", "Mortise-Backup-Revision"

// backup writes a store's newest state, or an older one, and returns its revision.
type backup func(ctx context.Context, w io.Writer, state store.Point) (int64, error)

// backupFrom returns the backup of the store in a data directory or, if a kubeconfig is given or a server uses the directory, of a running
// server. A data directory with a kubeconfig and without a store is that of a server whose store is etcd.
func backupFrom(dataDir, kubeconfig string) backup {
	if kubeconfig != "" {
		return running(kubeconfig)
	}
	return func(ctx context.Context, w io.Writer, state store.Point) (int64, error) {
		revision, err := local.BackupAt(ctx, filepath.Join(dataDir, storeDir), w, state, local.Options{})
		if its := filepath.Join(dataDir, "kubeconfig"); errors.Is(err, fs.ErrNotExist) && exists(its) {
			return running(its)(ctx, w, state)
		}
		if !errors.Is(err, store.ErrLocked) {
			return revision, err
		}
		revision, other := running("")(ctx, w, state)
		if other != nil {
			return 0, fmt.Errorf("%w; the server that uses it cannot be asked either: %w", err, other)
		}
		return revision, nil
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// pointInTime reads the flags that name an older state.
func pointInTime(revision int64, at string) (state store.Point, err error) {
	switch {
	case revision < 0:
		err = fmt.Errorf("--revision %d: %w", revision, store.ErrInvalid)
	case revision > 0 && at != "":
		err = errors.New("--revision and --at exclude each other")
	case at != "":
		if state.Time, err = time.Parse(time.RFC3339, at); err != nil {
			err = fmt.Errorf("--at: want a time such as 2026-11-28T15:04:05Z: %w", err)
		}
	}
	state.Revision = revision
	return state, err
}

// backUp writes a backup to a file, which appears only when it is whole, or to standard output.
func backUp(ctx context.Context, p Program, from backup, state store.Point, file string) error {
	if file == "-" {
		_, err := from(ctx, p.Out, state)
		return err
	}
	var revision int64
	err := durable.Stream(file, 0o600, func(w io.Writer) (err error) {
		revision, err = from(ctx, w, state)
		return err
	})
	if err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	fmt.Fprintf(p.Out, "%s contains the store at revision %d\n", file, revision)
	return nil
}

// running returns the backup of the server of a kubeconfig, the user's if it is empty.
func running(kubeconfig string) backup {
	return func(ctx context.Context, w io.Writer, state store.Point) (int64, error) {
		rules := clientcmd.NewDefaultClientConfigLoadingRules()
		rules.ExplicitPath = kubeconfig
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
		if err != nil {
			return 0, fmt.Errorf("read kubeconfig: %w", err)
		}
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			return 0, fmt.Errorf("make client: %w", err)
		}
		defer client.CloseIdleConnections()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(config.Host, "/")+backupPath+query(state), nil)
		if err != nil {
			return 0, fmt.Errorf("ask the server: %w", err)
		}
		response, err := client.Do(r)
		if err != nil {
			return 0, fmt.Errorf("ask the server: %w", err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10))
			return 0, fmt.Errorf("the server at %s answers %s: %s", config.Host, response.Status, strings.TrimSpace(string(text)))
		}
		if _, err := io.Copy(w, response.Body); err != nil {
			return 0, fmt.Errorf("read the backup from %s: %w", config.Host, err)
		}
		revision, err := strconv.ParseInt(response.Trailer.Get(backupRevision), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the backup from %s: it does not end: %w", config.Host, io.ErrUnexpectedEOF)
		}
		return revision, nil
	}
}

// query is how a server is asked for a state.
func query(state store.Point) string {
	switch {
	case state.Revision != 0:
		return "?revision=" + strconv.FormatInt(state.Revision, 10)
	case !state.Time.IsZero():
		return "?at=" + url.QueryEscape(state.Time.Format(time.RFC3339))
	}
	return ""
}
