// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/store/local"
)

// storeDir is where the store is in a data directory.
const storeDir = "store"

// runStore maintains the store of a data directory. Only backup works while a cluster runs on it.
func runStore(ctx context.Context, p Program, args []string) int {
	f := pflag.NewFlagSet("store", pflag.ContinueOnError)
	f.SetOutput(p.Err)
	dataDir := f.String("data-dir", defaultDataDir(), "Data directory.")
	bump := f.Int64("bump", 1_000_000,
		"Number by which restore and import raise the revision, so that clients do not confuse the stores' revisions.")
	kubeconfig := f.String("kubeconfig", "",
		"File of the kubeconfig by which backup asks a running server. Default: the store of --data-dir, unless a server uses it.")
	revision := f.Int64("revision", 0, "Revision of the state that backup writes, or import reads from etcd. Default: the newest.")
	at := f.String("at", "", "Time of the state that backup writes, as 2026-11-28T15:04:05Z, to some ten seconds.")
	var t transfer
	t.bind(f)
	f.Usage = func() {
		fmt.Fprintf(f.Output(), `Usage: mortise store check|backup FILE [--revision N|--at TIME]|restore FILE [--to ETCD]|export --to ETCD|import --from ETCD [flags]

check reads and verifies the store and changes nothing. backup writes the newest state to FILE ("-" is standard output); from a store in
use it gets it by the running server, as an administrator of $KUBECONFIG or ~/.kube/config, or of the data directory's kubeconfig if the store
is etcd; with --from etcd://..., it reads etcd. With --revision or --at it writes an older state, as far back as the history reaches: five to
ten minutes. restore creates the store of an empty data directory from FILE ("-" is standard input), or with --to writes it to etcd, or to a
file for "etcdutl snapshot restore". export copies the newest state to etcd, or to a file for "etcdutl snapshot restore"; import
creates the store of an empty data directory from etcd, or from a file that "etcdctl snapshot save" wrote.

%s`, f.FlagUsages())
	}
	if code, done := parse(p, f, "store", args); done {
		return code
	}
	dir := filepath.Join(*dataDir, storeDir)
	state, err := pointInTime(*revision, *at)
	switch {
	case err != nil:
	case f.Arg(0) == "check" && f.NArg() == 1:
		err = checkStore(ctx, p, dir)
	case f.Arg(0) == "backup" && f.NArg() == 2:
		from := backupFrom(*dataDir, *kubeconfig)
		if t.from != "" {
			from = t.backup
		}
		err = backUp(ctx, p, from, state, f.Arg(1))
	case f.Arg(0) == "restore" && f.NArg() == 2:
		if t.to != "" {
			err = t.restore(ctx, p, f.Arg(1), *bump)
		} else {
			err = restoreStore(ctx, p, dir, f.Arg(1), *bump)
		}
	case f.Arg(0) == "export" && f.NArg() == 1:
		err = t.export(ctx, p, dir)
	case f.Arg(0) == "import" && f.NArg() == 1:
		err = t.load(ctx, p, dir, state, *bump)
	default:
		f.Usage()
		return 2
	}
	if err != nil {
		return fail(p, err)
	}
	return 0
}

func checkStore(ctx context.Context, p Program, dir string) error {
	r, err := local.Check(ctx, dir, local.Options{})
	if err != nil {
		return err
	}
	fmt.Fprintf(p.Out, "%s is intact: %d keys, %d bytes, revision %d, history from %d\n", dir, r.Keys, r.Bytes, r.Revision, r.Compacted)
	if r.Torn > 0 {
		fmt.Fprintf(p.Out, "The next start removes %d bytes that a crash left at the end of the log; none of them was acknowledged\n", r.Torn)
	}
	return nil
}

func restoreStore(ctx context.Context, p Program, dir, file string, bump int64) error {
	r, closed, err := opened(p, file)
	if err != nil {
		return err
	}
	defer closed()
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	revision, err := local.Restore(ctx, r, dir, bump, local.Options{})
	if err != nil {
		return err
	}
	fmt.Fprintf(p.Out, "%s restored at revision %d\n", dir, revision)
	return nil
}

// opened returns the content of a file, or standard input if it is "-", and a function that closes it.
func opened(p Program, file string) (io.Reader, func(), error) {
	if file == "-" {
		return p.In, func() {}, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, fmt.Errorf("read backup: %w", err)
	}
	return f, func() { _ = f.Close() }, nil
}
