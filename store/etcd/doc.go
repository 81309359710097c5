// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package etcd is a store engine on an etcd cluster, which other API servers use at the same time: Mortise's or kube-apiserver.
//
// # Reading
//
// The engine holds a mirror of its part of the key space in memory, an [mvcc.DB], which one watch of etcd keeps up to date. Reads and
// watches are answered from the mirror. A read of the newest state is linearizable: it asks etcd for its revision and waits until the
// mirror has reached it. Reads that arrive while a question is on its way share the next one:
//
//	read A    asks                        ← revision 41        the mirror is at 41: answered
//	read B      waits for its turn        asks  ← revision 43  the mirror is at 42: waits for the event of 43, answered
//	read C        shares B's question
//
// B cannot share A's question: etcd may have answered it before B began.
//
// A mirror that falls behind makes reads late, never stale. If its watch ends, the engine begins another one where it ended. If etcd has
// compacted what is missing, the engine reads everything again, and watchers get [store.ErrCompacted].
//
// # Writing
//
// A commit is one transaction of etcd, conditional on the modification revisions of its keys. It returns when the mirror has it: a client
// that then reads from the mirror finds it there. The mirror keeps the committed bytes, not a second copy of them.
//
// etcd's answer to a transaction is the change of its revision. If the mirror has all revisions before it, it applies the answer at once,
// and skips what the watch tells of that revision later. Else the answer waits until the watch has told of what comes before it:
//
//	the mirror is at 41    answer 43    waits
//	                       watch  42    applied, then 43 from the answer
//	                       watch  43    skipped
//
// A transaction whose answer was lost is sent again. If its condition then does not hold, the mirror's events tell whether that is so
// because the first one was carried out. Where they cannot tell, the error is [store.ErrUnknown].
//
// # Expiry
//
// Keys with a time to live belong to leases of etcd. Keys that expire at nearly the same time share one, so that they can live up to 5 %
// longer, at most a minute.
//
// # Compaction
//
// [Engine.CompactShared] takes part in kube-apiserver's protocol: of all servers on one etcd, one compacts in an interval.
//
// # Concurrency
//
// An [Engine] is safe for concurrent use. Transactions, questions and the watch share one connection to one member of etcd. The goroutine
// that reads it writes to the mirror. Other goroutines begin the watch again when it ends, ask questions while readers wait for an answer,
// connect to members, and call the functions of alarms. Close ends all of them.
//
// # Stability
//
// Other programs may use this package. A committed list of what it exports is compared in a test, so that nothing changes by accident. A
// release may change it, and its notes announce the change.
package etcd
