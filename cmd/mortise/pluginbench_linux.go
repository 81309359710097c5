// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/internal/agent/pluginbench"
	"github.com/mortise-dev/mortise/internal/cli"
)

// driveNodePlugin lets `mortise node plugin-bench` drive a plug-in. DRA drivers and credential providers have an API server beside it.
func driveNodePlugin(ctx context.Context, o cli.PluginBenchOptions) (_ *cli.PluginReport, err error) {
	if o.Dir == "" {
		if o.Dir, err = os.MkdirTemp("", "plugin-bench"); err != nil {
			return nil, fmt.Errorf("make directory: %w", err)
		}
		defer os.RemoveAll(o.Dir)
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, fmt.Errorf("find directory: %w", err)
	}
	// A driver's DaemonSet has its directory made, too.
	for _, name := range []string{"plugins_registry", filepath.Join("plugins", filepath.Base(o.Name)), "device-plugins", "pods"} {
		if err := os.MkdirAll(filepath.Join(o.Dir, name), 0o750); err != nil {
			return nil, fmt.Errorf("make directory: %w", err)
		}
	}
	b := pluginbench.Options{
		Dir: o.Dir, Command: o.Command, Usual: o.Usual, Output: o.Output, Name: o.Name, Node: o.Node, Wait: o.Wait, Slow: o.Slow,
		CDIDirs: o.CDIDirs,
		Volume: pluginbench.Volume{
			Endpoint: o.CSIEndpoint, ID: o.CSIVolume, FSType: o.CSIFSType, Attributes: o.CSIAttributes, Publish: o.CSIPublish,
		},
		Provider: pluginbench.Provider{Config: o.ProviderConfig, BinDir: o.ProviderBinDir, Image: o.Image, Annotations: o.Annotations},
	}
	if o.Change != "" {
		b.Change = []string{"/bin/sh", "-c", o.Change}
	}
	protocol := pluginbench.Protocol(o.Protocol)
	if protocol == pluginbench.Claims || protocol == pluginbench.Credentials {
		s := &embed.Server{Node: embed.NodeNone, Controllers: []string{"none"}, KubeconfigFile: filepath.Join(o.Dir, "kubeconfig")}
		if err := s.Start(ctx); err != nil {
			return nil, fmt.Errorf("start API server: %w", err)
		}
		defer s.Stop()
		b.Client, b.Env = s.Client(), []string{"KUBECONFIG=" + s.KubeconfigFile}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: o.Node}}
		if _, err := b.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("create node: %w", err)
		}
	}
	found, err := pluginbench.Run(ctx, protocol, b)
	if err != nil {
		return nil, err
	}
	return pluginReport(found), nil
}

func pluginReport(r *pluginbench.Report) *cli.PluginReport {
	out := &cli.PluginReport{Protocol: string(r.Protocol), Name: r.Name}
	for _, c := range r.Checks {
		out.Checks = append(out.Checks, cli.PluginCheck{
			Check: c.Name, Result: string(c.Result), Milliseconds: milliseconds(c.Took), What: c.What, Kubelet: c.Kubelet,
		})
	}
	for _, c := range r.Calls {
		out.Calls = append(out.Calls, cli.PluginCalls{
			Plugin: c.Name, Calls: c.Calls, Failures: c.Failures, P50: milliseconds(c.P50), P99: milliseconds(c.P99),
			Longest: milliseconds(c.Longest),
		})
	}
	return out
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
