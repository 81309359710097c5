// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package disktest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// changing are the system calls that change a disk, except those that write a file's contents. They include calls of openat that create a
// file.
var changing = []uint32{
	unix.SYS_MKDIRAT, unix.SYS_OPENAT2, unix.SYS_SYMLINKAT, unix.SYS_LINKAT, unix.SYS_MKNODAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT,
	unix.SYS_RENAMEAT2, unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_FTRUNCATE,
}

// Supervised runs f on its own thread, and calls step before each system call of f that changes a disk. If step returns false, the call
// fails without an effect: with a step that returns false from the n-th call on, the disk is as if f had been killed then. If the kernel
// does not permit supervision, Supervised logs that and does not call step.
func Supervised(t *testing.T, step func() bool, f func() error) error {
	t.Helper()
	done, supervised := make(chan error, 1), make(chan struct{})
	go onOwnThread(func() error {
		listener, err := filter()
		if err != nil {
			t.Logf("SKIPPED: system calls are not supervised: %v", err)
			close(supervised)
		} else {
			go func() { defer close(supervised); supervise(listener, step) }()
		}
		return f()
	}, done)
	err := <-done
	<-supervised
	return err
}

// onOwnThread runs f on a thread that ends with f.
func onOwnThread(f func() error, done chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The main thread would not end, and /proc/self shows its mounts. While this goroutine has it, another goroutine gets another thread.
		defer runtime.UnlockOSThread()
		other := make(chan error)
		go onOwnThread(f, other)
		done <- <-other
		return
	}
	done <- f()
}

// filter makes the kernel notify before the thread's system calls that change a disk. It returns the notification's file descriptor.
func filter() (*os.File, error) {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		set   = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		give  = unix.BPF_RET | unix.BPF_K
	)
	n := uint8(len(changing))
	program := []unix.SockFilter{
		{Code: load, K: 0},                             // the number of the call
		{Code: equal, K: unix.SYS_OPENAT, Jf: 2},       //
		{Code: load, K: 32},                            // the third argument: flags
		{Code: set, K: unix.O_CREAT, Jt: n + 1, Jf: n}, // notify, or not
	}
	for i, call := range changing {
		program = append(program, unix.SockFilter{Code: equal, K: call, Jt: n - uint8(i)})
	}
	program = append(program,
		unix.SockFilter{Code: give, K: unix.SECCOMP_RET_ALLOW}, unix.SockFilter{Code: give, K: unix.SECCOMP_RET_USER_NOTIF})
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("give up privileges of programs: %w", err)
	}
	whole := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP,
		unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&whole)))
	if errno != 0 {
		return nil, fmt.Errorf("filter system calls: %w", errno)
	}
	return os.NewFile(fd, "seccomp"), nil
}

// notification and answer are the kernel's seccomp_notif and seccomp_notif_resp.
type notification struct {
	id         uint64
	pid, flags uint32
	data       [64]byte
}

type answer struct {
	id           uint64
	value        int64
	failed       int32
	continuation uint32 // 1: continue the call
}

// supervise responds to the kernel's notifications until the thread has ended.
func supervise(listener *os.File, step func() bool) {
	defer listener.Close()
	for {
		poll := []unix.PollFd{{Fd: int32(listener.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil || poll[0].Revents&unix.POLLIN == 0 {
			return
		}
		var asked notification
		if !control(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&asked)) {
			continue
		}
		reply := answer{id: asked.id, continuation: 1}
		if !step() {
			reply = answer{id: asked.id, failed: -int32(unix.EIO)}
		}
		control(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&reply))
	}
}

func control(listener *os.File, request uintptr, argument unsafe.Pointer) bool {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, listener.Fd(), request, uintptr(argument))
	return errno == 0
}
