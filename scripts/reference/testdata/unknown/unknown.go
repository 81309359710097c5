// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package unknown has a metric and an event whose names no constant gives.
package unknown

import (
	"os"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

var _ = prometheus.NewGauge(prometheus.GaugeOpts{Name: os.Getenv("NAME")})

// Write writes an event.
func Write(r record.EventRecorder, pod *corev1.Pod) {
	r.Event(pod, corev1.EventTypeNormal, os.Getenv("REASON"), "message")
}
