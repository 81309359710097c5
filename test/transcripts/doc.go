// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package transcripts keeps dialogues with the API server as text, to be read in review.
//
// A file NAME.txt is one dialogue: exchanges, sent in order to a server without other clients. kinds/NAME.txt is the same
// dialogue for each built-in kind, made from its object in ../testdata/kinds.yaml. An exchange is
//
//	=== title
//	# what it shows
//	METHOD /path?query
//	Header: value
//
//	request body
//	---
//	status content-type
//	Header: value
//
//	response body
//
// What stands after --- is what the server said; `go test ./test/transcripts -update` writes it anew, and
// `-peer KUBECONFIG` compares it with what another server says, such as a kube-apiserver.
//
// # Requests
//
// Accept and Content-Type are application/json unless given; "none" sends none. A JSON body may be written as YAML.
// "as TITLE, with" and a merge patch in YAML stands for the object that the exchange TITLE answered, changed so.
// {TITLE.rv}, {TITLE.uid}, {TITLE.name} and {TITLE.continue} stand for what an earlier answer held, {fill N} for N letters.
// Of a watch, "until TYPE [N]" in the place of a header ends the reading after the Nth event of that type; without it the
// stream is read to its end.
//
// # Answers
//
// What differs from run to run is masked: times, cluster IPs, node ports, list revisions, tokens. UIDs and the
// resourceVersions of objects are numbered in the order in which they are seen. An object that was shown before is shown
// by what changed since. Protobuf and CBOR are shown decoded. managedFields are a line for each manager.
package transcripts
