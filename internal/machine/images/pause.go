// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"encoding/binary"
	"fmt"
)

// The pause program holds a pod's namespaces. It is the first process of the pod's PID namespace if that is shared, so it must reap
// orphans: it ignores SIGCHLD, and the kernel then reaps them. It must end on SIGTERM, which the kernel withholds from a first process
// without a handler, unless the signal is blocked: it blocks SIGTERM and SIGINT and waits for one of them.
//
//	rt_sigaction(SIGCHLD, SIG_IGN); rt_sigprocmask(SIG_BLOCK, {INT, TERM}); while (rt_sigtimedwait(…) < 0); exit(0)
//
// These are its machine instructions; the data that they address relative to themselves (sigaction, signal set) follow them.
var (
	pauseAMD64 = []byte{
		0xb8, 0x0d, 0, 0, 0, // mov eax, 13 (rt_sigaction)
		0xbf, 0x11, 0, 0, 0, // mov edi, 17 (SIGCHLD)
		0x48, 0x8d, 0x35, 0x47, 0, 0, 0, // lea rsi, [rip+action]
		0x31, 0xd2, // xor edx, edx
		0x41, 0xba, 8, 0, 0, 0, // mov r10d, 8
		0x0f, 0x05, // syscall
		0xb8, 0x0e, 0, 0, 0, // mov eax, 14 (rt_sigprocmask)
		0x31, 0xff, // xor edi, edi (SIG_BLOCK)
		0x48, 0x8d, 0x35, 0x4f, 0, 0, 0, // lea rsi, [rip+set]
		0x31, 0xd2, // xor edx, edx
		0x41, 0xba, 8, 0, 0, 0, // mov r10d, 8
		0x0f, 0x05, // syscall
		0xb8, 0x80, 0, 0, 0, // wait: mov eax, 128 (rt_sigtimedwait)
		0x48, 0x8d, 0x3d, 0x39, 0, 0, 0, // lea rdi, [rip+set]
		0x31, 0xf6, // xor esi, esi
		0x31, 0xd2, // xor edx, edx
		0x41, 0xba, 8, 0, 0, 0, // mov r10d, 8
		0x0f, 0x05, // syscall
		0x85, 0xc0, // test eax, eax
		0x78, 0xe4, // js wait
		0xb8, 0x3c, 0, 0, 0, // mov eax, 60 (exit)
		0x31, 0xff, // xor edi, edi
		0x0f, 0x05, // syscall
	}
	pauseARM64 = []uint32{
		0xd28010c8, // mov x8, 134 (rt_sigaction)
		0xd2800220, // mov x0, 17 (SIGCHLD)
		0x10000281, // adr x1, action
		0xaa1f03e2, // mov x2, xzr
		0xb27d03e3, // mov x3, 8
		0xd4000001, // svc 0
		0xd28010e8, // mov x8, 135 (rt_sigprocmask)
		0xaa1f03e0, // mov x0, xzr (SIG_BLOCK)
		0x100002c1, // adr x1, set
		0xaa1f03e2, // mov x2, xzr
		0xb27d03e3, // mov x3, 8
		0xd4000001, // svc 0
		0xd2801128, // wait: mov x8, 137 (rt_sigtimedwait)
		0x10000220, // adr x0, set
		0xaa1f03e1, // mov x1, xzr
		0xaa1f03e2, // mov x2, xzr
		0xb27d03e3, // mov x3, 8
		0xd4000001, // svc 0
		0x37ffff40, // tbnz w0, 31, wait
		0xd2800ba8, // mov x8, 93 (exit)
		0xaa1f03e0, // mov x0, xzr
		0xd4000001, // svc 0
	}
	// pauseData is the kernel's sigaction with SIG_IGN, four words, and the set of SIGINT and SIGTERM.
	pauseData = []uint64{1, 0, 0, 0, 1<<(2-1) | 1<<(15-1)}
)

// pauseProgram returns the static ELF executable for an architecture.
func pauseProgram(arch string) ([]byte, error) {
	le := binary.LittleEndian
	var code []byte
	var machine uint16
	switch arch {
	case "amd64":
		machine, code = 62, append(code, pauseAMD64...)
	case "arm64":
		machine = 183
		for _, w := range pauseARM64 {
			code = le.AppendUint32(code, w)
		}
	default:
		return nil, fmt.Errorf("build pause: no program for architecture %s", arch)
	}
	for _, w := range pauseData {
		code = le.AppendUint64(code, w)
	}
	const base, headers = 0x400000, 64 + 56
	b := []byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0} // 64 bits, little endian
	b = le.AppendUint16(b, 2)                                            // executable
	b = le.AppendUint16(b, machine)
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+headers) // entry
	b = le.AppendUint64(b, 64)           // program headers
	b = le.AppendUint64(b, 0)            // no sections
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{64, 56, 1, 64, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	size := uint64(headers + len(code))
	b = le.AppendUint32(b, 1) // load
	b = le.AppendUint32(b, 5) // readable, executable
	for _, v := range []uint64{0, base, base, size, size, 0x10000} {
		b = le.AppendUint64(b, v)
	}
	return append(b, code...), nil
}
