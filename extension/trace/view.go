// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package trace is the API of write traces: who sent a write, what each stage and each mutating step changed, what rejected
// it, and the result. Servers respond with a [View] or a [Field] at [Route]; `mortise explain` prints them. [Diff] and
// [Path] describe changes and fields. [Scheduling] has the scheduler's decisions.
//
// # Stability
//
// What this package exports only grows: a committed list of it is compared in a test, and a change that breaks a program is announced in a
// release before.
package trace

// Route is where a server answers questions about writes: below it by audit identity, at it by the query's parameters.
const Route = "/debug/explain"

// The parameters of a question.
const (
	ParamRejected    = "rejected"    // true: rejected writes only
	ParamBrief       = "brief"       // true: brief traces too, which a list of many leaves out
	ParamSince       = "since"       // a duration: the maximum age
	ParamGroup       = "group"       // of the object; with resource
	ParamResource    = "resource"    // its plural
	ParamNamespace   = "namespace"   // of the object, or of all listed objects
	ParamName        = "name"        // of the object
	ParamSubresource = "subresource" // of the request
	ParamField       = "field"       // answers with a Field
	ParamLimit       = "limit"       // maximum number of traces
)

// View is an answer: traces, the newest first.
type View struct {
	Traces []Trace `json:"traces"`
	// More is set if there are more writes than requested.
	More bool `json:"more,omitempty"`
	Kept Kept `json:"kept"`
	// Calls are those to plug-ins of the node for a pod, if the node runs in this server's process: the newest, in their order. A node
	// elsewhere answers at NodeRoute.
	Calls []Call `json:"calls,omitempty"`
}

// Kept is the extent of the recorded traces. Traces are in memory: those from before Started are lost.
type Kept struct {
	Started string `json:"started"`
	Traces  int    `json:"traces"`
	Bytes   int64  `json:"bytes"`
	Bound   int64  `json:"bound"`
	// Oldest is the time of the oldest write whose contents are kept, OldestRejected of the oldest that was refused; empty: none.
	Oldest         string `json:"oldest,omitempty"`
	OldestRejected string `json:"oldestRejected,omitempty"`
}

// Trace is one write.
type Trace struct {
	AuditID string `json:"auditID"`
	Time    string `json:"time"` // RFC 3339
	User    string `json:"user,omitempty"`
	// As is the impersonated user.
	As        string `json:"as,omitempty"`
	UserAgent string `json:"userAgent,omitempty"`
	Source    string `json:"source,omitempty"` // the address that it came from

	Method      string `json:"method"`
	URI         string `json:"uri"`
	Verb        string `json:"verb"`
	Group       string `json:"group,omitempty"`
	Version     string `json:"version"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name,omitempty"`
	DryRun      bool   `json:"dryRun,omitempty"`
	// Manager is the field manager, Operation Apply or Update.
	Manager   string `json:"manager,omitempty"`
	Operation string `json:"operation,omitempty"`

	Code    int     `json:"code"`
	Reason  string  `json:"reason,omitempty"`
	Message string  `json:"message,omitempty"`
	Seconds float64 `json:"seconds"`
	// Refused is the stage that refused it; empty: none did.
	Refused string `json:"refused,omitempty"`

	Decision *Decision `json:"authorization,omitempty"`
	Flow     *Flow     `json:"flowControl,omitempty"`
	Stages   []Stage   `json:"stages"`
	Steps    []Step    `json:"steps,omitempty"`
	Objects  []Object  `json:"objects,omitempty"`
	// MoreObjects is the number of further written objects, which are not listed.
	MoreObjects int `json:"moreObjects,omitempty"`
	// Brief traces have no contents: of leases, events, status that components write.
	Brief bool `json:"brief,omitempty"`
	// Redacted ones are of secrets: their values are replaced by marks, which tell within the write alone whether a member's value changed.
	Redacted bool `json:"redacted,omitempty"`
}

