// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package cloud runs a cloud's controller manager beside Mortise: Kubernetes' own, of k8s.io/cloud-provider, with the cloud of
// k8s.io/cloud-provider/fake, both unmodified. It is a module of its own, so that the program's dependencies are none of Mortise's.
package cloud
