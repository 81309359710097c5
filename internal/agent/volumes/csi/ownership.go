// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

const (
	// firstReport and nextReport are when events say that the change of many files takes long. They are kubelet's.
	firstReport = 30 * time.Second
	nextReport  = 60 * time.Second
	// deepest is the maximum depth of a volume whose files are given to a group: each level takes a file descriptor.
	deepest = 1000
	// batch is the number of names that one read of a directory returns.
	batch = 1024
)

// giveToGroup gives the files of a volume to the pod's group, as the CSIDriver's policy says.
func (p *publisher) giveToGroup(ctx context.Context, v *volume, dir string) error {
	group := v.spec.FSGroup()
	if group == nil || !v.grouped() {
		return nil
	}
	g := &giver{group: int(*group), files: 0o660}
	if s := v.pod.Spec.SecurityContext; s.FSGroupChangePolicy != nil && *s.FSGroupChangePolicy == corev1.FSGroupChangeOnRootMismatch {
		if g.done(dir) {
			return nil
		}
	}
	reported := make(chan struct{})
	defer close(reported)
	go p.reportProgress(v, g, dir, reported)
	return p.measured(v, "volume_apply_access_control", func() error { return g.give(ctx, dir) })
}

// grouped reports whether the node changes the files' group.
func (v *volume) grouped() bool {
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if v.class != nil && v.class.Spec.FSGroupPolicy != nil {
		policy = *v.class.Spec.FSGroupPolicy
	}
	switch {
	case v.able.group || v.readOnly || policy == storagev1.NoneFSGroupPolicy:
		return false
	case policy == storagev1.FileFSGroupPolicy:
		return true
	case v.fsType == "":
		return false
	case v.ephemeral:
		return true
	}
	for _, mode := range v.spec.PersistentVolume.Spec.AccessModes {
		if mode == corev1.ReadWriteOnce || mode == corev1.ReadWriteOncePod {
			return true
		}
	}
	return false
}

// reportProgress records events while a change takes long, until done is closed.
func (p *publisher) reportProgress(v *volume, g *giver, dir string, done <-chan struct{}) {
	if p.host.Warn == nil {
		return
	}
	if at := strings.Index(dir, string(v.pod.UID)); at >= 0 {
		dir = dir[at:]
	}
	timer := time.NewTimer(firstReport)
	defer timer.Stop()
	text := fmt.Sprintf("Setting volume ownership for %s is taking longer than expected, consider using OnRootMismatch - "+
		"https://kubernetes.io/docs/tasks/configure-pod-container/security-context/"+
		"#configure-volume-permission-and-ownership-change-policy-for-pods", dir) // upstream's words
	for {
		select {
		case <-done:
			return
		case <-timer.C:
		}
		p.host.Warn(v.pod, "VolumePermissionChangeInProgress", text)
		text = fmt.Sprintf("Setting volume ownership for %s, processed %d files.", dir, g.count.Load())
		timer.Reset(nextReport)
	}
}

// giver gives files to a group. It follows no links, not even those that a container swaps in meanwhile. Like kubelet, it goes on after a
// file that cannot be changed.
type giver struct {
	group int
	files uint32 // the bits of files; directories have the bits to enter, and setgid, too
	count atomic.Int64

	workers chan struct{} // has room for a further goroutine
	running sync.WaitGroup
	mu      sync.Mutex
	failed  error
}

// bits returns the bits that a directory or another file must have.
func (g *giver) bits(mode uint32) uint32 {
	if mode&unix.S_IFMT == unix.S_IFDIR {
		return g.files | 0o110 | unix.S_ISGID
	}
	return g.files
}

// done reports whether the root of a volume has the group and the bits. The root is changed last.
func (g *giver) done(dir string) bool {
	var s unix.Stat_t
	if err := unix.Stat(dir, &s); err != nil || s.Mode&unix.S_IFMT != unix.S_IFDIR {
		return false
	}
	return int(s.Gid) == g.group && s.Mode&g.bits(s.Mode) == g.bits(s.Mode)
}

// give changes a directory and all below it, several directories at once.
func (g *giver) give(ctx context.Context, dir string) error {
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	g.workers = make(chan struct{}, 4*runtime.GOMAXPROCS(0))
	g.contents(ctx, os.NewFile(uintptr(root), dir), 0)
	g.running.Wait()
	if g.failed != nil {
		return g.failed
	}
	g.change(unix.AT_FDCWD, dir)
	return nil
}

func (g *giver) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failed == nil {
		g.failed = err
	}
}

// contents changes what is in a directory, and closes the directory.
func (g *giver) contents(ctx context.Context, dir *os.File, depth int) {
	defer dir.Close()
	if depth > deepest {
		g.fail(fmt.Errorf("%s is more than %d levels deep", dir.Name(), deepest))
		return
	}
	fd := int(dir.Fd())
	for ctx.Err() == nil {
		entries, err := dir.ReadDir(batch)
		for _, e := range entries {
			if e.IsDir() {
				g.directory(ctx, dir, fd, e.Name(), depth)
			}
			g.change(fd, e.Name())
		}
		if err != nil || len(entries) == 0 {
			return
		}
	}
	g.fail(ctx.Err())
}

// directory changes a directory's contents, in a goroutine of its own if there is room.
func (g *giver) directory(ctx context.Context, parent *os.File, at int, name string, depth int) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return // a container has removed or replaced it
	}
	path := filepath.Join(parent.Name(), name)
	if err != nil {
		g.fail(&os.PathError{Op: "open", Path: path, Err: err})
		return
	}
	dir := os.NewFile(uintptr(fd), path)
	select {
	case g.workers <- struct{}{}:
		g.running.Go(func() {
			g.contents(ctx, dir, depth+1)
			<-g.workers
		})
	default:
		g.contents(ctx, dir, depth+1)
	}
}

// change changes one file, if it is not as it should be.
func (g *giver) change(at int, name string) {
	g.count.Add(1)
	fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var s unix.Stat_t
	if unix.Fstat(fd, &s) != nil {
		return
	}
	changed := false
	if int(s.Gid) != g.group {
		changed = unix.Fchownat(fd, "", -1, g.group, unix.AT_EMPTY_PATH) == nil
	}
	if s.Mode&unix.S_IFMT == unix.S_IFLNK {
		return // a link has no mode of its own
	}
	want := s.Mode&0o7777 | g.bits(s.Mode)
	if want != s.Mode&0o7777 || changed && s.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 { // a new group takes these bits
		_ = unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), want)
	}
}
