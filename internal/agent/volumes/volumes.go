// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package volumes sets up a pod's volumes on the node's disk, updates their contents, returns the mounts of containers, and
// tears the volumes down. The [Manager] does this for pods; a [Plugin] does it for one type of volume.
//
// The layout is kubelet's, because plug-ins and people know it:
//
//	ROOT/pods/UID/volumes/kubernetes.io~configmap/NAME/…
//	ROOT/pods/UID/volumes/kubernetes.io~empty-dir/NAME/…
//	ROOT/pods/UID/plugins/kubernetes.io~empty-dir/NAME/…  the state of a plug-in
//	ROOT/pods/UID/volume-subpaths/…
//	ROOT/pods/UID/containers/NAME/…                       termination messages
//	ROOT/pods/UID/etc-hosts
//
// The disk is the only state: a new process finds there the volumes that an earlier one set up.
//
//	plugin.go   the interface of plug-ins, and its promises
//	drivers.go  optional interfaces of plug-ins, and what the node provides to CSI volumes
//	host.go     what the node provides to plug-ins: directories, mounts, sources of contents
//	manager.go  all volumes of a pod: which plug-in makes each, set-up, tear-down
//	mounts.go   the mounts of containers, subpaths
//	system.go   mounts through system calls
package volumes
