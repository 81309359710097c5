// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAgainLogsSeldom: a part that fails at each of 120 attempts in an hour is logged six times, from the second on with the number of
// failures. When it has run for a while, its next failure is logged at once.
func TestAgainLogsSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		attempts := 0
		err := again(ctx, slog.New(slog.NewTextHandler(&log, nil)), "Could not do it, retrying", func() error {
			switch attempts++; attempts {
			case 120:
				time.Sleep(time.Hour) // it runs
			case 121:
				cancel()
			}
			return errors.New("no")
		})
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 7 || attempts != 121 {
			t.Fatalf("%d attempts, %d lines:\n%s", attempts, len(lines), log.String())
		}
		for i, want := range []string{"", "failures=3", "failures=7", "failures=15", "failures=31", "failures=63", ""} {
			if has := strings.Contains(lines[i], "failures="); has != (want != "") || !strings.Contains(lines[i], want) {
				t.Errorf("line %d: %s", i, lines[i])
			}
		}
	})
}
