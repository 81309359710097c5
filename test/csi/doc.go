// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package csi is empty; its tests run the unmodified sidecars of CSI drivers beside a cluster.
//
// The driver is the mock driver of Kubernetes' own end-to-end tests, which speaks CSI and stores nothing. The sidecars and the snapshot
// controller are built from their modules. The nodes are simulated: what a node mounts is tested elsewhere.
package csi