// Decision is authorization's.
type Decision struct {
	Allowed bool   `json:"allowed"`
	By      string `json:"by,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// Flow is the flow schema and priority level of the request.
type Flow struct {
	Schema string `json:"flowSchema"`
	Level  string `json:"priorityLevel"`
}

// Stage is a part of the server that the request passed, and how long that took.
type Stage struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// Step is a step that may change or reject a write.
type Step struct {
	Phase string `json:"phase"` // Mutate or Validate
	Kind  string `json:"kind"`
	// Configuration is the object that configures a webhook or binds a policy; empty for others.
	Configuration string   `json:"configuration,omitempty"`
	Name          string   `json:"name"`
	Result        string   `json:"result"`
	Reason        string   `json:"reason,omitempty"`
	Seconds       float64  `json:"seconds"`
	Changes       []Change `json:"changes,omitempty"`
	// Untold is the reason why the change is hidden.
	Untold string `json:"untold,omitempty"`
}

// The phases of a step.
const (
	Mutate   = "mutate"
	Validate = "validate"
)

// The kinds of step.
const (
	Request    = "request"    // what the client asked for
	Defaulting = "defaulting" // what the kind fills in
	Plugin     = "plug-in"
	Policy     = "policy"
	Webhook    = "webhook"
	Server     = "server" // the kind's own rules: uid, generation, addresses
)

// The results of a step.
const (
	Changed = "changed"
	Allowed = "allowed"
	Denied  = "denied"
	Failed  = "failed"  // it could not be asked, and the request was refused for that
	Ignored = "ignored" // it could not be asked, or refused, and the request went on
)

// Object is one that was written.
type Object struct {
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	Revision  int64  `json:"revision,omitempty"`
	// Action is created, changed or deleted.
	Action string `json:"action"`
	// Changes are all that the write changed; nothing for one that was created or deleted.
	Changes []Change `json:"changes,omitempty"`
}

// Field is the answer to what set a field.
type Field struct {
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Field     string `json:"field"`
	// Present reports whether the object has the field now, and Value is its value.
	Present bool `json:"present"`
	Value   any  `json:"value,omitempty"`
	// Settings are the writes that set it, the newest first; none: their traces are not there any more.
	Settings []Setting `json:"settings"`
	// Managers are the owners of the field in the object's managedFields.
	Managers []Manager `json:"managers,omitempty"`
	// Note names what is not known.
	Note string `json:"note,omitempty"`
	Kept Kept   `json:"kept"`
}

// Setting is a write that set a field.
type Setting struct {
	AuditID   string `json:"auditID"`
	Time      string `json:"time"`
	User      string `json:"user"`
	As        string `json:"as,omitempty"`
	Verb      string `json:"verb"`
	Resource  string `json:"resource"` // with the subresource
	UserAgent string `json:"userAgent,omitempty"`
	Manager   string `json:"manager,omitempty"`
	Operation string `json:"operation,omitempty"`
	Revision  int64  `json:"revision"`
	// Present and Value are as the write left it, WasPresent and Was as it found it.
	Present    bool `json:"present"`
	Value      any  `json:"value,omitempty"`
	WasPresent bool `json:"wasPresent"`
	Was        any  `json:"was,omitempty"`
	// By is the step that gave it the value, and Before what others gave it in the same write, the last first.
	By     Hand   `json:"by"`
	Before []Hand `json:"before,omitempty"`
}

// Hand is a step of a write that touched a field.
type Hand struct {
	Kind          string `json:"kind"`
	Configuration string `json:"configuration,omitempty"`
	Name          string `json:"name,omitempty"`
	Present       bool   `json:"present"`
	Value         any    `json:"value,omitempty"`
}

// Manager is an entry of managedFields.
type Manager struct {
	Manager     string `json:"manager"`
	Operation   string `json:"operation"`
	Subresource string `json:"subresource,omitempty"`
	Time        string `json:"time,omitempty"`
}
