// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// child is this program in a process of its own, beside the bench.
type child struct {
	*exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner // of its output
}

// ownProgram is this program with an argument that says what it does. Its standard error is the bench's.
func ownProgram(ctx context.Context, argument string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own program: %w", err)
	}
	c := exec.CommandContext(ctx, self, argument)
	c.Stderr = os.Stderr
	return c, nil
}

// startChild starts ownProgram.
func startChild(ctx context.Context, argument string) (*child, error) {
	program, err := ownProgram(ctx, argument)
	if err != nil {
		return nil, err
	}
	c := &child{Cmd: program}
	if c.in, err = c.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", argument, err)
	}
	c.lines = bufio.NewScanner(out)
	return c, nil
}

// spans reads the times that the child prints until its output ends.
func (c *child) spans() (all []span, err error) {
	for err == nil && c.lines.Scan() {
		var s span
		if _, err = fmt.Sscan(c.lines.Text(), &s.from, &s.to); err == nil {
			all = append(all, s)
		}
	}
	return all, errors.Join(err, c.lines.Err())
}

// end closes the child's input, and waits for its end.
func (c *child) end() error { return errors.Join(c.in.Close(), c.Wait()) }
