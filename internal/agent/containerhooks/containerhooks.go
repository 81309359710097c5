// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package containerhooks runs the lifecycle handlers of containers: postStart and preStop.
package containerhooks

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
	"github.com/mortise-dev/mortise/internal/agent/probe"
)

// Addresses are where others reach the node.
type Addresses interface {
	// Texts are the addresses of now, the one that counts first.
	Texts() []string
}

// Config is what a Runner is made from. All of it is required.
type Config struct {
	Runtime   *cri.Client
	Addresses Addresses
	Events    record.EventRecorder
	Clock     clock.WithTicker
}

// Runner runs handlers. It keeps nothing but its configuration.
type Runner struct{ Config }

// New makes the runner.
func New(c Config) *Runner { return &Runner{c} }

// Run runs a postStart or preStop handler to its end.
func (r *Runner) Run(ctx context.Context, c *corev1.Container, id string, podIPs []string, h *corev1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		output, code, err := r.Runtime.ExecSync(ctx, id, h.Exec.Command, 0)
		if err != nil {
			return fmt.Errorf("run hook of container %s: %w", c.Name, err)
		}
		if code != 0 {
			return fmt.Errorf("command '%s' exited with %d: %s", strings.Join(h.Exec.Command, " "), code, output)
		}
		return nil
	case h.HTTPGet != nil:
		ip := ""
		if len(podIPs) > 0 {
			ip = podIPs[0]
		}
		request, err := probe.Request(ctx, h.HTTPGet, c, ip)
		if err != nil {
			return err
		}
		client := probe.HTTPClient(0)
		response, err := client.Do(request)
		if err != nil {
			return fmt.Errorf("run hook of container %s: %w", c.Name, err)
		}
		defer response.Body.Close()
		_, err = io.Copy(io.Discard, io.LimitReader(response.Body, 10<<10))
		return err
	case h.Sleep != nil:
		timer := r.Clock.NewTimer(time.Duration(h.Sleep.Seconds) * time.Second)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C():
			return nil
		}
	}
	return fmt.Errorf("invalid handler: %v", h)
}

// PreStop runs the preStop handler for at most as long as the grace lasts.
func (r *Runner) PreStop(ctx context.Context, pod *corev1.Pod, c *corev1.Container, id string, limit time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		var ips []string
		if state, err := r.Runtime.Observe(ctx, pod.UID); err == nil {
			ips = podstatus.PodIPs(pod, state, r.Addresses.Texts())
		}
		done <- r.Run(ctx, c, id, ips, c.Lifecycle.PreStop)
	}()
	timer := r.Clock.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		if err != nil && ctx.Err() == nil {
			r.Events.Event(podspec.ContainerReference(pod, c), corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
		}
	case <-timer.C():
		cancel()
		<-done
	}
}
