// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pluginbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// usualRoot is kubelet's root directory, which most plug-ins have built in.
const usualRoot = "/var/lib/kubelet"

// process is the plug-in's program while it runs.
type process struct {
	command *exec.Cmd
	done    chan struct{} // closed when it has ended
	why     error         // of its end; valid once done is closed
}

// exited returns a channel that is closed when the program ends; nil without a program.
func (p *process) exited() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.done
}

// launch starts the program, if the bench has it. {dir} in its arguments stands for the directory.
func (b *bench) launch() error {
	if len(b.Command) == 0 {
		return nil
	}
	args := make([]string, len(b.Command))
	for i, a := range b.Command {
		args[i] = strings.ReplaceAll(a, "{dir}", b.Dir)
	}
	attributes := &syscall.SysProcAttr{Setpgid: true}
	if b.Usual {
		if err := b.keepUsual(); err != nil {
			return fmt.Errorf("show the directory at %s: %w", usualRoot, err)
		}
		attributes.Unshareflags = syscall.CLONE_NEWNS
		args = append([]string{"/bin/sh", "-c", `mount --bind "$0" ` + usualRoot + ` && exec "$@"`, b.Dir}, args...)
	}
	// Not bound to a context: the bench itself ends it.
	c := exec.Command(args[0], args[1:]...)
	c.Env = append(os.Environ(), b.Env...)
	c.Stdout, c.Stderr, c.SysProcAttr = b.Output, b.Output, attributes
	if err := c.Start(); err != nil {
		return fmt.Errorf("start the plug-in: %w", err)
	}
	p := &process{command: c, done: make(chan struct{})}
	b.process = p
	go func() {
		p.why = c.Wait()
		if p.why == nil {
			p.why = errors.New("exit status 0")
		}
		close(p.done)
	}()
	return nil
}

// keepUsual makes kubelet's usual directory, and keeps it: a node of the machine that ends removes it if it is empty, and with it what is
// mounted there.
func (b *bench) keepUsual() error {
	if b.kept != "" {
		return nil
	}
	if err := os.MkdirAll(usualRoot, 0o750); err != nil {
		return err
	}
	f, err := os.CreateTemp(usualRoot, ".plugin-bench-*")
	if err != nil {
		return err
	}
	b.kept = f.Name()
	return f.Close()
}

// kill kills the program with all that it has started, and waits for its end.
func (b *bench) kill() {
	if b.process == nil {
		return
	}
	_ = syscall.Kill(-b.process.command.Process.Pid, syscall.SIGKILL) // it may have ended
	<-b.process.done
}

// end ends the program at the end of the bench.
func (b *bench) end() {
	b.kill()
	b.process = nil
	if b.kept != "" {
		_ = os.Remove(b.kept)
	}
}

// change runs the command that changes the health of a device.
func (b *bench) change(ctx context.Context) error {
	c := exec.CommandContext(ctx, b.Change[0], b.Change[1:]...)
	c.Env = append(os.Environ(), b.Env...)
	c.Stdout, c.Stderr = b.Output, b.Output
	return c.Run()
}
