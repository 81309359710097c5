// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// FencedCondition is the type of a condition of Nodes. True means that nothing of the node runs or writes any more, such as after a cut
// of its power: a fencing agent sets it. While the Node is not ready, it then has the taint node.kubernetes.io/out-of-service, with which
// its pods go and its volumes are detached at once. A node that runs sets the condition to False.
const FencedCondition = "mortise.dev/Fenced"
