// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// read is what the node's metrics say now: counters and gauges by name and labels, of histograms how many samples there are.
func (c *cluster) read() map[string]float64 {
	c.t.Helper()
	families, err := c.options.Metrics.Gatherer().Gather()
	if err != nil {
		c.t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += fmt.Sprintf(" %s=%s", l.GetName(), l.GetValue())
			}
			out[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

// TestImageMetrics: a node tells how containers came to their images, in kubelet's words.
func TestImageMetrics(t *testing.T) {
	c, r := newConfigured(t, "", func(o *Options) { o.Metrics = NewMetrics() })
	c.create(onePod("here"))
	c.await("here", "running", running(0))
	r.Pullable("example.org/some:latest")
	pulled := onePod("pulled")
	pulled.Spec.Containers[0].Image = "example.org/some"
	c.createAs(pulled, corev1.PullAlways)
	c.await("pulled", "running", running(0))
	for name, want := range map[string]float64{
		"kubelet_image_manager_ensure_image_requests_total present_locally=true pull_policy=ifnotpresent pull_required=false": 1,
		"kubelet_image_manager_ensure_image_requests_total present_locally=unknown pull_policy=always pull_required=true":     1,
		"kubelet_image_pull_duration_seconds image_size_in_bytes=0-10MB":                                                      1,
		"kubelet_imagemanager_image_mustpull_checks_total result=credentialPolicyAllowed":                                     1,
		"kubelet_imagemanager_ondisk_pulledrecords":                                                                           1,
		"kubelet_imagemanager_ondisk_pullintents":                                                                             0,
	} {
		if got, there := c.read()[name]; !there || got != want {
			t.Errorf("%s is %v (there: %t), want %v", name, got, there, want)
		}
	}

	// These are tried again: how often is not said.
	absent, wrong := onePod("absent"), onePod("wrong")
	absent.Spec.Containers[0].Image, wrong.Spec.Containers[0].Image = "example.org/none:1", "example.org/none:"
	c.createAs(absent, corev1.PullNever)
	c.await("absent", "refused", waitingFor("ErrImageNeverPull"))
	c.createAs(wrong, corev1.PullIfNotPresent)
	c.await("wrong", "refused", waitingFor("InvalidImageName"))
	for _, name := range []string{
		"kubelet_image_manager_ensure_image_requests_total present_locally=false pull_policy=never pull_required=unknown",
		"kubelet_image_manager_ensure_image_requests_total present_locally=unknown pull_policy=ifnotpresent pull_required=unknown",
	} {
		if c.read()[name] == 0 {
			t.Errorf("there is no %s", name)
		}
	}
}

// TestSizeClass: a bound belongs to the class below it.
