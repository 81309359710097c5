// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package initializers hides new objects until the controllers that an InitializerConfiguration names have initialized
// them: the alpha feature that Kubernetes had until 1.13, as an API of our own.
//
// [Kind] describes the configuration. [Plugin] is the last mutating admission plug-in: it writes the matching
// initializers into a new object. Only users with the verb initialize may then change the object, one initializer at a
// time. Package verbs hides, awaits and validates waiting objects, which it recognizes by their annotation.
// [Plugin.Run] follows all waiting objects and acts when a deadline expires.
//
// # Example
//
// A pod is created that matches two initializers. The server stores it with pending [a, b], since 12:00:00. Lists of
// pods do not show it; lists that ask for uninitialized objects do. The controller of a adds a container and removes a:
// pending [b], since 12:00:02. The controller of b does not respond: its deadline of 30 s is at 12:00:32. b's failure
// policy then decides. Either the server removes b too, the pod is initialized, and watches show it; or the server
// writes a result, deletes the pod, and responds with the reason to the create that still waits.
//
// # Concurrency
//
// Requests read the configurations without a lock. The waiting objects have a lock of their own, which no request
// takes.
package initializers
