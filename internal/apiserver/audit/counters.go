// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"sync/atomic"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
)

// Counters count events under the names of upstream's metrics. The zero value is ready to use.
type Counters struct {
	events, rejected atomic.Int64
	levels           [4]atomic.Int64
	errors           [4]atomic.Int64
}

var (
	levels = [...]auditinternal.Level{auditinternal.LevelNone, auditinternal.LevelMetadata, auditinternal.LevelRequest,
		auditinternal.LevelRequestResponse}
	plugins = [...]string{pluginLog, pluginWebhook, pluginBuffered, pluginTruncate}
)

func (c *Counters) level(l auditinternal.Level) {
	for i := range levels {
		if levels[i] == l {
			c.levels[i].Add(1)
		}
	}
}

func (c *Counters) failed(plugin string, n int) (total int64) {
	for i := range plugins {
		if plugins[i] == plugin {
			total = c.errors[i].Add(int64(n))
		}
	}
	return total
}

// Events returns the number of created events; Rejected returns the number of requests that were rejected because an
// event was lost.
func (c *Counters) Events() int64   { return c.events.Load() }
func (c *Counters) Rejected() int64 { return c.rejected.Load() }

// Levels calls tell with the number of requests of each level.
func (c *Counters) Levels(tell func(level string, n int64)) {
	for i := range levels {
		if n := c.levels[i].Load(); n > 0 {
			tell(string(levels[i]), n)
		}
	}
}

// Errors calls tell with the number of lost events of each plug-in.
func (c *Counters) Errors(tell func(plugin string, n int64)) {
	for i := range plugins {
		if n := c.errors[i].Load(); n > 0 {
			tell(plugins[i], n)
		}
	}
}
