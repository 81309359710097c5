// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// notify reports a state of the service to systemd (sd_notify(3)), if systemd started this process.
func notify(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil && log != nil {
		log.Warn("Could not report the state of the service to systemd", "error", err)
	}
}

// watchdog tells systemd that the service works, twice in each interval of WatchdogSec, for as long as the service is healthy. It ends with
// ctx, and at once if systemd asks for nothing.
func watchdog(ctx context.Context, log *slog.Logger, healthy func(ctx context.Context) error) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("Could not read the interval of systemd's watchdog", "error", err)
	}
	if err != nil || interval == 0 {
		return
	}
	beat(ctx, log, interval/2, healthy)
}

// beat tells systemd once in each interval that the service works.
func beat(ctx context.Context, log *slog.Logger, every time.Duration, healthy func(ctx context.Context) error) {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		asking, cancel := context.WithTimeout(ctx, every)
		err := healthy(asking)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			log.Warn("The service does not answer: systemd will restart it if this goes on", "error", err)
		default:
			notify(log, daemon.SdNotifyWatchdog)
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
	}
}

// health returns what the watchdog asks: whether the API server lives, or nothing for a node alone.
func (r run) health(kubeconfig string) func(ctx context.Context) error {
	if !r.server {
		return func(context.Context) error { return nil }
	}
	return func(ctx context.Context) error {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return fmt.Errorf("read kubeconfig: %w", err)
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		if err := client.Discovery().RESTClient().Get().AbsPath("/livez").Do(ctx).Error(); err != nil {
			return fmt.Errorf("ask the API server whether it lives: %w", err)
		}
		return nil
	}
}
