// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
)

// passing reports whether an error may be transient: the API server did not respond, or an intermediary did.
func passing(err error) bool {
	busy := []func(error) bool{
		apierrors.IsServiceUnavailable, apierrors.IsTooManyRequests, apierrors.IsServerTimeout, apierrors.IsTimeout, apierrors.IsInternalError,
	}
	if slices.ContainsFunc(busy, func(is func(error) bool) bool { return is(err) }) {
		return true
	}
	return apierrors.ReasonForError(err) == metav1.StatusReasonUnknown
}

// Register registers the node as soon as an API server responds.
func (m *Manager) Register(ctx context.Context) error {
	wait, said := firstWait, false
	for {
		err := m.register(ctx)
		if err == nil || ctx.Err() != nil || !passing(err) {
			return err
		}
		if !said {
			m.Logger.Warn("API server does not answer, running static pods without it", "err", err)
			said = true
		}
		timer := m.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
		wait = min(2*wait, longestWait)
	}
}

// register creates the Node, or adopts an existing one.
func (m *Manager) register(ctx context.Context) error {
	m.CheckRuntime(ctx)
	nodes := m.Client.CoreV1().Nodes()
	made, err := (*corev1.Node)(nil), error(nil)
	if *m.Kubelet.RegisterNode {
		m.Metrics.asks(m.Clock.Now())
		made, err = nodes.Create(ctx, m.initial(), metav1.CreateOptions{})
	} else if made, err = nodes.Get(ctx, m.NodeName, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return nil // another component creates it; heartbeats watch for it
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("register node %s: %w", m.NodeName, err)
	}
	if err == nil {
		if *m.Kubelet.RegisterNode {
			m.Metrics.made(m.Clock.Now())
		}
		m.Logger.Info("Registered the node", "node", m.NodeName)
	} else {
		made, err = nodes.Get(ctx, m.NodeName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("find node %s: %w", m.NodeName, err)
		}
	}
	m.saw(made)
	if err := m.network(ctx, made); err != nil {
		return err
	}
	if err := m.writeNode(ctx, made, m.adopted(made), true); err != nil {
		return err
	}
	if m.Record != nil && m.Record.Missing() {
		if err := m.Record.Begin(); err != nil {
			m.Logger.Error("Could not begin the record of plug-ins' resources, a restart sets extended resources to zero", "err", err)
		}
	}
	return m.lease.renew(ctx)
}

// Run runs the heartbeat until ctx is done: it renews the Lease (by default every ten seconds), and writes the status when it has changed
// or is older than five minutes. It logs failures, and retries with the next heartbeat.
func (m *Manager) Run(ctx context.Context) error {
	ticker, renew := m.Clock.NewTicker(m.Kubelet.NodeStatusUpdateFrequency.Duration), m.Clock.NewTicker(renewal(m.Kubelet))
	defer ticker.Stop()
	defer renew.Stop()
	written := m.Clock.Now()
	var unrenewed, unwritten backoff.Failures
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-renew.C():
			switch err := m.lease.renew(ctx); {
			case err == nil:
				unrenewed.Clear()
			case ctx.Err() == nil:
				unrenewed.Log(m.Clock.Now(), m.Logger.Error, "Could not renew the node's Lease, retrying", "err", err)
			}
			continue
		case <-ticker.C():
			m.mu.Lock()
			unplugged := m.ready.unplugged
			m.mu.Unlock()
			m.pods.remind(unplugged)
			m.CheckRuntime(ctx)
		case <-m.changed:
			m.CheckRuntime(ctx)
		}
		due := m.Clock.Since(written) >= m.Kubelet.NodeStatusReportFrequency.Duration
		if err := m.sync(ctx, due); err != nil {
			if ctx.Err() == nil {
				unwritten.Log(m.Clock.Now(), m.Logger.Error, "Could not write the node status, retrying", "err", err)
			}
			continue
		}
		unwritten.Clear()
		if due {
			written = m.Clock.Now()
		}
	}
}

// sync updates the Node.
func (m *Manager) sync(ctx context.Context, heartbeat bool) error {
	have, err := m.FetchNode(ctx)
	if apierrors.IsNotFound(err) {
		return m.register(ctx)
	}
	if err != nil {
		return err
	}
	return errors.Join(m.network(ctx, have), m.writeNode(ctx, have, m.updated(have), heartbeat))
}
