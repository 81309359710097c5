// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"

	"github.com/mortise-dev/mortise/store"
)

const sector = 512 // the unit that a disk writes atomically

// Mem is a file system in memory that records which of its state would survive a power loss. The zero value is not usable; see [NewMem].
type Mem struct {
	// Hook, if set, is called before each operation with its name ("write", "sync", "datasync", "syncdir", "create", "rename", "remove",
	// "truncate", "allocate") and the file's; an error makes the operation fail. After a failed sync it is undefined for ever whether the
	// data is durable, as on real disks.
	Hook func(op, name string) error

	mu      *sync.Mutex
	current map[string]*inode // what programs see
	stable  map[string]*inode // the durable names
	changes []rename          // of names, not yet durable, in order
	locked  map[string]bool
}

// rename is a change of a directory: the name now refers to the inode, nil for none.
type rename struct {
	name string
	to   *inode
}

// inode is a file's content: stable is durable; stable with the pending writes is current.
type inode struct {
	current []byte
	stable  []byte
	pending []write
}

// write writes data at an offset, or, without data, sets the length.
type write struct {
	offset int64
	data   []byte
}

var _ FS = (*Mem)(nil)

// NewMem returns an empty file system.
func NewMem() *Mem {
	return &Mem{mu: &sync.Mutex{}, current: map[string]*inode{}, stable: map[string]*inode{}, locked: map[string]bool{}}
}

// Crash returns a file system as a power loss now could leave it. Synced data survives. Depending on the seed, other writes survive, are
// lost, or are torn, in order or not, and changes of names survive up to some point. No locks are held in it. A hook may call Crash.
func (m *Mem) Crash(seed uint64) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := rand.New(rand.NewPCG(seed, 1))
	crashed := NewMem()
	crashed.current = maps.Clone(m.stable)
	for _, c := range m.changes[:r.IntN(len(m.changes)+1)] {
		set(crashed.current, c)
	}
	inodes := map[*inode]*inode{}
	for _, name := range slices.Sorted(maps.Keys(crashed.current)) {
		old := crashed.current[name]
		if inodes[old] == nil {
			data := old.crash(r)
			inodes[old] = &inode{current: data, stable: slices.Clone(data)}
		}
		crashed.current[name] = inodes[old]
	}
	crashed.stable = maps.Clone(crashed.current)
	return crashed
}

// crash returns what could be left of the content.
func (n *inode) crash(r *rand.Rand) []byte {
	data := slices.Clone(n.stable)
	const lost, whole, prefix, scattered = 0, 1, 2, 3
	mode := r.IntN(4)
	until := r.IntN(len(n.pending) + 1)
	for i, w := range n.pending {
		switch {
		case mode == lost, mode == prefix && i > until:
			return data
		case mode == whole, mode == prefix && i < until, w.data == nil:
			data = w.apply(data)
		case mode == prefix:
			data = write{w.offset, w.data[:r.IntN(len(w.data)+1)]}.apply(data)
		case mode == scattered:
			// Each sector reaches the disk or not; the last to reach it may be torn.
			for at := 0; at < len(w.data); {
				n := min(sector-int(w.offset+int64(at))%sector, len(w.data)-at)
				switch r.IntN(8) {
				case 0, 1, 2:
				case 3:
					data = write{w.offset + int64(at), w.data[at : at+r.IntN(n)+1]}.apply(data)
				default:
					data = write{w.offset + int64(at), w.data[at : at+n]}.apply(data)
				}
				at += n
			}
		}
	}
	return data
}

func (w write) apply(data []byte) []byte {
	if w.data == nil {
		return resize(data, w.offset)
	}
	if end := w.offset + int64(len(w.data)); end > int64(len(data)) {
		data = resize(data, end)
	}
	copy(data[w.offset:], w.data)
	return data
}

func resize(data []byte, size int64) []byte {
	if size <= int64(len(data)) {
		return data[:size:size]
	}
	return append(data, make([]byte, size-int64(len(data)))...)
}

func set(names map[string]*inode, c rename) {
	if c.to == nil {
		delete(names, c.name)
		return
	}
	names[c.name] = c.to
}

