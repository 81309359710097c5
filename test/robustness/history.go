// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package robustness

import "time"

// Verb is what a client asked for.
type Verb string

// The verbs. Put changes an object whatever it is, as a patch or an update without a resourceVersion does.
const (
	Create Verb = "create"
	Update Verb = "update"
	Put    Verb = "put"
	Delete Verb = "delete"
	Get    Verb = "get"
	List   Verb = "list"
)

// Result is what a client knows about its request.
type Result string

// The results.
const (
	Done     Result = "done"
	Conflict Result = "conflict"  // a Create's object exists; an Update's or Delete's has another resourceVersion
	NotFound Result = "not found" // there is no such object
	Unknown  Result = "unknown"   // the connection ended, or the server said that it does not know: a write may be carried out, also later
)

// Object is one object as a client saw it.
type Object struct {
	Name     string
	Value    string // what the write that left it wrote; no two writes of a history have the same
	Revision int64  // its resourceVersion
}

// Operation is one request. Reads whose outcome is unknown are not recorded.
type Operation struct {
	Client  int
	Server  string
	Verb    Verb
	Name    string // all but List
	Value   string // Create, Update, Put
	Expect  int64  // the resourceVersion that Update, or Delete, requires; 0: any
	Call    time.Duration
	Return  time.Duration
	Outcome Result
	// Revision is what the answer tells: of the object that Create, Update or Put has left, or of the state that a List shows; 0: it does not
	// tell.
	Revision int64
	Objects  []Object // that Get or List returned, in the order of names
}

// writes reports whether the operation can change something.
func (o Operation) writes() bool { return o.Verb != Get && o.Verb != List }

// Event is one change as the store itself tells it.
type Event struct {
	Revision int64
	Name     string
	Value    string // empty: the object is deleted
	Previous int64  // the revision of the object before; 0: there was none
}

// Note is one event of a watch as a client received it.
type Note struct {
	Type     string // ADDED, MODIFIED, DELETED, BOOKMARK
	Name     string
	Value    string
	Revision int64
	Server   string
	Stream   int // counts the connections of the watch
}

// Watch is what a client received that watched from a resourceVersion on, over all its connections: each began at the resourceVersion of
// the last note.
type Watch struct {
	Client int
	Name   string // only events of this object; empty: of all
	After  int64
	Notes  []Note
}

// History is what clients did and saw, and the store's own record of what happened.
type History struct {
	Log        []Event // all changes, from an empty state on
	Operations []Operation
	Watches    []Watch // each goes on to the end of the log
}
