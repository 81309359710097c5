// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command chooser is a scheduler extender: of the nodes in a request, it keeps those whose name begins with "good", and
// "good-best" is the best. A file beside its certificate makes it slow, or lets it return wrong answers.
//
//	chooser CERTIFICATE KEY MODE
//
// It listens on a free port of 127.0.0.1, whose number it prints, and reads the file MODE at each question: slow, lie, or
// anything else.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"

	extender "k8s.io/kube-scheduler/extender/v1"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(certificate, key, mode string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	mux := http.NewServeMux()
	mux.Handle("/filter", answer(mode, filter))
	mux.Handle("/rank", answer(mode, rank))
	return http.ServeTLS(l, mux, certificate, key)
}

func answer(mode string, how func(args extender.ExtenderArgs, lie bool) any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var args extender.ExtenderArgs
		if err := json.NewDecoder(r.Body).Decode(&args); err != nil || args.NodeNames == nil {
			http.Error(w, fmt.Sprint("no node names: ", err), http.StatusBadRequest)
			return
		}
		data, _ := os.ReadFile(mode)
		if string(data) == "slow" {
			<-r.Context().Done() // until the scheduler has had enough
			return
		}
		if err := json.NewEncoder(w).Encode(how(args, string(data) == "lie")); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	})
}

func filter(args extender.ExtenderArgs, lie bool) any {
	good, failed := []string{}, extender.FailedNodesMap{}
	for _, name := range *args.NodeNames {
		if strings.HasPrefix(name, "good") {
			good = append(good, name)
		} else {
			failed[name] = "node(s) were not chosen"
		}
	}
	if lie {
		good = append(good, "made-up")
	}
	return extender.ExtenderFilterResult{NodeNames: &good, FailedNodes: failed}
}

func rank(args extender.ExtenderArgs, _ bool) any {
	var out extender.HostPriorityList
	for _, name := range *args.NodeNames {
		var score int64
		if name == "good-best" {
			score = extender.MaxExtenderPriority
		}
		out = append(out, extender.HostPriority{Host: name, Score: score})
	}
	return out
}