// enter calls the hook and takes the lock.
func (m *Mem) enter(op, name string) (leave func(), err error) {
	if m.Hook != nil {
		if err := m.Hook(op, name); err != nil {
			return nil, &fs.PathError{Op: op, Path: name, Err: err}
		}
	}
	m.mu.Lock()
	return m.mu.Unlock, nil
}

func (m *Mem) change(name string, to *inode) {
	c := rename{name, to}
	set(m.current, c)
	m.changes = append(m.changes, c)
}

// MkdirAll implements [FS]; directories need not be created.
func (m *Mem) MkdirAll(string) error { return nil }

// List implements [FS].
func (m *Mem) List(dir string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for name := range m.current {
		if filepath.Dir(name) == filepath.Clean(dir) {
			names = append(names, filepath.Base(name))
		}
	}
	slices.Sort(names)
	return names, nil
}

// Open implements [FS].
func (m *Mem) Open(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.current[name]
	if n == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &memFile{fs: m, name: name, inode: n}, nil
}

// Create implements [FS].
func (m *Mem) Create(name string) (File, error) {
	leave, err := m.enter("create", name)
	if err != nil {
		return nil, err
	}
	defer leave()
	n := &inode{}
	m.change(name, n)
	return &memFile{fs: m, name: name, inode: n}, nil
}

// Rename implements [FS].
func (m *Mem) Rename(from, to string) error {
	leave, err := m.enter("rename", to)
	if err != nil {
		return err
	}
	defer leave()
	n := m.current[from]
	if n == nil {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	m.change(to, n)
	m.change(from, nil)
	return nil
}

// Remove implements [FS].
func (m *Mem) Remove(name string) error {
	leave, err := m.enter("remove", name)
	if err != nil {
		return err
	}
	defer leave()
	if m.current[name] == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	m.change(name, nil)
	return nil
}

// SyncDir implements [FS]; it syncs the names of all directories.
func (m *Mem) SyncDir(dir string) error {
	leave, err := m.enter("syncdir", dir)
	if err != nil {
		return err
	}
	defer leave()
	m.stable = maps.Clone(m.current)
	m.changes = nil
	return nil
}

// Lock implements [FS].
func (m *Mem) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locked[name] {
		return nil, fmt.Errorf("lock %s: %w", name, store.ErrLocked)
	}
	if m.current[name] == nil {
		m.change(name, &inode{})
	}
	m.locked[name] = true
	return unlock(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.locked, name)
	}), nil
}

type unlock func()

// Close ends the lock.
func (u unlock) Close() error { u(); return nil }

// memFile is an open file of a [Mem].
type memFile struct {
	fs    *Mem
	name  string
	inode *inode
}

// ReadAt implements [io.ReaderAt].
func (f *memFile) ReadAt(p []byte, offset int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if offset >= int64(len(f.inode.current)) {
		return 0, io.EOF
	}
	n := copy(p, f.inode.current[offset:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements [io.WriterAt].
func (f *memFile) WriteAt(p []byte, offset int64) (int, error) {
	if err := f.do("write", write{offset, append([]byte{}, p...)}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Truncate implements [File].
func (f *memFile) Truncate(size int64) error { return f.do("truncate", write{offset: size}) }

// Allocate implements [File].
func (f *memFile) Allocate(size int64) error {
	now, err := f.Size()
	if err != nil {
		return err
	}
	return f.do("allocate", write{offset: max(size, now)})
}

func (f *memFile) do(op string, w write) error {
	leave, err := f.fs.enter(op, f.name)
	if err != nil {
		return err
	}
	defer leave()
	f.inode.current = w.apply(f.inode.current)
	f.inode.pending = append(f.inode.pending, w)
	return nil
}

// Size implements [File].
func (f *memFile) Size() (int64, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return int64(len(f.inode.current)), nil
}

// Sync implements [File].
func (f *memFile) Sync() error { return f.sync("sync") }

// Datasync implements [File].
func (f *memFile) Datasync() error { return f.sync("datasync") }

func (f *memFile) sync(op string) error {
	leave, err := f.fs.enter(op, f.name)
	if err != nil {
		return err
	}
	defer leave()
	for _, w := range f.inode.pending {
		f.inode.stable = w.apply(f.inode.stable)
	}
	f.inode.pending = nil
	return nil
}

// Close implements [io.Closer].
func (f *memFile) Close() error { return nil }
