// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/internal/durable"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/etcd"
	"github.com/mortise-dev/mortise/store/etcd/snapshotfile"
	"github.com/mortise-dev/mortise/store/local"
)

// transfer copies a store from a data directory to etcd, and back.
type transfer struct {
	from, to                  string
	caFile, certFile, keyFile string
	prefix                    string
}

func (t *transfer) bind(f *pflag.FlagSet) {
	f.StringVar(&t.from, "from", "", "What import, or backup, reads: etcd://HOST:PORT[,HOST:PORT...], or a snapshot file of etcd.")
	f.StringVar(&t.to, "to", "", "What export, or restore, writes: etcd://HOST:PORT[,HOST:PORT...], or a snapshot file of etcd.")
	f.StringVar(&t.prefix, "etcd-prefix", etcd.DefaultPrefix, "Prefix of etcd's keys.")
	f.StringVar(&t.caFile, "etcd-cafile", "", "File of the authorities that sign the certificates of etcd's servers; they are connected to by TLS.")
	f.StringVar(&t.certFile, "etcd-certfile", "", "File of the client certificate for etcd; it is connected to by TLS.")
	f.StringVar(&t.keyFile, "etcd-keyfile", "", "File of that certificate's key.")
}

// members returns the options for etcd's members, and false if place is a file.
func (t *transfer) members(place string) (etcd.Options, bool, error) {
	hosts, ok := strings.CutPrefix(place, "etcd://")
	if !ok {
		return etcd.Options{}, false, nil
	}
	o := etcd.Options{Prefix: t.prefix}
	var err error
	if o.TLS, err = etcd.LoadTLS(t.caFile, t.certFile, t.keyFile); err != nil {
		return o, true, err
	}
	scheme := "http://"
	if o.TLS != nil {
		scheme = "https://"
	}
	for host := range strings.SplitSeq(hosts, ",") {
		o.Servers = append(o.Servers, scheme+host)
	}
	return o, true, etcd.CheckServers(o.Servers)
}

// export copies the store in dir to etcd.
func (t *transfer) export(ctx context.Context, p Program, dir string) error {
	if t.to == "" {
		return errors.New("export needs --to")
	}
	content, err := local.ReadContent(ctx, dir, local.Options{})
	if err != nil {
		return err
	}
	if err := t.write(ctx, p, content); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	fmt.Fprintf(p.Out, "%s holds the %d keys of %s at revision %d\n", t.to, len(content.Records), dir, content.Revision)
	return nil
}

// restore copies a backup to etcd. It raises the revision by bump.
func (t *transfer) restore(ctx context.Context, p Program, file string, bump int64) error {
	if bump < 0 {
		return fmt.Errorf("--bump %d: %w", bump, store.ErrInvalid)
	}
	r, closed, err := opened(p, file)
	if err != nil {
		return err
	}
	defer closed()
	content, err := local.ReadBackup(ctx, r)
	if err != nil {
		return err
	}
	content.Revision += bump
	if err := t.write(ctx, p, content); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	fmt.Fprintf(p.Out, "%s holds the %d keys of %s at revision %d or later\n", t.to, len(content.Records), file, content.Revision)
	return nil
}

// write writes a content to etcd, or to a snapshot file.
func (t *transfer) write(ctx context.Context, p Program, content store.Content) error {
	members, live, err := t.members(t.to)
	switch {
	case err != nil:
		return err
	case live:
		return etcd.Fill(ctx, members, content, told(p))
	default:
		return t.writeSnapshot(ctx, p, content)
	}
}

// told writes a line for each report of progress.
func told(p Program) etcd.Progress {
	return func(stage string, done, all int64) { fmt.Fprintf(p.Err, "%s: %d of %d\n", stage, done, all) }
}

