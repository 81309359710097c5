// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// Check returns an error for a machine that the configuration forbids.
func Check(k *configv1beta1.KubeletConfiguration) error {
	if *k.FailCgroupV1 && !Unified() {
		// upstream's words
		return errors.New("kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and will be removed in a future release")
	}
	if *k.FailSwapOn {
		text, err := os.ReadFile("/proc/swaps")
		if err != nil {
			return fmt.Errorf("look for swap: %w", err)
		}
		if on := swaps(string(text)); len(on) > 0 {
			// upstream's words
			return fmt.Errorf("running with swap on is not supported, please disable swap or set --fail-swap-on flag to false: %s",
				strings.Join(on, ", "))
		}
	}
	if k.ProtectKernelDefaults {
		return checkKernel("/proc/sys")
	}
	return nil
}

// swaps returns the swap devices in /proc/swaps, without those in memory.
func swaps(text string) []string {
	var out []string
	first := true
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if !first && len(fields) > 0 && !strings.HasPrefix(fields[0], "/dev/zram") {
			out = append(out, fields[0])
		}
		first = false
	}
	return out
}

// checkKernel compares the kernel's settings with those that kubelet requires.
func checkKernel(root string) error {
	var wrong []error
	for _, want := range []struct{ name, value string }{
		{"vm/overcommit_memory", "1"}, {"vm/panic_on_oom", "0"}, {"kernel/panic", "10"}, {"kernel/panic_on_oops", "1"},
		{"kernel/keys/root_maxkeys", "1000000"}, {"kernel/keys/root_maxbytes", "25000000"},
	} {
		if have := Line(root + "/" + want.name); have != want.value {
			// upstream's words
			wrong = append(wrong, fmt.Errorf("invalid kernel flag: %v, expected value: %v, actual value: %v", want.name, want.value, have))
		}
	}
	return errors.Join(wrong...)
}

// Unified reports whether the machine has only cgroups v2.
func Unified() bool {
	var s unix.Statfs_t
	return unix.Statfs("/sys/fs/cgroup", &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC
}

// BoundsSwap reports whether the kernel limits the swap of cgroups. The root cgroup of v2 has no such file, so it checks the process's own
// cgroup.
func BoundsSwap() bool {
	path := cgroupMemory + "/memory.memsw.limit_in_bytes"
	if Unified() {
		path = cgroupAll + strings.TrimPrefix(Line("/proc/self/cgroup"), "0::") + "/memory.swap.max"
	}
	_, err := os.Stat(path)
	return err == nil
}
