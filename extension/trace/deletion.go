// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package trace

// ParamDeletion, with true, requests why the object of [ParamGroup], [ParamResource], [ParamNamespace] and [ParamName] is not deleted. The
// response is a [Deletion].
const ParamDeletion = "deletion"

// Deletion is why an object is not deleted yet.
type Deletion struct {
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	// Since is when a client deleted the object; empty: none did. GraceSeconds is how long the object may take.
	Since        string `json:"since,omitempty"`
	GraceSeconds *int64 `json:"graceSeconds,omitempty"`
	// Finalizers have to be removed first. Those of a namespace's spec are among them.
	Finalizers []Finalizer `json:"finalizers"`
	// Remains are the conditions of a namespace about what is left in it.
	Remains []Remaining `json:"remains,omitempty"`
}

// Finalizer is one finalizer of an object.
type Finalizer struct {
	Name string `json:"name"`
	// Remover is who should remove it, Until the condition; both are empty if Mortise does not know the finalizer.
	Remover string `json:"remover,omitempty"`
	Until   string `json:"until,omitempty"`
	// AddedBy are the field managers that have set it: those whose program likely removes it.
	AddedBy []string `json:"addedBy,omitempty"`
}

// Remaining is one condition of a namespace that is being deleted.
type Remaining struct {
	Type    string `json:"type"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}