// writeSnapshot writes the file, and reads it back.
func (t *transfer) writeSnapshot(ctx context.Context, p Program, c store.Content) error {
	if _, err := os.Lstat(t.to); !errors.Is(err, os.ErrNotExist) {
		return errors.Join(fmt.Errorf("write %s: %w", t.to, os.ErrExist), err)
	}
	n := int64(len(c.Records))
	told(p)("write the file", 0, n)
	if err := durable.Stream(t.to, 0o600, func(w io.Writer) error {
		return snapshotfile.Write(ctx, w, filepath.Dir(t.to), t.prefix, c)
	}); err != nil {
		return err
	}
	told(p)("check the file", 0, n)
	got, err := snapshotfile.Read(ctx, t.to, t.prefix)
	if err == nil {
		err = sameKeys(c, got)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("check %s: %w", t.to, err), os.Remove(t.to))
	}
	told(p)("check the file", n, n)
	return nil
}

// sameKeys is an error if a copy has not the keys, values and revisions of what was copied.
func sameKeys(want, got store.Content) error {
	for i, r := range want.Records {
		if i >= len(got.Records) || got.Records[i].Key != r.Key {
			return fmt.Errorf("key %q was written and is not there: %w", r.Key, store.ErrCorrupt)
		}
		if g := got.Records[i]; !bytes.Equal(g.Value, r.Value) || g.Revision != r.Revision || g.Created != r.Created {
			return fmt.Errorf("key %q has another value than was written: %w", r.Key, store.ErrCorrupt)
		}
	}
	if len(got.Records) > len(want.Records) {
		return fmt.Errorf("key %q is there and was not written: %w", got.Records[len(want.Records)].Key, store.ErrCorrupt)
	}
	return nil
}

// read returns a state of etcd, or of a snapshot file.
func (t *transfer) read(ctx context.Context, state store.Point, progress etcd.Progress) (store.Content, error) {
	if !state.Time.IsZero() {
		return store.Content{}, errors.New("etcd does not know when its revisions were: name the --revision in place of --at")
	}
	members, live, err := t.members(t.from)
	if err != nil {
		return store.Content{}, err
	}
	var c store.Content
	switch {
	case live:
		c, err = etcd.ReadContent(ctx, members, state.Revision, progress)
	case state.Revision != 0:
		err = fmt.Errorf("%s is a snapshot, of one revision: it has no other --revision", t.from)
	default:
		c, err = snapshotfile.Read(ctx, t.from, t.prefix)
	}
	if err == nil && len(c.Records) == 0 {
		err = fmt.Errorf("%s holds no keys under %s", t.from, t.prefix)
	}
	return c, err
}

// backup writes a state of etcd as a backup.
func (t *transfer) backup(ctx context.Context, w io.Writer, state store.Point) (int64, error) {
	c, err := t.read(ctx, state, nil)
	if err != nil {
		return 0, err
	}
	return c.Revision, local.WriteBackup(ctx, w, c.Revision, c.All(), local.Options{})
}

// load makes dir the store with what is in etcd. It raises the revision by bump.
func (t *transfer) load(ctx context.Context, p Program, dir string, state store.Point, bump int64) error {
	if t.from == "" {
		return errors.New("import needs --from")
	}
	if bump < 0 {
		return fmt.Errorf("--bump %d: %w", bump, store.ErrInvalid)
	}
	c, err := t.read(ctx, state, told(p))
	if err != nil {
		return fmt.Errorf("import: %w", err)
	}
	c.Revision += bump
	n := int64(len(c.Records))
	told(p)("write the keys", 0, n)
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	if err := local.Create(ctx, dir, c, local.Options{}); err != nil {
		return fmt.Errorf("import: %w", err)
	}
	told(p)("check the keys", 0, n)
	got, err := local.ReadContent(ctx, dir, local.Options{})
	if err == nil {
		err = sameKeys(c, got)
	}
	if err != nil {
		return fmt.Errorf("check %s: %w", dir, err)
	}
	told(p)("check the keys", n, n)
	fmt.Fprintf(p.Out, "%s holds the %d keys of %s at revision %d\n", dir, len(c.Records), t.from, c.Revision)
	return nil
}
