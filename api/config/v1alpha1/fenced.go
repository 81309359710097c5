// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// FencedCondition is the type of the condition of a Node that says that nothing of the node runs or writes any more, such as after its power
// was cut. Whoever has made sure of that sets it to True. While the Node is not ready, it has the taint node.kubernetes.io/out-of-service
// then, with which its pods go and its volumes are detached at once. A node that runs sets it to False.
const FencedCondition = "mortise.dev/Fenced"
