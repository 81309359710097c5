// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"maps"
	"strings"
	"testing"

	configv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// The test passes the flags that Kubernetes' tests of nodes pass to kubelet. Flags override the configuration.
func TestKubeletFlags(t *testing.T) {
	if programNamed("/usr/bin/kubelet") == nil || programNamed("/usr/bin/mortise") != nil {
		t.Fatal("the program does not know its names")
	}
	var k kubeletFlags
	err := k.parse(strings.Fields("--runtime-cgroups=/containerd.slice --kubeconfig /k --root-dir /r --v 4 --feature-gates A=true,B=false " +
		"--config-dir /d --hostname-override n --container-runtime-endpoint unix:///c.sock --image-service-endpoint unix:///c.sock --config /c"))
	if err != nil {
		t.Fatal(err)
	}
	n := k.node
	if n.Kubeconfig != "/k" || n.Kubelet.RootDir != "/r" || n.Kubelet.ConfigDir != "/d" || n.Kubelet.ConfigFile != "/c" || n.Name != "n" {
		t.Errorf("%+v", n)
	}
	if k.level() != slog.LevelDebug {
		t.Errorf("level %v", k.level())
	}
	c := &configv1beta1.KubeletConfiguration{
		ContainerRuntimeEndpoint: "unix:///other.sock", FeatureGates: map[string]bool{"B": true, "C": true},
	}
	n.Override(c)
	if c.ContainerRuntimeEndpoint != "unix:///c.sock" || c.ImageServiceEndpoint != "unix:///c.sock" ||
		!maps.Equal(c.FeatureGates, map[string]bool{"A": true, "B": false, "C": true}) {
		t.Errorf("%+v", c)
	}
}

// Without flags the configuration stays, and the root directory is kubelet's.
func TestKubeletWithoutFlags(t *testing.T) {
	var k kubeletFlags
	if err := k.parse(nil); err != nil {
		t.Fatal(err)
	}
	c := &configv1beta1.KubeletConfiguration{ContainerRuntimeEndpoint: "unix:///c.sock"}
	k.node.Override(c)
	if c.ContainerRuntimeEndpoint != "unix:///c.sock" || c.FeatureGates != nil || k.node.Kubelet.RootDir != "/var/lib/kubelet" ||
		k.level() != slog.LevelWarn {
		t.Errorf("%+v %+v", c, k.node)
	}
	for _, wrong := range []string{"--feature-gates A=perhaps", "--no-such-flag"} {
		if err := k.parse(strings.Fields(wrong)); err == nil {
			t.Errorf("%s is accepted", wrong)
		}
	}
}
